/* Finding a card by name. Drivers and lspci put a name among other words; people leave words out. The first
 * must find a card in almost any text, the second must not turn a mistake into another card, so there are
 * two searches. */
#include "topo/import/cards.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/mem.h"

enum { NAME_BYTES = 128, LIST_BYTES = 160 };

/* A name reduced to letters and digits, lower case, without the maker's words; starts[i] and ends[i] are
 * true where a word of the text begins at, or ends before, place i. */
struct squeezed {
    char text[NAME_BYTES];
    bool starts[NAME_BYTES], ends[NAME_BYTES];
    size_t length;
};

static bool is_noise(const char *word, size_t length)
{
    static const char *const noise[] = {"nvidia", "geforce", "tesla", "generation"};
    for (size_t i = 0; i < sizeof noise / sizeof *noise; i++)
        if (strlen(noise[i]) == length && strncasecmp(word, noise[i], length) == 0)
            return true;
    return false;
}

static void squeeze(const char *name, struct squeezed *out)
{
    memset(out, 0, sizeof *out);
    while (*name) {
        size_t length = 0;
        while (isalnum((unsigned char)name[length]))
            length++;
        if (length == 0) {
            name++;
            continue;
        }
        if (!is_noise(name, length)) {
            out->starts[out->length] = true;
            for (size_t i = 0; i < length && out->length + 1 < NAME_BYTES; i++)
                out->text[out->length++] = (char)tolower((unsigned char)name[i]);
            out->ends[out->length] = true;
        }
        name += length;
    }
}

/* Whether `text` contains `name` as whole words. */
static bool contains(const struct squeezed *text, const struct squeezed *name)
{
    for (const char *at = text->text; (at = strstr(at, name->text)) != NULL; at++) {
        size_t from = (size_t)(at - text->text);
        if (text->starts[from] && text->ends[from + name->length])
            return true;
    }
    return false;
}

const tsr_card *tsr_card_by_name(const char *name)
{
    const tsr_card *best = NULL;
    size_t longest = 0;
    struct squeezed text, key, full;
    squeeze(name, &text);
    for (int i = 0; text.length && tsr_card_at(i); i++) {
        const tsr_card *card = tsr_card_at(i);
        squeeze(card->key, &key);
        squeeze(card->name, &full);
        if (strcmp(text.text, key.text) == 0 || strcmp(text.text, full.text) == 0)
            return card;
        size_t length = contains(&text, &full) ? full.length : contains(&text, &key) ? key.length : 0;
        if (length > longest) {
            best = card;
            longest = length;
        }
    }
    return best;
}

/* Whether a word is a memory size other than the card's: "64GB". Drivers report 91 to 101 % of the nominal
 * size. The size in the name of a Grace module is the processor's. */
static bool is_other_memory(const char *word, size_t length, const tsr_card *card)
{
    char *unit;
    double gib = (double)strtol(word, &unit, 10);
    if (unit + 2 != word + length || strncasecmp(unit, "gb", 2) != 0 || gib < 1 || card->c2c_gbs > 0)
        return false;
    double part = card->memory_mib / 1024.0 / gib;
    return part < 0.9 || part > 1.02;
}

bool tsr_card_is_variant(const tsr_card *card, const char *name)
{
    for (size_t length; *name; name += length + (length == 0)) {
        length = 0;
        while (isalnum((unsigned char)name[length]))
            length++;
        if (length == 3 && strncmp(name, "MIG", 3) == 0)
            return false;
        size_t digits = strspn(name, "0123456789");
        bool is_virtual = digits > 0 && length == digits + 1 && strchr("ABCQ", name[digits]);
        bool is_mobile =
            length == 6 && (strncasecmp(name, "laptop", 6) == 0 || strncasecmp(name, "mobile", 6) == 0);
        if (is_virtual || is_mobile || (digits > 0 && is_other_memory(name, length, card)))
            return true;
    }
    return false;
}

/* -- as people type them -- */

static const char *without_rtx(const char *squeezed)
{
    return strncmp(squeezed, "rtx", 3) == 0 ? squeezed + 3 : squeezed;
}

/* Whether `text` is the key of a module and "sxm5": the table has "h100" and "h100-pcie". */
static bool is_module(const char *text, const char *key, const tsr_card *card)
{
    size_t length = strlen(key);
    const char *rest = text + length;
    return card->n_nvlinks && !card->bridge && strncmp(text, key, length) == 0 &&
           strncmp(rest, "sxm", 3) == 0 && strlen(rest) <= 4;
}

const tsr_card *tsr_card_exactly(const char *name)
{
    struct squeezed text, key, full;
    squeeze(name, &text);
    const char *typed = without_rtx(text.text);
    const tsr_card *found = NULL;
    for (int i = 0; *typed && tsr_card_at(i); i++) {
        const tsr_card *card = tsr_card_at(i);
        squeeze(card->key, &key);
        squeeze(card->name, &full);
        if (strcmp(typed, without_rtx(key.text)) == 0 || strcmp(typed, without_rtx(full.text)) == 0)
            return card;
        if (is_module(typed, without_rtx(key.text), card))
            found = card;
    }
    return found;
}

/* Whether each word of `name` is one of the card's name, and one of them has a digit, as "RTX" is no card. */
static bool may_mean(const char *name, const tsr_card *card)
{
    bool has_digit = false;
    struct squeezed full;
    squeeze(card->name, &full);
    for (size_t length; *name; name += length + (length == 0)) {
        char word[NAME_BYTES];
        struct squeezed part;
        length = strcspn(name, " -_/.,()[]");
        snprintf(word, sizeof word, "%.*s", (int)TSR_MIN(length, sizeof word - 1), name);
        squeeze(word, &part);
        if (part.length && !contains(&full, &part))
            return false;
        has_digit = has_digit || strpbrk(part.text, "0123456789");
    }
    return has_digit;
}

/* Insertions, deletions and replacements that turn a into b (Levenshtein). */
static int edit_distance(const char *a, const char *b)
{
    int row[NAME_BYTES + 1], n = (int)strlen(b);
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = TSR_MIN(replaced, TSR_MIN(row[j], row[j - 1]) + 1);
        }
    }
    return row[n];
}

static void add_to_list(char list[LIST_BYTES], const char *key)
{
    size_t used = strlen(list);
    bool fits = used + strlen(key) + sizeof ", ..." < LIST_BYTES;
    if (fits || used < LIST_BYTES - sizeof ", ...")
        snprintf(list + used, LIST_BYTES - used, "%s%s", used ? ", " : "", fits ? key : "...");
}

/* The keys at the least distance, at most a third of the name. */
static void list_nearest(const char *name, char list[LIST_BYTES])
{
    struct squeezed text, key;
    squeeze(name, &text);
    int least = ((int)text.length + 2) / 3;
    for (int i = 0; tsr_card_at(i); i++) {
        squeeze(tsr_card_at(i)->key, &key);
        int distance = edit_distance(without_rtx(text.text), without_rtx(key.text));
        if (distance > least)
            continue;
        if (distance < least)
            list[0] = '\0';
        least = distance;
        add_to_list(list, tsr_card_at(i)->key);
    }
}

tsr_status tsr_card_typed(const char *name, const tsr_card **card_out)
{
    const tsr_card *card = tsr_card_exactly(name), *one = NULL;
    char list[LIST_BYTES] = "";
    int n = 0;
    for (int i = 0; !card && tsr_card_at(i); i++) {
        if (!may_mean(name, tsr_card_at(i)))
            continue;
        one = tsr_card_at(i);
        add_to_list(list, one->key);
        n++;
    }
    if (!card && n > 1)
        return tsr_fail(TSR_ERR_INVALID, "'%s' may mean %s; write one of these", name, list);
    if (!card && !one) {
        list_nearest(name, list);
        return tsr_fail(TSR_ERR_INVALID, "unknown card '%s'%s%s; `tsr topo --cards` lists all", name,
                        *list ? "; similar: " : "", list);
    }
    *card_out = card ? card : one;
    return TSR_OK;
}

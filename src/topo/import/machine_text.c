/* The --machine text -> a builder: "2x rtx3090 nvlink, 1x rtx4060ti pcie4x8, 1x host 64GiB 50GB/s". The
 * grammar is at tsr_topology_parse(). Words are read one by one; every message gives the column of the
 * wrong word. Bus ids are invented in PCI domain ffff. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <tsr/bytes.h>

#include "core/mem.h"
#include "topo/import/cards.h"
#include "topo/import/builder.h"
#include "topo/import/machine_file.h"

enum { WORD_BYTES = 48, MOST_SOCKETS = 8, MOST_CORES = 512, INVENTED_DOMAIN = 0xffff };

/* Defaults of a text without "host": a desktop with two memory channels. Noted as a guess. */
enum { GUESSED_CORES = 16 };
static const uint64_t guessed_memory = UINT64_C(64) << 30;
static const double guessed_bytes_per_s = 50e9;

enum wiring { NO_NVLINK, NVLINK_PAIRS, NVLINK_SWITCH };

struct group {
    int count;
    const tsr_card *card; /* NULL: host */
    enum wiring wiring;
    int n_links; /* per pair; 0 = all, evenly */
    bool behind_switch;
    tsr_pcie_link pcie; /* 0 = the card's */
    int node;           /* -1 = round robin */
    int cores;          /* per socket; 0 = not given, as in the next members */
    uint64_t memory_bytes;
    double bytes_per_s;
};

struct parser {
    const char *text, *at; /* at: after the current word */
    const char *word_at;
    char word[WORD_BYTES];
    int n_groups;
    struct group groups[TSR_MAX_GPUS];
};

/* -- words -- */

/* `what` is the rest of the sentence about the word, without a full stop. */
static tsr_status wrong(const struct parser *p, const char *what)
{
    const char *quote = *p->word ? "'" : "";
    return tsr_fail(TSR_ERR_INVALID, "machine, column %d: %s%s%s %s", (int)(p->word_at - p->text) + 1, quote,
                    *p->word ? p->word : "the end", quote, what);
}

/* Read the next word; a comma is a word, the end of the text is "". */
static void next_word(struct parser *p)
{
    while (isspace((unsigned char)*p->at))
        p->at++;
    p->word_at = p->at;
    size_t length = *p->at == ',' ? 1 : strcspn(p->at, ", \t\r\n");
    snprintf(p->word, sizeof p->word, "%.*s", (int)TSR_MIN(length, sizeof p->word - 1), p->at);
    p->at += length;
}

static bool ends_group(const struct parser *p)
{
    return p->word[0] == '\0' || p->word[0] == ',';
}

/* A whole number of at most 6 digits at the start of text; returns its end, or NULL if there is none. */
static const char *whole_number(const char *text, int *value_out)
{
    char *end;
    if (!isdigit((unsigned char)*text) || strspn(text, "0123456789") > 6)
        return NULL;
    *value_out = (int)strtol(text, &end, 10);
    return end;
}

/* "100GB/s" -> 1e11; false if the word is not of that form. */
static bool parse_rate(const char *word, double *bytes_per_s_out)
{
    char bytes[WORD_BYTES];
    size_t length = strlen(word);
    uint64_t value;
    if (length < 5 || strcasecmp(word + length - 2, "/s") != 0)
        return false;
    snprintf(bytes, sizeof bytes, "%.*s", (int)length - 2, word);
    if (tsr_bytes_parse(bytes, &value) != TSR_OK || value < 1000000 || value > UINT64_C(1000000000000000))
        return false;
    *bytes_per_s_out = (double)value;
    return true;
}

/* -- groups -- */

/* Words that follow a card. A memory size may also be part of a name, "A100 80GB PCIe". */
static bool follows_a_card(const char *word)
{
    uint64_t bytes;
    return strncasecmp(word, "nvlink", 6) == 0 || strcasecmp(word, "nvswitch") == 0 ||
           strcasecmp(word, "switch") == 0 || strcasecmp(word, "node") == 0 ||
           (strncasecmp(word, "pcie", 4) == 0 && isdigit((unsigned char)word[4])) ||
           (isdigit((unsigned char)*word) && strpbrk(word, "bB") && tsr_bytes_parse(word, &bytes) == TSR_OK);
}

/* One word or several, as many as denote a card: "rtx3090", "NVIDIA GeForce RTX 3090 Ti". */
static tsr_status parse_card(struct parser *p, struct group *group)
{
    enum { MOST_WORDS = 6 };
    char name[MOST_WORDS * WORD_BYTES] = "", reason[512];
    const char *first = p->word_at, *end = p->at;
    size_t used = 0, asked = 0; /* of name; up to a word that follows a card */
    if (strcasecmp(p->word, "host") == 0)
        return TSR_OK;
    for (int i = 0; i < MOST_WORDS && !ends_group(p); i++, next_word(p)) {
        bool whole = asked == used && !(i > 0 && follows_a_card(p->word));
        used += (size_t)snprintf(name + used, sizeof name - used, "%s%s", i ? " " : "", p->word);
        const tsr_card *card = tsr_card_exactly(name);
        if (whole)
            asked = used;
        if (card)
            group->card = card;
        if (card || (whole && !group->card))
            end = p->at;
    }
    p->word_at = first;
    p->at = end;
    if (group->card)
        return TSR_OK;
    name[asked] = '\0';
    tsr_status status = tsr_card_typed(name, &group->card);
    if (status == TSR_OK)
        return status;
    snprintf(reason, sizeof reason, "%s", tsr_last_error());
    return tsr_fail(status, "machine, column %d: %s; a number of cards is written '2x rtx3090'",
                    (int)(first - p->text) + 1, reason);
}

/* A bridge joins few cards; modules (SXM) are joined by their board. */
static tsr_status check_wiring(const struct parser *p, const struct group *group, bool is_switch)
{
    const tsr_card *card = group->card;
    char what[160];
    int rest = TSR_MIN(group->count - card->bridge, card->bridge);
    if (card->n_nvlinks == 0)
        return wrong(p, "follows a card that has no NVLink");
    if (group->count < 2)
        return wrong(p, "joins the cards of a group, but this group has one; write e.g. '2x rtx3090 nvlink'");
    if (card->bridge && is_switch)
        return wrong(p, "takes modules on a board, and this card takes a bridge; write nvlink");
    if (card->bridge && group->count > card->bridge) {
        snprintf(what, sizeof what, "joins at most %d cards %s, by a bridge; write '%dx %s nvlink, %dx %s%s'",
                 card->bridge, card->key, card->bridge, card->key, rest, card->key,
                 rest > 1 ? " nvlink" : "");
        return wrong(p, what);
    }
    if (!is_switch && !p->word[6] && card->n_nvlinks / (group->count - 1) == 0)
        return wrong(p, "cannot join each pair: there are more pairs than links; write nvswitch");
    return TSR_OK;
}

/* "nvlink", "nvlink2", "nvswitch". */
static tsr_status parse_wiring(struct parser *p, struct group *group)
{
    bool is_switch = strcasecmp(p->word, "nvswitch") == 0;
    int value;
    if (!is_switch && strncasecmp(p->word, "nvlink", 6) != 0)
        return wrong(p, "is unknown; write nvlink or nvswitch");
    tsr_status status = check_wiring(p, group, is_switch);
    if (status != TSR_OK)
        return status;
    group->wiring = is_switch ? NVLINK_SWITCH : NVLINK_PAIRS;
    if (is_switch || !p->word[6])
        return TSR_OK;
    const char *rest = whole_number(p->word + 6, &value);
    if (!rest || *rest || value < 1 || value * (group->count - 1) > group->card->n_nvlinks)
        return wrong(p, "asks for more links to each other card than the card has, or is not a number");
    group->n_links = value;
    return TSR_OK;
}

/* "nvlink", "nvlink2", "nvswitch", "switch", "pcie4x8": words of GPUs. *taken_out: the word was one of
 * these. */
static tsr_status parse_gpu_word(struct parser *p, struct group *group, bool *taken_out)
{
    const char *rest;
    int value;
    *taken_out = true;
    if (strcasecmp(p->word, "switch") == 0) {
        group->behind_switch = true;
        return TSR_OK;
    }
    if (strncasecmp(p->word, "nv", 2) == 0)
        return parse_wiring(p, group);
    if (strncasecmp(p->word, "pcie", 4) == 0) {
        int lanes;
        rest = whole_number(p->word + 4, &value);
        if (!rest || (*rest != 'x' && *rest != 'X') || !(rest = whole_number(rest + 1, &lanes)) || *rest ||
            value < 1 || value > 7 || lanes < 1 || lanes > 16)
            return wrong(p, "is not a PCIe link; write pcie1x1 to pcie7x16, e.g. pcie4x8");
        group->pcie = (tsr_pcie_link){.generation = value, .width = lanes};
        return TSR_OK;
    }
    *taken_out = false;
    return TSR_OK;
}

static tsr_status parse_any_word(struct parser *p, struct group *group)
{
    int value;
    const char *rest = whole_number(p->word, &value);
    if (parse_rate(p->word, &group->bytes_per_s))
        return TSR_OK;
    if (strcasecmp(p->word, "node") == 0) {
        next_word(p);
        rest = whole_number(p->word, &group->node);
        return rest && !*rest && group->node < MOST_SOCKETS ? TSR_OK
                                                            : wrong(p, "is not a NUMA node; write 'node 0'");
    }
    if (!group->card && rest && strncasecmp(rest, "core", 4) == 0) {
        group->cores = value;
    } else if (rest && !*rest && !group->card) { /* "16 cores" */
        group->cores = value;
        next_word(p);
        if (strncasecmp(p->word, "core", 4) != 0)
            return wrong(p, "follows a bare number; write e.g. '16 cores' or '64GiB'");
    } else if (rest && tsr_bytes_parse(p->word, &group->memory_bytes) == TSR_OK &&
               group->memory_bytes >= UINT64_C(1) << 20 && group->memory_bytes <= UINT64_C(1) << 46) {
        return TSR_OK;
    } else {
        return wrong(p, group->card
                            ? "is unknown; words of a card are nvlink, nvswitch, switch, pcie4x16, node 0, "
                              "24GiB, 900GB/s"
                            : "is unknown; words of a host are 16 cores, 64GiB, 50GB/s");
    }
    return group->cores >= 1 && group->cores <= MOST_CORES ? TSR_OK
                                                           : wrong(p, "is not a number of cores (1 to 512)");
}

static tsr_status parse_group(struct parser *p, struct group *group)
{
    tsr_status status = TSR_OK;
    int count;
    const char *rest = whole_number(p->word, &count);
    bool is_count = rest && (*rest == 'x' || *rest == 'X');
    *group = (struct group){.count = is_count ? count : 1, .node = -1};
    if (is_count) {
        if (count < 1 || count > TSR_MAX_GPUS) {
            status = wrong(p, "is not a number of cards (1 to 32)");
            goto out;
        }
        p->at = rest[1] ? p->word_at + (rest + 1 - p->word) : p->at; /* "2xrtx3090" */
        next_word(p);
    } else if (rest && !*rest && count <= TSR_MAX_GPUS) {
        status = wrong(p, "is not a card; a number of cards is written '2x rtx3090'");
        goto out;
    }
    if (ends_group(p)) {
        status = wrong(p, "is where a card should be; write e.g. '2x rtx3090 nvlink, 1x host 64GiB'");
        goto out;
    }
    TSR_TRY(parse_card(p, group));
    for (next_word(p); !ends_group(p); next_word(p)) {
        bool taken = false;
        if (group->card)
            TSR_TRY(parse_gpu_word(p, group, &taken));
        if (!taken)
            TSR_TRY(parse_any_word(p, group));
    }
out:
    return status;
}

static tsr_status parse(struct parser *p)
{
    tsr_status status = TSR_OK;
    int n_hosts = 0;
    do {
        next_word(p);
        if (p->n_groups == TSR_MAX_GPUS) {
            status = wrong(p, "exceeds the limit of 32 groups");
            goto out;
        }
        TSR_TRY(parse_group(p, &p->groups[p->n_groups]));
        n_hosts += !p->groups[p->n_groups++].card;
        if (n_hosts > 1) {
            status = wrong(p, "comes after a second host; write '2x host' for two sockets");
            goto out;
        }
    } while (p->word[0] == ',');
out:
    return status;
}

/* -- groups -> builder -- */

static const struct group *host_group(const struct parser *p)
{
    for (int i = 0; i < p->n_groups; i++)
        if (!p->groups[i].card)
            return &p->groups[i];
    return NULL;
}

/* Sockets, each with one NUMA node and one host bridge; node i and bridge i belong together. */
static tsr_status add_sockets(const struct parser *p, tsr_topo_builder *builder)
{
    tsr_status status = TSR_OK;
    const struct group *host = host_group(p);
    int n = host ? host->count : 1, cores = host && host->cores ? host->cores : GUESSED_CORES;
    if (n > MOST_SOCKETS)
        return tsr_fail(TSR_ERR_INVALID, "machine: %d sockets; at most %d are supported", n, MOST_SOCKETS);
    for (int i = 0; i < n; i++) {
        tsr_builder_node *node;
        tsr_pci_bridge *bridge;
        TSR_TRY(tsr_builder_add_node(builder, &node));
        node->os_index = i;
        node->own_package = true;
        node->memory_bytes = host && host->memory_bytes ? host->memory_bytes : guessed_memory;
        node->rate_guessed = !host || !(host->bytes_per_s > 0);
        node->bytes_per_s = node->rate_guessed ? guessed_bytes_per_s : host->bytes_per_s;
        for (int pu = i * cores; pu < (i + 1) * cores && pu < TSR_DRAFT_MAX_PUS; pu++)
            node->pus[pu / 64] |= UINT64_C(1) << (pu % 64);
        TSR_TRY(tsr_builder_add_bridge(builder, &bridge));
        bridge->numa_node = i;
    }
    if (!host || !host->cores || !host->memory_bytes || !(host->bytes_per_s > 0))
        tsr_topo_note(builder->notes, sizeof builder->notes, "guessed of each socket:%s%s%s",
                      host && host->cores ? "" : " 16 cores", host && host->memory_bytes ? "" : " 64 GiB",
                      host && host->bytes_per_s > 0 ? "" : " 50 GB/s");
out:
    return status;
}

/* Describe GPU `index` of the group with the facts in the text; the card table and complete.c add the
 * rest. */
static void describe_gpu(const struct group *group, int first, int index, tsr_gpu *gpu)
{
    const tsr_card *card = group->card;
    gpu->memory_bytes = group->memory_bytes;
    gpu->memory_bytes_per_s = group->bytes_per_s;
    if (group->pcie.generation) {
        gpu->pcie = gpu->pcie_max = group->pcie;
        gpu->pcie_bytes_per_s = tsr_pcie_bytes_per_s(group->pcie.generation, group->pcie.width);
    }
    /* Variants of the same name differ in memory, so the card is given. */
    tsr_card_complete(card, false, gpu);
    if (group->wiring == NVLINK_SWITCH)
        gpu->nvlink_ends[gpu->n_nvlink_ends++] =
            (tsr_nvlink_end){.kind = TSR_NVLINK_END_SWITCH, .gpu = -1, .n_links = card->n_nvlinks};
    for (int other = 0; group->wiring == NVLINK_PAIRS && other < group->count; other++) {
        int links = group->n_links ? group->n_links : card->n_nvlinks / (group->count - 1);
        if (other != index && gpu->n_nvlink_ends < TSR_MAX_NVLINK_ENDS)
            gpu->nvlink_ends[gpu->n_nvlink_ends++] =
                (tsr_nvlink_end){.kind = TSR_NVLINK_END_GPU, .gpu = first + other, .n_links = links};
    }
}

static tsr_status add_gpus(const struct group *group, int total, tsr_topo_builder *builder)
{
    tsr_status status = TSR_OK;
    int n_sockets = builder->n_nodes, first = builder->n_gpus, shared = -1;
    if (group->node >= n_sockets)
        return tsr_fail(TSR_ERR_INVALID, "machine: 'node %d' of %d; write '%dx host' for as many sockets",
                        group->node, n_sockets, group->node + 1);
    for (int i = 0; i < group->count; i++) {
        tsr_pci_device *pci;
        tsr_gpu *gpu;
        int node = group->node >= 0       ? group->node
                   : group->behind_switch ? first * n_sockets / total
                                          : (first + i) * n_sockets / total;
        if (group->behind_switch && shared < 0) {
            tsr_pci_bridge *bridge;
            TSR_TRY(tsr_builder_add_bridge(builder, &bridge));
            snprintf(bridge->bus_id, sizeof bridge->bus_id, "%04x:fe:%02x.0", INVENTED_DOMAIN, first & 0x1f);
            bridge->parent = bridge->numa_node = node;
            shared = builder->n_bridges - 1;
        }
        TSR_TRY(tsr_builder_add_pci(builder, &pci));
        TSR_TRY(tsr_builder_add_gpu(builder, &gpu));
        snprintf(pci->bus_id, sizeof pci->bus_id, "%04x:%02x:00.0", INVENTED_DOMAIN, first + i);
        memcpy(gpu->bus_id, pci->bus_id, sizeof gpu->bus_id);
        pci->class_id = 0x0302;
        pci->vendor_id = 0x10de;
        pci->device_id = group->card->ids[0];
        pci->numa_node = gpu->numa_node = node;
        pci->bridge = shared >= 0 ? shared : node;
        describe_gpu(group, first, i, gpu);
        pci->link_bytes_per_s = gpu->pcie_bytes_per_s;
    }
out:
    return status;
}

tsr_status tsr_topo_read_machine_spec(const char *text, tsr_topology **topo_out)
{
    tsr_status status = TSR_OK;
    tsr_topo_builder *builder = NULL;
    struct parser p = {.text = text, .at = text};
    int total = 0;
    TSR_TRY(tsr_builder_create("--machine", &builder));
    TSR_TRY(parse(&p));
    for (int i = 0; i < p.n_groups; i++)
        total += p.groups[i].card ? p.groups[i].count : 0;
    if (total > TSR_MAX_GPUS) {
        status =
            tsr_fail(TSR_ERR_INVALID, "machine: %d cards; at most %d are supported", total, TSR_MAX_GPUS);
        goto out;
    }
    TSR_TRY(add_sockets(&p, builder));
    for (int i = 0; i < p.n_groups; i++)
        if (p.groups[i].card)
            TSR_TRY(add_gpus(&p.groups[i], total, builder));
    TSR_TRY(tsr_topo_build(builder, topo_out));
out:
    tsr_builder_free(builder);
    return status;
}

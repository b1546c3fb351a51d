/* Stop strings: against a search in the whole text, however the text is divided, and in tsr run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../tools/run_stop.h"
#include "support/program.h"
#include "support/random.h"

enum { MOST_BYTES = 40 };

/* Bytes of `text` that may be shown when all of it is there: up to the first stop string to be complete, the
 * longest of those that end at the same byte. */
static size_t find_stop(const char *text, const tool_list *strings)
{
    for (size_t end = 1; text[end - 1]; end++)
        for (size_t begin = 0; begin < end; begin++)
            for (int i = 0; i < strings->n; i++)
                if (strlen(strings->items[i]) == end - begin &&
                    memcmp(text + begin, strings->items[i], end - begin) == 0)
                    return begin;
    return strlen(text);
}

/* Whether `text` ends in a part of a stop string. */
static bool may_continue(const char *text, const tool_list *strings)
{
    for (; *text; text++)
        for (int i = 0; i < strings->n; i++)
            if (strncmp(text, strings->items[i], strlen(text)) == 0)
                return true;
    return false;
}

typedef struct shown {
    char text[MOST_BYTES + 1];
    size_t bytes;
} shown;

static void show(shown *all, tsr_bytes part)
{
    if (part.bytes)
        memcpy(all->text + all->bytes, part.data, part.bytes);
    all->bytes += part.bytes;
}

static void random_string(char *text, size_t bytes, uint64_t *seed)
{
    for (size_t i = 0; i < bytes; i++)
        text[i] = (char)('a' + random_below(seed, 2));
    text[bytes] = '\0';
}

/* Few letters, so that strings overlap themselves and each other. */
static void any_pieces_show_the_text_before_the_first_stop_string(void **state)
{
    (void)state;
    uint64_t seed = 5;
    int n_stopped = 0, n_held = 0;
    for (int round = 0; round < 20000; round++) {
        char text[MOST_BYTES + 1], strings[3][8];
        tool_list list = {.n = (int)random_below(&seed, 4)};
        for (int i = 0; i < list.n; i++) {
            random_string(strings[i], 1 + random_below(&seed, 7), &seed);
            list.items[i] = strings[i];
        }
        random_string(text, random_below(&seed, MOST_BYTES + 1), &seed);
        run_stop stop = {.strings = &list};
        shown all = {0};
        bool stopped = false;
        for (size_t at = 0, n; text[at] && !stopped; at += n) {
            tsr_bytes parts[2];
            n = 1 + random_below(&seed, strlen(text + at));
            stopped = run_stop_push(&stop, (tsr_bytes){text + at, n}, parts);
            show(&all, parts[0]);
            show(&all, parts[1]);
            if (!stopped) { /* nothing is held back without a reason */
                char held[MOST_BYTES + 1];
                snprintf(held, sizeof held, "%.*s", (int)(at + n - all.bytes), text + all.bytes);
                assert_true(!*held || may_continue(held, &list));
                n_held += *held != '\0';
            }
        }
        tsr_bytes rest = run_stop_finish(&stop);
        assert_true(!stopped || rest.bytes == 0);
        show(&all, rest);
        size_t expected = find_stop(text, &list);
        assert_int_equal(stopped, text[expected] != '\0');
        assert_int_equal(all.bytes, expected);
        assert_memory_equal(all.text, text, expected);
        n_stopped += stopped;
    }
    assert_true(n_stopped > 1000 && n_held > 1000);
}

/* -- tsr run -- */

#define RUN    "run -m examples/models/glossary-7m-Q8_0.gguf --temp 0 "
#define PROMPT "-p 'lighthouse (n.):' "

static void text_of(const char *arguments, char *text, size_t bytes)
{
    char line[2048];
    snprintf(line, sizeof line, "2>/dev/null %s", arguments);
    assert_int_equal(program_run(line, text, bytes), 0);
}

/* Every part of the text as a stop string: inside of tokens, and over several. */
static void a_run_ends_before_a_stop_string(void **state)
{
    (void)state;
    static char whole[1024], text[1024], line[1024];
    text_of(RUN PROMPT "-n 12 --no-display-prompt", whole, sizeof whole);
    size_t bytes = strlen(whole) - 1; /* without the newline */
    assert_true(bytes > 20);
    for (size_t at = 0; at + 9 < bytes; at += 4) {
        char string[10];
        snprintf(string, sizeof string, "%.*s", 9, whole + at);
        size_t expected = (size_t)(strstr(whole, string) - whole);
        snprintf(line, sizeof line, RUN PROMPT "-n 12 --no-display-prompt -r nothing --stop '%s'", string);
        text_of(line, text, sizeof text);
        assert_int_equal(strlen(text), expected + (expected > 0)); /* a newline ends a text */
        assert_memory_equal(text, whole, expected);
    }
    /* Held back text that turned out to be no stop string is shown, at the end, too. */
    snprintf(line, sizeof line, RUN PROMPT "-n 12 --no-display-prompt -r '%.*sX'", 5, whole + bytes - 5);
    text_of(line, text, sizeof text);
    assert_string_equal(text, whole);
}

static void the_report_names_the_stop_string_as_the_end(void **state)
{
    (void)state;
    char text[8192];
    program_check(RUN PROMPT "-n 12 -r ' '", 0, "ended: stop string", text, sizeof text);
    program_check(RUN PROMPT "-r ''", 2, "--stop takes a text that is not empty", text, sizeof text);
}

/* The answer is shorter, and the conversation goes on after it. */
static void in_a_conversation_a_stop_string_ends_the_answer(void **state)
{
    (void)state;
    static const char first[] = "lighthouse\n", both[] = "lighthouse\nlens\n";
    char whole[1024], text[1024], line[512];
    const char *chat = RUN "--chat chatml -c 256 -n 20 -i -r '%s' <<'END'\n%sEND\n";
    snprintf(line, sizeof line, chat, "nothing", first);
    text_of(line, whole, sizeof whole);
    assert_true(strlen(whole) > 20);
    char string[] = {whole[10], whole[11], '\0'};
    size_t expected = (size_t)(strstr(whole, string) - whole);
    snprintf(line, sizeof line, chat, string, first);
    text_of(line, text, sizeof text);
    assert_int_equal(strlen(text), expected + 1);
    assert_memory_equal(text, whole, expected);
    snprintf(line, sizeof line, chat, string, both);
    text_of(line, whole, sizeof whole);
    assert_memory_equal(whole, text, expected + 1);
    assert_true(strlen(whole) > strlen(text));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_pieces_show_the_text_before_the_first_stop_string),
        cmocka_unit_test(a_run_ends_before_a_stop_string),
        cmocka_unit_test(the_report_names_the_stop_string_as_the_end),
        cmocka_unit_test(in_a_conversation_a_stop_string_ends_the_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

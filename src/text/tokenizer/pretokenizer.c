/* Pre-tokenizers on PCRE2.
 *
 * PCRE2 is given valid UTF-8 only; runs of other bytes are words of their own. So patterns do not depend
 * on PCRE2's rules for invalid text, and its own check is skipped. */
#include "text/tokenizer/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/input/utf8.h"
#include "core/mem.h"

struct tsr_pretokenizer {
    const tsr_pretokenizer_rule *rule;
    pcre2_general_context *memory;
    int n_stages;
    pcre2_code *stages[TSR_PRETOKENIZER_MAX_STAGES];
};

static void *pcre_alloc(size_t bytes, void *user)
{
    (void)user;
    return tsr_mem_realloc(NULL, bytes, 1);
}

static void pcre_free(void *block, void *user)
{
    (void)user;
    tsr_mem_free(block);
}

static tsr_status out_of_memory(const char *what)
{
    return tsr_fail(TSR_ERR_MEMORY, "out of host memory for %s; free memory and try again", what);
}

static tsr_status compile_stage(tsr_pretokenizer *pretokenizer, const char *pattern)
{
    int error;
    PCRE2_SIZE offset;
    pcre2_code *code;
    pcre2_compile_context *context = pcre2_compile_context_create(pretokenizer->memory);

    if (!context)
        return out_of_memory("the pre-tokenizer");
    code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &offset,
                         context);
    pcre2_compile_context_free(context);
    if (!code && error == PCRE2_ERROR_HEAP_FAILED)
        return out_of_memory("the pre-tokenizer");
    if (!code)
        return tsr_fail(
            TSR_ERR_UNSUPPORTED,
            "this PCRE2 cannot compile a pre-tokenizer (error %d at offset %zu): it needs Unicode support",
            error, (size_t)offset);
    pretokenizer->stages[pretokenizer->n_stages++] = code;

    /* Without compiled code (if PCRE2 or the kernel does not allow it) matching is slower, with the same
     * result. */
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    return TSR_OK;
}

tsr_status tsr_pretokenizer_create(const tsr_pretokenizer_rule *rule, tsr_pretokenizer **pretokenizer_out)
{
    tsr_status status = TSR_OK;
    tsr_pretokenizer *pretokenizer = NULL;

    TSR_TRY(TSR_NEW(&pretokenizer, "the pre-tokenizer"));
    pretokenizer->rule = rule;
    pretokenizer->memory = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    if (!pretokenizer->memory)
        TSR_TRY(out_of_memory("the pre-tokenizer"));
    for (int i = 0; i < TSR_PRETOKENIZER_MAX_STAGES && rule->patterns[i]; i++)
        TSR_TRY(compile_stage(pretokenizer, rule->patterns[i]));
    *pretokenizer_out = pretokenizer;
    pretokenizer = NULL;
out:
    tsr_pretokenizer_destroy(pretokenizer);
    return status;
}

void tsr_pretokenizer_destroy(tsr_pretokenizer *pretokenizer)
{
    if (!pretokenizer)
        return;
    for (int i = 0; i < pretokenizer->n_stages; i++)
        pcre2_code_free(pretokenizer->stages[i]);
    pcre2_general_context_free(pretokenizer->memory);
    tsr_mem_free(pretokenizer);
}

/* One call of tsr_pretokenizer_split(). */
typedef struct splitter {
    const tsr_pretokenizer *pretokenizer;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    tsr_word_fn fn;
    void *user;
    const char *text; /* the whole text, for messages */
} splitter;

static tsr_status match_failed(const splitter *s, const char *at, int error)
{
    if (error == PCRE2_ERROR_NOMEMORY)
        return out_of_memory("the pre-tokenizer's matcher");
    char reason[120] = "";
    pcre2_get_error_message(error, (PCRE2_UCHAR *)reason, sizeof reason);
    return tsr_fail(TSR_ERR_INVALID, "the pre-tokenizer failed at byte %zu of the text (%s); split the text",
                    (size_t)(at - s->text), reason);
}

/* A match of one character or more at or after text[at]. Compiled code keeps its place in patterns with
 * repeated groups on a small stack; if it overflows, the interpreter, which uses the heap, is used. */
static int find_match(const splitter *s, const pcre2_code *code, const char *text, size_t bytes, size_t at)
{
    const uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    int found = pcre2_match(code, (PCRE2_SPTR)text, bytes, at, options, s->match, s->limits);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
        found = pcre2_match(code, (PCRE2_SPTR)text, bytes, at, options | PCRE2_NO_JIT, s->match, s->limits);
    return found;
}

static tsr_status split_stage(const splitter *s, int stage, const char *text, size_t bytes);

/* Process a match of the previous stage in stage `stage`: as a whole, or as a number cut into threes. */
static tsr_status split_found(const splitter *s, int stage, const char *text, size_t bytes)
{
    tsr_status status = TSR_OK;
    size_t n = 0; /* characters from here on */

    if (stage != 1 || !(s->pretokenizer->rule->flags & TSR_PRE_DIGITS_IN_THREES))
        return split_stage(s, stage, text, bytes);
    for (size_t at = 0; at < bytes; at += tsr_utf8_sequence(text + at, bytes - at, NULL))
        n++;
    for (size_t at = 0; at < bytes;) {
        size_t begin = at;
        do {
            at += tsr_utf8_sequence(text + at, bytes - at, NULL);
            n--;
        } while (n % 3);
        TSR_TRY(split_stage(s, stage, text + begin, at - begin));
    }
out:
    return status;
}

/* Cut `text`, valid UTF-8, with the pattern of this stage. The pattern cannot look beyond the ends of
 * `text`. */
static tsr_status split_stage(const splitter *s, int stage, const char *text, size_t bytes)
{
    tsr_status status = TSR_OK;

    /* The second bound is for the compiler, which unrolls the recursion without knowing n_stages. */
    if (stage >= s->pretokenizer->n_stages || stage >= TSR_PRETOKENIZER_MAX_STAGES)
        return s->fn(s->user, text, bytes);
    for (size_t at = 0; at < bytes;) {
        int found = find_match(s, s->pretokenizer->stages[stage], text, bytes, at);
        size_t begin = bytes, end = bytes; /* no match: the rest is one piece */
        if (found >= 0) {
            const PCRE2_SIZE *ovector = pcre2_get_ovector_pointer(s->match);
            begin = ovector[0];
            end = ovector[1];
        } else if (found != PCRE2_ERROR_NOMATCH) {
            return match_failed(s, text + at, found);
        }
        if (begin > at)
            TSR_TRY(split_stage(s, stage + 1, text + at, begin - at));
        if (end > begin)
            TSR_TRY(split_found(s, stage + 1, text + begin, end - begin));
        at = end;
    }
out:
    return status;
}

tsr_status tsr_pretokenizer_split(const tsr_pretokenizer *pretokenizer, const char *text, size_t bytes,
                                  tsr_word_fn fn, void *user)
{
    tsr_status status = TSR_OK;
    splitter s = {.pretokenizer = pretokenizer, .fn = fn, .user = user, .text = text};

    /* Patterns backtrack only over the current match, so a small multiple of the length is far more than
     * any match takes. The limit bounds the time if this assumption is wrong. */
    size_t limit = TSR_MIN(bytes, (size_t)UINT32_MAX / 16) * 8 + 100000;

    s.match = pcre2_match_data_create(1, pretokenizer->memory);
    s.limits = pcre2_match_context_create(pretokenizer->memory);
    if (!s.match || !s.limits)
        TSR_TRY(out_of_memory("the pre-tokenizer's matcher"));
    pcre2_set_match_limit(s.limits, (uint32_t)limit);
    pcre2_set_heap_limit(s.limits, (uint32_t)TSR_MIN(limit / 16, (size_t)UINT32_MAX)); /* in KiB: 512 bytes
                                                                                        * per byte */

    for (size_t at = 0; at < bytes;) {
        size_t valid = tsr_utf8_valid_prefix(text + at, bytes - at);
        if (valid)
            TSR_TRY(split_stage(&s, 0, text + at, valid));
        size_t stray = at + valid;
        while (stray < bytes && !tsr_utf8_sequence(text + stray, bytes - stray, NULL))
            stray++;
        if (stray > at + valid)
            TSR_TRY(fn(user, text + at + valid, stray - at - valid));
        at = stray;
    }
out:
    pcre2_match_context_free(s.limits);
    pcre2_match_data_free(s.match);
    return status;
}

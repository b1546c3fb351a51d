/* Checks of encoding and decoding; see tokenizer_check.h. */
#include "support/tokenizer_check.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

token_list tokenizer_encode_bytes(const tsr_tokenizer *tokenizer, const char *text, size_t bytes,
                                  unsigned flags)
{
    token_list result = {.n = 0};
    size_t counted = 0;
    if (tsr_tokenizer_encode(tokenizer, text, bytes, flags, result.at, TOKEN_LIST_MAX, &result.n) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    assert_int_equal(tsr_tokenizer_encode(tokenizer, text, bytes, flags, NULL, 0, &counted), TSR_OK);
    assert_int_equal(counted, result.n);
    return result;
}

token_list tokenizer_encode_text(const tsr_tokenizer *tokenizer, const char *text, unsigned flags)
{
    return tokenizer_encode_bytes(tokenizer, text, strlen(text), flags);
}

void tokenizer_check(const tsr_tokenizer *tokenizer, const char *text, unsigned flags, const char *expected)
{
    char names[4096] = "";
    token_list got = tokenizer_encode_text(tokenizer, text, flags);
    for (size_t i = 0; i < got.n; i++) {
        tsr_bytes name = tsr_tokenizer_token_text(tokenizer, got.at[i]);
        if (i)
            strcat(names, " ");
        strncat(names, name.data, name.bytes);
    }
    if (strcmp(names, expected))
        fail_msg("'%s' becomes '%s', not '%s'", text, names, expected);
}

void tokenizer_check_round_trip(const tsr_tokenizer *tokenizer, const char *text, size_t bytes,
                                unsigned flags)
{
    token_list tokens = tokenizer_encode_bytes(tokenizer, text, bytes, flags);
    size_t n = 0;
    char *back = malloc(bytes + 1);
    assert_int_equal(tsr_tokenizer_decode(tokenizer, tokens.at, tokens.n, 0, back, bytes, &n), TSR_OK);
    assert_int_equal(n, bytes);
    assert_memory_equal(back, text, bytes);
    free(back);
}

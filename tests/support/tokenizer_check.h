/* Checks of encoding and decoding, for tests. Trouble fails the test. */
#ifndef TSR_TESTS_TOKENIZER_CHECK_H
#define TSR_TESTS_TOKENIZER_CHECK_H

#include <stddef.h>
#include <stdint.h>

#include <tsr/tokenizer.h>

enum { TOKEN_LIST_MAX = 1 << 16 };

typedef struct token_list {
    int32_t at[TOKEN_LIST_MAX];
    size_t n;
} token_list;

/* Encode; also checks that counting alone gives the same number. */
token_list tokenizer_encode_bytes(const tsr_tokenizer *tokenizer, const char *text, size_t bytes,
                                  unsigned flags);
token_list tokenizer_encode_text(const tsr_tokenizer *tokenizer, const char *text, unsigned flags);

/* Encoding `text` gives tokens with these names, separated by spaces. */
void tokenizer_check(const tsr_tokenizer *tokenizer, const char *text, unsigned flags, const char *expected);

/* Encoding and decoding gives text[bytes] again. */
void tokenizer_check_round_trip(const tsr_tokenizer *tokenizer, const char *text, size_t bytes,
                                unsigned flags);

#endif

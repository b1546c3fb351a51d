/* Writes a GGUF file that holds nothing but keys, for tests of what is read from keys.
 *
 *     vocab_file *file = vocab_file_begin();
 *     vocab_file_string(file, "tokenizer.ggml.model", "gpt2");
 *     vocab_file_strings(file, "tokenizer.ggml.tokens", tokens, n);
 *     tsr_gguf *gguf = vocab_file_open(file);                (the file on disk is gone again)
 *
 * Trouble with the file system fails the test.
 */
#ifndef TSR_TESTS_VOCAB_FILE_H
#define TSR_TESTS_VOCAB_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/gguf.h>

typedef struct vocab_file vocab_file;

vocab_file *vocab_file_begin(void);
void vocab_file_string(vocab_file *file, const char *key, const char *value);
void vocab_file_u32(vocab_file *file, const char *key, uint32_t value);
void vocab_file_bool(vocab_file *file, const char *key, bool value);
void vocab_file_u8s(vocab_file *file, const char *key, const uint8_t *values, size_t n);
void vocab_file_strings(vocab_file *file, const char *key, const char *const *values, size_t n);
void vocab_file_i32s(vocab_file *file, const char *key, const int32_t *values, size_t n);
void vocab_file_f32s(vocab_file *file, const char *key, const float *values, size_t n);

/* Close `file` (it dies) and open what was written; the caller closes that. */
tsr_gguf *vocab_file_open(vocab_file *file);

#endif

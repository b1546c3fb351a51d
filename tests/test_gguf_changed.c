/* Model files that change while they are open: keys, strings and tensor descriptions stay as they were read;
 * only tensor data is that of the file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>
#include <pthread.h>

#include <tsr/gguf.h>
#include <tsr/tokenizer.h>

#include "support/gguf_open.h"
#include "support/memory_file.h"

enum { N_TOKENS = 256 + 64, TEXT_BYTES = 8 };

/* A byte-level vocabulary; token 256 is "t256", and so on. Then a tensor of one value. */
static uint8_t *vocabulary(size_t *bytes_out)
{
    static char texts[N_TOKENS][TEXT_BYTES];
    const char *tokens[N_TOKENS];
    gguf_writer *writer = gguf_writer_create(3);
    for (int id = 0; id < N_TOKENS; id++) {
        snprintf(texts[id], TEXT_BYTES, "t%d", id);
        tokens[id] = texts[id];
    }
    gguf_writer_string(writer, "general.architecture", "llama");
    gguf_writer_u32(writer, "llama.block_count", 2);
    gguf_writer_string(writer, "tokenizer.ggml.model", "gpt2");
    gguf_writer_string(writer, "tokenizer.ggml.pre", "gpt-2");
    gguf_writer_strings(writer, "tokenizer.ggml.tokens", tokens, N_TOKENS);
    gguf_writer_strings(writer, "tokenizer.ggml.merges", NULL, 0);
    gguf_writer_tensor_f32(writer, "tensor", TSR_TYPE_F32, 1, (int64_t[]){1}, (float[]){1});
    uint8_t *data = gguf_writer_bytes(writer, bytes_out);
    gguf_writer_destroy(writer);
    return data;
}

static void check_values(const tsr_gguf *gguf)
{
    tsr_gguf_string text;
    uint64_t n_layers = 0;
    tsr_tokenizer *tokenizer;

    assert_int_equal(tsr_gguf_get_string(gguf, "general.architecture", &text), TSR_OK);
    assert_int_equal(text.bytes, 5);
    assert_memory_equal(text.data, "llama", 5);
    assert_int_equal(tsr_gguf_get_u64(gguf, "llama.block_count", &n_layers), TSR_OK);
    assert_int_equal(n_layers, 2);
    assert_int_equal(tsr_gguf_array_string(gguf, "tokenizer.ggml.tokens", N_TOKENS - 1, &text), TSR_OK);
    assert_int_equal(text.bytes, 4);
    assert_memory_equal(text.data, "t319", 4);
    assert_int_equal(tsr_tokenizer_create(gguf, &tokenizer), TSR_OK);
    assert_int_equal(tsr_tokenizer_find(tokenizer, "t300", 4), 300);
    tsr_tokenizer_destroy(tokenizer);
    assert_string_equal(tsr_gguf_find_tensor(gguf, "tensor")->name, "tensor");
}

static void changes_after_opening_reach_no_key_and_no_string(void **state)
{
    (void)state;
    size_t bytes;
    uint8_t *data = vocabulary(&bytes);
    for (int fill = 0; fill <= 0xff; fill += 0xff) { /* lengths become 0 or too large for any file */
        struct memory_file file = memory_file_create(data, bytes);
        tsr_gguf *gguf = NULL;
        assert_int_equal(tsr_gguf_open(file.path, NULL, &gguf), TSR_OK);
        uint8_t *other = malloc(bytes);
        memset(other, fill, bytes);
        assert_int_equal(pwrite(file.fd, other, bytes, 0), bytes);
        check_values(gguf);
        assert_int_equal(*(const uint8_t *)tsr_gguf_find_tensor(gguf, "tensor")->data, fill);
        free(other);
        tsr_gguf_close(gguf);
        memory_file_destroy(&file);
    }
    free(data);
}

static void keys_outlive_the_end_of_their_file(void **state)
{
    (void)state;
    size_t bytes;
    uint8_t *data = vocabulary(&bytes);
    struct memory_file file = memory_file_create(data, bytes);
    tsr_gguf *gguf = NULL;
    assert_int_equal(tsr_gguf_open(file.path, NULL, &gguf), TSR_OK);
    memory_file_resize(&file, 0);
    check_values(gguf);
    tsr_gguf_close(gguf);
    memory_file_destroy(&file);
    free(data);
}

struct flipper {
    volatile uint8_t *byte;
    uint8_t values[2];
    atomic_bool stop;
};

static void *flip(void *argument)
{
    struct flipper *flipper = argument;
    for (unsigned i = 0; !flipper->stop; i++)
        *flipper->byte = flipper->values[i & 1];
    return NULL;
}

/* The length of one token is 4, then 244, then 4 again, as fast as a thread can write. Every opening sees a
 * good file or refuses it. */
static void changes_while_opening_do_no_harm(void **state)
{
    (void)state;
    size_t bytes;
    int n_opened = 0;
    uint8_t *data = vocabulary(&bytes);
    struct memory_file file = memory_file_create(data, bytes);
    size_t at = gguf_bytes_after(data, bytes, "t259") - 4 - sizeof(uint64_t);
    uint8_t *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
    assert_true(map != MAP_FAILED);
    assert_int_equal(map[at], 4);
    struct flipper flipper = {.byte = map + at, .values = {4, 244}};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, flip, &flipper), 0);
    for (int i = 0; i < 2000; i++) {
        tsr_gguf *gguf = NULL;
        tsr_tokenizer *tokenizer = NULL;
        if (tsr_gguf_open(file.path, NULL, &gguf) == TSR_OK) {
            n_opened++;
            assert_int_equal(tsr_tokenizer_create(gguf, &tokenizer), TSR_OK);
        }
        tsr_tokenizer_destroy(tokenizer);
        tsr_gguf_close(gguf);
    }
    flipper.stop = true;
    pthread_join(thread, NULL);
    assert_true(n_opened > 0);
    munmap(map, bytes);
    memory_file_destroy(&file);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(changes_after_opening_reach_no_key_and_no_string),
        cmocka_unit_test(keys_outlive_the_end_of_their_file),
        cmocka_unit_test(changes_while_opening_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

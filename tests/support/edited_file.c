/* See edited_file.h. */
#include "support/edited_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/gguf_writer.h"
#include "support/runner.h"

/* -- keys -- */

static void *make(size_t bytes)
{
    void *block = malloc(bytes + 1);
    assert_non_null(block);
    return block;
}

static char *text_of(tsr_gguf_string s)
{
    char *text = make(s.bytes);
    memcpy(text, s.data, s.bytes);
    text[s.bytes] = '\0';
    return text;
}

static void copy_strings(gguf_writer *w, const tsr_gguf *from, const char *key, size_t n)
{
    char **texts = make(n * sizeof *texts);
    for (size_t i = 0; i < n; i++) {
        tsr_gguf_string s;
        runner_ok(tsr_gguf_array_string(from, key, (int64_t)i, &s), key);
        texts[i] = text_of(s);
    }
    gguf_writer_strings(w, key, (const char *const *)texts, n);
    for (size_t i = 0; i < n; i++)
        free(texts[i]);
    free(texts);
}

static void copy_numbers(gguf_writer *w, const tsr_gguf *from, const char *key, bool real, size_t n)
{
    float *reals = make(n * sizeof *reals);
    int32_t *integers = make(n * sizeof *integers);
    for (size_t i = 0; i < n; i++) {
        double x = 0;
        int64_t k = 0;
        runner_ok(real ? tsr_gguf_array_f64(from, key, (int64_t)i, &x)
                       : tsr_gguf_array_i64(from, key, (int64_t)i, &k),
                  key);
        reals[i] = (float)x;
        integers[i] = (int32_t)k;
    }
    gguf_writer_array(w, key, real ? TSR_GGUF_F32 : TSR_GGUF_I32, real ? (void *)reals : (void *)integers, n);
    free(reals);
    free(integers);
}

static void copy_key(gguf_writer *w, const tsr_gguf *from, const char *key)
{
    tsr_gguf_value_type type;
    tsr_gguf_string string;
    int64_t n;
    uint64_t integer;
    double real;
    bool flag;
    if (tsr_gguf_get_array(from, key, &type, &n) == TSR_OK) {
        if (type == TSR_GGUF_STRING)
            copy_strings(w, from, key, (size_t)n);
        else
            copy_numbers(w, from, key, type == TSR_GGUF_F32, (size_t)n);
    } else if (tsr_gguf_get_string(from, key, &string) == TSR_OK) {
        char *text = text_of(string);
        gguf_writer_string(w, key, text);
        free(text);
    } else if (tsr_gguf_get_bool(from, key, &flag) == TSR_OK) {
        gguf_writer_bool(w, key, flag);
    } else if (tsr_gguf_get_u64(from, key, &integer) == TSR_OK) {
        gguf_writer_u32(w, key, (uint32_t)integer);
    } else {
        runner_ok(tsr_gguf_get_f64(from, key, &real), key);
        gguf_writer_f32(w, key, (float)real);
    }
}

/* -- edits -- */

/* Whether a name is `pattern`, or begins with one that ends with '.' or '_'. */
static bool matches(const char *pattern, const char *name)
{
    const size_t n = strlen(pattern);
    return n > 0 && strchr("._", pattern[n - 1]) ? strncmp(pattern, name, n) == 0
                                                 : strcmp(pattern, name) == 0;
}

/* Whether the file's key or tensor of the name does not stay. */
static bool is_replaced(const file_edit *edits, const char *name)
{
    for (const file_edit *e = edits; e->name; e++)
        if (e->how != FILE_COPY && matches(e->name, name))
            return true;
    return false;
}

static void write_integers(gguf_writer *w, const file_edit *e, int n_dims, size_t n)
{
    uint32_t *values = make(n * sizeof *values);
    for (size_t i = 0; i < n; i++)
        values[i] = e->numbers[i % e->n];
    gguf_writer_tensor_raw(w, e->name, e->type, n_dims, e->ne, values);
    free(values);
}

static void write_new_tensor(gguf_writer *w, const file_edit *e)
{
    const int n_dims = e->ne[2] > 0 ? 3 : e->ne[1] > 0 ? 2 : 1;
    size_t n = 1;
    for (int d = 0; d < n_dims; d++)
        n *= (size_t)e->ne[d];
    if (e->type == TSR_TYPE_I32) {
        write_integers(w, e, n_dims, n);
        return;
    }
    float *values = make(n * sizeof *values);
    for (size_t i = 0; i < n; i++)
        values[i] =
            e->value != 0 ? e->value : (float)((uint32_t)i * UINT32_C(2654435761) >> 16) / 65536 - 0.5f;
    if (e->like != TSR_TYPE_F32) {
        void *rounded = make(n * sizeof *values);
        runner_ok(tsr_type_from_f32(e->like, values, rounded, (int64_t)n), e->name);
        runner_ok(tsr_type_to_f32(e->like, rounded, values, (int64_t)n), e->name);
        free(rounded);
    }
    gguf_writer_tensor_f32(w, e->name, e->type, n_dims, e->ne, values);
    free(values);
}

static void write_copies(gguf_writer *w, const file_edit *e, const tsr_gguf *from)
{
    int n = 0;
    for (int64_t i = 0; i < tsr_gguf_n_tensors(from); i++) {
        const tsr_gguf_tensor *t = tsr_gguf_tensor_at(from, i);
        char name[128];
        if (!matches(e->from, t->name))
            continue;
        snprintf(name, sizeof name, "%s%s", e->name, t->name + strlen(e->from));
        gguf_writer_tensor_raw(w, name, t->type, t->n_dims, t->ne, t->data);
        n++;
    }
    if (n == 0)
        fail_msg("no tensor is called %s", e->from);
}

static void write_edit(gguf_writer *w, const file_edit *e, const tsr_gguf *from)
{
    switch (e->how) {
    case FILE_DROP:
        break;
    case FILE_U32:
        gguf_writer_u32(w, e->name, e->numbers[0]);
        break;
    case FILE_BOOL:
        gguf_writer_bool(w, e->name, e->numbers[0] != 0);
        break;
    case FILE_U32S:
        gguf_writer_array(w, e->name, TSR_GGUF_U32, e->numbers, e->n);
        break;
    case FILE_TENSOR:
        write_new_tensor(w, e);
        break;
    case FILE_COPY:
        write_copies(w, e, from);
        break;
    }
}

void edited_file_write(const char *from, const file_edit *edits, const char *path)
{
    tsr_gguf *gguf;
    gguf_writer *w = gguf_writer_create(3);
    runner_ok(tsr_gguf_open(from, NULL, &gguf), from);
    for (int64_t i = 0; i < tsr_gguf_n_keys(gguf); i++)
        if (!is_replaced(edits, tsr_gguf_key_at(gguf, i)))
            copy_key(w, gguf, tsr_gguf_key_at(gguf, i));
    for (int64_t i = 0; i < tsr_gguf_n_tensors(gguf); i++) {
        const tsr_gguf_tensor *t = tsr_gguf_tensor_at(gguf, i);
        if (!is_replaced(edits, t->name))
            gguf_writer_tensor_raw(w, t->name, t->type, t->n_dims, t->ne, t->data);
    }
    for (const file_edit *e = edits; e->name; e++)
        write_edit(w, e, gguf);
    gguf_writer_save(w, path);
    gguf_writer_destroy(w);
    tsr_gguf_close(gguf);
}

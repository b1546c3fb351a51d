/* See expert_tensors.h. The keys are copied as they are. */
#include "support/expert_tensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/gguf.h>

#include "core/mem.h"
#include "support/random.h"
#include "support/runner.h"

enum { HEADER = 24, ALIGNMENT = 32, MAX_TENSORS = 1000 };

/* A tensor of the copy. */
typedef struct piece {
    char name[80];
    tsr_gguf_tensor t;
} piece;

typedef struct pieces {
    piece list[MAX_TENSORS];
    int n;
} pieces;

static bool is_of_experts(const tsr_gguf *gguf, int64_t i)
{
    return i < tsr_gguf_n_tensors(gguf) && strstr(tsr_gguf_tensor_at(gguf, i)->name, "_exps.weight");
}

static void add(pieces *p, const expert_tensors *how, const tsr_gguf_tensor *t, const char *name)
{
    if (how->dropped && strcmp(name, how->dropped) == 0)
        return;
    assert_true(p->n < MAX_TENSORS);
    piece *new = &p->list[p->n++];
    new->t = *t;
    snprintf(new->name, sizeof new->name, "%s", name);
    if (how->retyped && strcmp(name, how->retyped) == 0)
        new->t.type = TSR_TYPE_BF16;
}

static void add_expert(pieces *p, const expert_tensors *how, const tsr_gguf_tensor *all, int64_t expert)
{
    char name[80];
    tsr_gguf_tensor t = *all;
    snprintf(name, sizeof name, "%.*s.%d.weight", (int)(strlen(all->name) - strlen("_exps.weight")),
             all->name, (int)expert);
    t.n_dims = 2;
    t.ne[2] = 1;
    t.bytes = all->bytes / (size_t)all->ne[2];
    t.data = (const unsigned char *)all->data + (size_t)expert * t.bytes;
    add(p, how, &t, name);
}

static void add_layer(pieces *p, const expert_tensors *how, const tsr_gguf *gguf, int64_t first, int64_t n)
{
    const int64_t n_experts = tsr_gguf_tensor_at(gguf, first)->ne[2];
    for (int64_t i = 0; i < n * n_experts; i++) {
        const bool by_expert = how->order == EXPERTS_BY_EXPERT;
        const int64_t matrix = by_expert ? i % n : i / n_experts, expert = by_expert ? i / n : i % n_experts;
        add_expert(p, how, tsr_gguf_tensor_at(gguf, first + matrix), expert);
    }
}

static void shuffle(pieces *p)
{
    uint64_t seed = 5;
    for (int i = p->n - 1; i > 0; i--) {
        const int j = (int)random_below(&seed, (uint64_t)i + 1);
        const piece swapped = p->list[i];
        p->list[i] = p->list[j];
        p->list[j] = swapped;
    }
}

static void collect(pieces *p, const expert_tensors *how, const tsr_gguf *gguf)
{
    p->n = 0;
    for (int64_t i = 0, n; i < tsr_gguf_n_tensors(gguf); i += n) {
        for (n = 0; is_of_experts(gguf, i + n);)
            n++;
        if (n > 0) {
            add_layer(p, how, gguf, i, n);
        } else {
            add(p, how, tsr_gguf_tensor_at(gguf, i), tsr_gguf_tensor_at(gguf, i)->name);
            n = 1;
        }
    }
    if (how->order == EXPERTS_SHUFFLED)
        shuffle(p);
}

static void pad(FILE *file)
{
    static const char zeros[ALIGNMENT];
    fwrite(zeros, 1, (size_t)(-ftell(file) & (ALIGNMENT - 1)), file);
}

static void put_info(FILE *file, const piece *p, uint64_t offset)
{
    const uint64_t length = strlen(p->name);
    const uint32_t n_dims = (uint32_t)p->t.n_dims, type = (uint32_t)p->t.type;
    fwrite(&length, sizeof length, 1, file);
    fwrite(p->name, 1, (size_t)length, file);
    fwrite(&n_dims, sizeof n_dims, 1, file);
    fwrite(p->t.ne, sizeof *p->t.ne, n_dims, file);
    fwrite(&type, sizeof type, 1, file);
    fwrite(&offset, sizeof offset, 1, file);
}

/* The header up to the first tensor's name: the keys. */
static void copy_keys(const char *path, const char *first_tensor, uint64_t n_tensors, FILE *file)
{
    enum { MOST = 1 << 20 };
    unsigned char *head = calloc(MOST, 1);
    FILE *from = fopen(path, "rb");
    assert_non_null(head);
    assert_non_null(from);
    const size_t n = fread(head, 1, MOST, from), length = strlen(first_tensor);
    size_t end = HEADER;
    fclose(from);
    while (end + length < n && memcmp(head + end, first_tensor, length) != 0)
        end++;
    assert_true(end + length < n);
    memcpy(head + 8, &n_tensors, sizeof n_tensors);
    fwrite(head, 1, end - sizeof(uint64_t), file); /* without the length of the name */
    free(head);
}

void expert_tensors_write(const char *path, const expert_tensors *how, const char *copy)
{
    tsr_gguf *gguf;
    pieces *p = malloc(sizeof *p);
    FILE *file = fopen(copy, "wb");
    uint64_t offset = 0;
    assert_non_null(p);
    assert_non_null(file);
    runner_ok(tsr_gguf_open(path, NULL, &gguf), path);
    collect(p, how, gguf);
    copy_keys(path, tsr_gguf_tensor_at(gguf, 0)->name, (uint64_t)p->n, file);
    for (int i = 0; i < p->n; i++) {
        put_info(file, &p->list[i], offset);
        offset += tsr_align_up(p->list[i].t.bytes, ALIGNMENT);
    }
    for (int i = 0; i < p->n; i++) {
        pad(file);
        fwrite(p->list[i].t.data, 1, p->list[i].t.bytes, file);
    }
    pad(file);
    assert_int_equal(fclose(file), 0);
    tsr_gguf_close(gguf);
    free(p);
}

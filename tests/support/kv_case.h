/* A small KV region over three fake devices: layer 0 on all, layer 1 on one (as a split by layers has it),
 * layer 2 on two. */
#ifndef TESTS_SUPPORT_KV_CASE_H
#define TESTS_SUPPORT_KV_CASE_H

#include "alloc/kv/kv.h"
#include "support/fake_device.h"

enum { N_DEVICES = 3, N_LAYERS = 3, N_HEADS = 5, HEAD_DIM = 32, N_SEQ = 6, N_CTX = 90, PAGE = 4 };

typedef struct kv_fixture {
    fake_runtime fake;
    tsr_shard_map maps[N_LAYERS];
    tsr_kv_layer layers[N_LAYERS];
    tsr_kv_spec spec;
    tsr_kv *kv;
} kv_fixture;

/* Fill in maps, layers and spec: no windows, n_batch 8. */
void kv_describe(kv_fixture *f, tsr_type type_k, tsr_type type_v);

/* The same, and create the region, with these windows of the layers (NULL: none). */
void kv_open(kv_fixture *f, tsr_type type_k, tsr_type type_v, const int64_t *windows);
void kv_close(kv_fixture *f);

#endif

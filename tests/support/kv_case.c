#include "support/kv_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

void kv_describe(kv_fixture *f, tsr_type type_k, tsr_type type_v)
{
    static const int64_t counts[N_LAYERS][N_DEVICES] = {{3, 1, 1}, {0, 5, 0}, {4, 0, 1}};
    static const uint64_t devices[N_LAYERS] = {7, 2, 7}; /* device 1 is in layer 2's set with no head */
    for (int i = 0; i < N_LAYERS; i++) {
        assert_int_equal(tsr_shard_map_init(N_HEADS, 1, N_DEVICES, counts[i], &f->maps[i]), TSR_OK);
        f->layers[i] = (tsr_kv_layer){
            .devices = devices[i], .kv_heads = &f->maps[i], .k_dim = HEAD_DIM, .v_dim = HEAD_DIM};
    }
    f->spec = (tsr_kv_spec){.n_layers = N_LAYERS,
                            .layers = f->layers,
                            .type_k = type_k,
                            .type_v = type_v,
                            .n_ctx = N_CTX,
                            .n_seq_max = N_SEQ,
                            .n_batch = 8,
                            .page_tokens = PAGE};
}

void kv_open(kv_fixture *f, tsr_type type_k, tsr_type type_v, const int64_t *windows)
{
    memset(f, 0, sizeof *f);
    fake_runtime_open(&f->fake, N_DEVICES, NULL);
    kv_describe(f, type_k, type_v);
    for (int i = 0; i < N_LAYERS && windows; i++)
        f->layers[i].window = windows[i];
    assert_int_equal(tsr_kv_create_spec(&f->fake.rt, &f->spec, &f->kv), TSR_OK);
}

void kv_close(kv_fixture *f)
{
    tsr_kv_destroy(f->kv);
    fake_runtime_close(&f->fake);
}

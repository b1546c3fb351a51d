/* Matrices of one row are divided by rows like others: the row is on one device. Vectors are divided along
 * their only axis. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "model/place.h"
#include "runtime/device_props.h"
#include "support/directory.h"
#include "support/gguf_writer.h"
#include "support/runner.h"

enum { N = 2, N_EMBD = 64 };

/* One head of 64 elements and 256 FFN columns, on two devices: the head is on the second. */
static void split_second(tsr_hparams *hp, tsr_model_granules *granules, tsr_model_split *split)
{
    static const int64_t blocks[TSR_MAX_LAYER_KINDS] = {1};
    static const double shares[N] = {0.5, 0.5};
    const tsr_layer_kind kind = {
        .n_head = 1, .n_head_kv = 1, .head_dim = 64, .n_ff = 256, .rope_q = -1, .rope_k = -1};
    *hp = (tsr_hparams){.n_layers = 1,
                        .n_embd = N_EMBD,
                        .n_vocab = 10,
                        .n_head = 1,
                        .n_head_kv = 1,
                        .head_dim = 64,
                        .n_ff = 256};
    runner_ok(tsr_hparams_set_layer(hp, 0, &kind), "a layer");
    runner_ok(tsr_model_granules_find(hp, blocks, 1, granules), "granules");
    assert_int_equal(granules->n[TSR_CLASS_ATTENTION], 1);
    const int64_t counts[TSR_CLASS_COUNT * N] = {
        0, 1, 0, granules->n[TSR_CLASS_FFN], 0, granules->n[TSR_CLASS_OUTPUT]};
    runner_ok(tsr_model_split_tensor(hp, granules, shares, N, counts, split), "a split");
}

static tsr_gguf *write_tensors(void)
{
    char path[DIRECTORY_PATH];
    tsr_gguf *gguf;
    gguf_writer *w = gguf_writer_create(3);
    gguf_writer_tensor_zero(w, "gate", TSR_TYPE_F16, 2, (int64_t[]){N_EMBD, 1});
    gguf_writer_tensor_zero(w, "part", TSR_TYPE_F16, 1, (int64_t[]){N_EMBD});
    gguf_writer_tensor_zero(w, "sinks", TSR_TYPE_F32, 1, (int64_t[]){1});
    gguf_writer_tensor_zero(w, "bias", TSR_TYPE_F32, 1, (int64_t[]){64});
    close(directory_new(path));
    gguf_writer_save(w, path);
    gguf_writer_destroy(w);
    runner_ok(tsr_gguf_open(path, NULL, &gguf), path);
    unlink(path);
    return gguf;
}

static void check(const tsr_tensor *tensor, int axis, int64_t extent)
{
    const tsr_placement *place = &tensor->placement;
    assert_int_equal(place->sharding, TSR_SHARDING_SPLIT);
    assert_int_equal(place->axis, axis);
    assert_int_equal(tsr_shard_map_count(place->map, 0), 0);
    assert_int_equal(tsr_shard_map_count(place->map, 1), extent);
}

static void a_matrix_of_one_row_is_divided_by_rows(void **state)
{
    (void)state;
    static tsr_hparams hp;
    tsr_model_granules granules;
    tsr_model_split split;
    tsr_weights w;
    tsr_runtime *rt;
    tsr_tensor *gate, *part, *sinks, *bias;
    tsr_device_props props[N] = {{.name = "host0", .memory_cap = 1 << 30},
                                 {.name = "host1", .memory_cap = 1 << 30}};
    const tsr_weight_rows row = {N_EMBD, 0, 1, 1};
    const tsr_weights_placing placing = {0};
    tsr_gguf *gguf = write_tensors();
    split_second(&hp, &granules, &split);
    runner_ok(tsr_runtime_open_dry(props, N, &rt), "devices");
    runner_ok(tsr_weights_init(&w, gguf, 1), "weights");
    runner_ok(tsr_weights_declare_rows(&w, true, TSR_WEIGHT_Q_HEADS, 0, row, &gate, "gate"), "gate");
    runner_ok(tsr_weights_declare_rows(&w, true, TSR_WEIGHT_KV_ROWS, 0, row, &part, "part"), "part");
    tsr_weights_cut_every(part, 1);
    runner_ok(tsr_weights_declare(&w, true, TSR_WEIGHT_Q_HEADS, 0, 1, 1, &sinks, "sinks"), "sinks");
    runner_ok(tsr_weights_declare(&w, true, TSR_WEIGHT_Q_ROWS, 0, 64, 1, &bias, "bias"), "bias");
    runner_ok(tsr_weights_place(&w, NULL, rt, &split, &placing), "places");
    check(gate, 1, 1);
    check(part, 1, 1);
    check(sinks, 0, 1);
    check(bias, 0, 64);
    tsr_weights_free(&w);
    tsr_runtime_close(rt);
    tsr_model_split_free(&split);
    tsr_gguf_close(gguf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_matrix_of_one_row_is_divided_by_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

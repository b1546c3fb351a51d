/* Files with a tensor for each expert: the bits of a file with one tensor for all, whatever the order of the
 * tensors and the split; what is copied, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <tsr/plan.h>
#include <tsr/runtime.h>
#include <tsr/split.h>

#include "alloc/buffer/buffer.h"
#include "core/mem.h"
#include "model/model.h"
#include "support/directory.h"
#include "support/expert_tensors.h"
#include "support/failing_alloc.h"
#include "support/resplit_walk.h"
#include "support/runner.h"
#include "support/synth_model.h"

enum { N_TOKENS = 40, N_VOCAB = 300, N_EXPERTS = 5, N_LAYERS = 2 };

static char joined[DIRECTORY_PATH], separate[DIRECTORY_PATH];

static void write_joined(tsr_type type)
{
    struct synth_model_config config = SYNTH_MODEL_CONFIG_INIT;
    config.weight_type = type;
    config.n_layers = N_LAYERS;
    config.n_embd = 96;
    config.n_heads = 4;
    config.n_kv_heads = 2;
    config.n_ff = 416;
    config.n_experts = N_EXPERTS;
    config.n_experts_used = 2;
    config.n_vocab = N_VOCAB;
    snprintf(joined, sizeof joined, "%s", directory_file("joined.gguf"));
    snprintf(separate, sizeof separate, "%s", directory_file("separate.gguf"));
    synth_model_write(&config, joined);
}

static void write_separate(expert_order order)
{
    expert_tensors_write(joined, &(expert_tensors){.order = order}, separate);
}

static void decode(runner *r, int64_t chunk, float *logits)
{
    int32_t tokens[N_TOKENS];
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (i * 97 + 11) % N_VOCAB;
    runner_ok(tsr_session_trim(r->session, 0, 0), "trim");
    runner_decode(r, tokens, N_TOKENS, chunk, true, logits);
}

static void resplit(runner *r, const char *split)
{
    float proportions[TSR_MAX_DEVICES];
    int n;
    runner_ok(tsr_split_parse(split, proportions, TSR_MAX_DEVICES, &n), split);
    runner_ok(tsr_model_resplit(r->model, proportions, n), split);
}

static void check_bits(const float *logits, const float *plain, const char *what)
{
    if (memcmp(logits, plain, N_TOKENS * N_VOCAB * sizeof *logits) != 0)
        fail_msg("%s: other bits", what);
}

static void open_model(runner *r, const char *devices, const char *split, tsr_expert_split experts,
                       bool verify)
{
    tsr_model_config config = tsr_model_config_default();
    config.split.experts = experts;
    config.load.verify_upload = verify;
    runner_open(r, separate, devices, split, &config);
}

/* Several splits one after another, back to the first. */
static void check_splits(const float *plain, const char *devices, tsr_expert_split experts, bool verify)
{
    static const char *const splits[] = {"1,1,1", "3,0,1", "1,4,2", "0,0,1", "1,1,1"};
    float *logits = calloc(N_TOKENS * N_VOCAB, sizeof *logits);
    runner r;
    assert_non_null(logits);
    open_model(&r, devices, splits[0], experts, verify);
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        if (i > 0)
            resplit(&r, splits[i]);
        decode(&r, i % 2 ? 1 : 0, logits);
        check_bits(logits, plain, splits[i]);
        walk_check_accounting(&(walk){.devices = devices, .rt = r.rt, .model = r.model});
    }
    runner_close(&r);
    free(logits);
}

static void the_bits_are_those_of_joined_tensors(void **state)
{
    static const tsr_type types[] = {TSR_TYPE_F16, TSR_TYPE_Q8_0};
    (void)state;
    float *plain = calloc(N_TOKENS * N_VOCAB, sizeof *plain);
    assert_non_null(plain);
    for (int i = 0; i < 2; i++) {
        tsr_model_config config = tsr_model_config_default();
        runner r;
        write_joined(types[i]);
        runner_open(&r, joined, "host:1,threads=1", NULL, &config);
        decode(&r, 0, plain);
        runner_close(&r);
        for (int order = EXPERTS_BY_MATRIX; order <= EXPERTS_SHUFFLED; order++) {
            write_separate((expert_order)order);
            check_splits(plain, "host:3,threads=1", TSR_EXPERT_SPLIT_COLUMNS, false);
            check_splits(plain, "host:3,threads=1", TSR_EXPERT_SPLIT_EXPERTS, true);
        }
    }
    free(plain);
}

/* Bytes of the device's memory that are no views of the file. */
static size_t copied_bytes(const tsr_model *model)
{
    size_t bytes = 0;
    const tsr_buffer *buffer = model->weights.buffer;
    for (int i = 0; i < buffer->n_regions; i++)
        bytes += buffer->regions[i].wrapped ? 0 : buffer->regions[i].bytes;
    return bytes;
}

static void only_experts_without_a_common_distance_are_copied(void **state)
{
    static const size_t n_matrices = 3 * N_LAYERS, of_experts = N_EXPERTS * 96 * 416 * sizeof(uint16_t);
    (void)state;
    write_joined(TSR_TYPE_F16);
    for (int order = EXPERTS_BY_MATRIX; order <= EXPERTS_SHUFFLED; order++) {
        runner r;
        write_separate((expert_order)order);
        open_model(&r, "host:1,threads=1", NULL, TSR_EXPERT_SPLIT_COLUMNS, false);
        assert_int_equal(copied_bytes(r.model), order == EXPERTS_SHUFFLED ? n_matrices * of_experts : 0);
        runner_close(&r);
    }
}

/* Bytes of weights that are planned for a file, or for its first `length` bytes, which have the header. */
static size_t planned_bytes(const char *path, int64_t length)
{
    const float even[] = {1, 1};
    tsr_gguf_config header = tsr_gguf_config_default();
    tsr_model_config config = tsr_model_config_default();
    tsr_topology *topo;
    tsr_device_list *list;
    tsr_gguf *gguf;
    tsr_plan *plan;
    tsr_plan_device d;
    size_t bytes = 0;
    if (length > 0)
        runner_ok(truncate(path, length) == 0 ? TSR_OK : TSR_ERR_IO, path);
    header.header_only = true;
    config.split.tensor_split = even;
    config.split.n_tensor_split = 2;
    runner_ok(tsr_topology_discover(NULL, &topo), "topology");
    runner_ok(tsr_device_list_create(topo, "host:2,threads=1", NULL, &list), "devices");
    runner_ok(tsr_gguf_open(path, &header, &gguf), path);
    runner_ok(tsr_plan_create(gguf, list, &config, &plan), path);
    for (int i = 0; i < 2; i++) {
        runner_ok(tsr_plan_get_device(plan, i, &d), "device");
        bytes += d.bytes[TSR_MEMORY_WEIGHTS];
    }
    tsr_plan_destroy(plan);
    tsr_gguf_close(gguf);
    tsr_device_list_destroy(list);
    tsr_topology_destroy(topo);
    return bytes;
}

static int64_t header_length(const char *path)
{
    tsr_gguf *gguf;
    runner_ok(tsr_gguf_open(path, NULL, &gguf), path);
    int64_t length = INT64_MAX;
    for (int64_t i = 0; i < tsr_gguf_n_tensors(gguf); i++)
        length = TSR_MIN(length, (int64_t)tsr_gguf_tensor_at(gguf, i)->offset);
    tsr_gguf_close(gguf);
    return length;
}

static void a_header_alone_is_planned_alike(void **state)
{
    (void)state;
    write_joined(TSR_TYPE_Q8_0);
    for (int order = EXPERTS_BY_MATRIX; order <= EXPERTS_SHUFFLED; order++) {
        write_separate((expert_order)order);
        const size_t bytes = planned_bytes(separate, 0);
        assert_int_equal(planned_bytes(separate, header_length(separate)), bytes);
    }
}

static void check_refused(const char *dropped, const char *retyped, tsr_status expected, const char *why)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt;
    tsr_model *model = NULL;
    config.devices = "host:1,threads=1";
    expert_tensors_write(joined, &(expert_tensors){EXPERTS_BY_EXPERT, dropped, retyped}, separate);
    runner_ok(tsr_runtime_open(&config, &rt), "runtime");
    assert_int_equal(tsr_model_open(rt, separate, NULL, &model), expected);
    if (!strstr(tsr_last_error(), why))
        fail_msg("this should say \"%s\": %s", why, tsr_last_error());
    tsr_runtime_close(rt);
}

static void experts_that_are_missing_or_of_other_types_are_named(void **state)
{
    (void)state;
    write_joined(TSR_TYPE_F16);
    check_refused("blk.1.ffn_up.3.weight", NULL, TSR_ERR_FORMAT, "blk.1.ffn_up.3.weight is missing");
    check_refused(NULL, "blk.0.ffn_down.2.weight", TSR_ERR_UNSUPPORTED,
                  "blk.0.ffn_down.0.weight is F16 and tensor blk.0.ffn_down.2.weight is BF16");
    check_refused("blk.0.ffn_gate.0.weight", NULL, TSR_ERR_FORMAT, "blk.0.ffn_gate");
}

static void every_allocation_can_fail(void **state)
{
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_runtime *rt;
    (void)state;
    write_joined(TSR_TYPE_F16);
    write_separate(EXPERTS_SHUFFLED);
    config.devices = "host:1,threads=1";
    runner_ok(tsr_runtime_open(&config, &rt), "runtime");
    for (int n = 1;; n++) {
        const int64_t blocks = failing_alloc_live(), maps = failing_alloc_live_maps();
        tsr_model *model = NULL;
        failing_alloc_set(n);
        const tsr_status status = tsr_model_open(rt, separate, NULL, &model);
        const bool fired = failing_alloc_fired();
        failing_alloc_set(0);
        if (status == TSR_OK) /* some allocations can be done without */
            tsr_model_close(model);
        if (!fired)
            break;
        assert_true(status == TSR_OK || !model);
        assert_int_equal(failing_alloc_live(), blocks);
        assert_int_equal(failing_alloc_live_maps(), maps);
    }
    tsr_runtime_close(rt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_of_joined_tensors),
        cmocka_unit_test(only_experts_without_a_common_distance_are_copied),
        cmocka_unit_test(a_header_alone_is_planned_alike),
        cmocka_unit_test(experts_that_are_missing_or_of_other_types_are_named),
        cmocka_unit_test(every_allocation_can_fail),
    };
    return cmocka_run_group_tests_name("a tensor for each expert", tests, NULL, NULL);
}

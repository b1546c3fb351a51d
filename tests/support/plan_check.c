/* See plan_check.h. Sums over the tensors of the file and over devices; nothing clever. */
#include "support/plan_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "alloc/kv/kv.h"
#include "core/gpu.h"
#include "core/mem.h"
#include "plan/plan.h"

typedef struct checked {
    const tsr_plan *plan;
    const tsr_gguf *gguf;
    const tsr_model_config *config;
    bool automatic;
    bool mixed;                    /* layers may differ: offload, or groups in a row */
    bool copies;                   /* weights, rather than views of them */
    size_t alignment, granularity; /* of the devices */
    tsr_plan_info info;
    tsr_plan_device devices[TSR_MAX_DEVICES];
} checked;

/* The share that the config asks for, computed the obvious way. */
static double requested(const checked *c, int d)
{
    double sum = 0;
    if (c->info.mode == TSR_SPLIT_MODE_NONE)
        return d == c->config->split.main_device;
    for (int i = 0; c->config->split.tensor_split && i < c->config->split.n_tensor_split; i++)
        sum += (double)c->config->split.tensor_split[i];
    if (sum == 0)
        return 1.0 / c->info.n_devices;
    return d < c->config->split.n_tensor_split ? (double)c->config->split.tensor_split[d] / sum : 0;
}

static void check_shares(const checked *c, bool capped)
{
    double sum = 0;
    int64_t n_layers = 0;
    for (int d = 0; d < c->info.n_devices; d++) {
        const tsr_plan_device *device = &c->devices[d];
        size_t total = 0;
        if (!c->automatic && !c->mixed) /* else the planner's own, or of fewer devices */
            assert_float_equal(device->requested, requested(c, d), 1e-9);
        sum += device->requested;
        n_layers += device->n_layers;
        for (int o = 0; o < TSR_MEMORY_COUNT; o++)
            total += device->bytes[o];
        assert_int_equal(device->total_bytes, total);
        assert_int_equal(device->used, total > 0);
        assert_true(total <= device->memory_cap);
        if (device->requested == 0 && !c->mixed && c->info.prompt_tokens == 0) { /* left out altogether */
            assert_int_equal(total, 0);
            assert_int_equal(device->n_layers, 0);
        }
        assert_int_equal(device->missing_bytes, 0);
        if (device->memory_cap == SIZE_MAX)
            assert_int_equal(device->free_bytes, SIZE_MAX);
        else
            assert_true(device->free_bytes <= device->memory_cap - device->total_bytes);
        if (device->requested > 0 && !capped && !c->mixed && c->info.mode == TSR_SPLIT_MODE_LAYER)
            assert_true(fabs((double)device->n_layers - device->requested * (double)(c->info.n_layers + 1)) <
                        2); /* the output matrix is one item more */
    }
    assert_true(c->info.fits);
    assert_float_equal(sum, 1, 1e-9);
    if (c->info.mode != TSR_SPLIT_MODE_TENSOR && !c->mixed)
        assert_int_equal(n_layers, c->info.n_layers);
}

static void check_classes(const checked *c, bool capped)
{
    for (int k = 0; k < TSR_CLASS_COUNT; k++) {
        int64_t n = 0;
        double share = 0;
        for (int d = 0; d < c->info.n_devices; d++) {
            const tsr_plan_device *device = &c->devices[d];
            n += device->granules[k];
            share += device->achieved[k];
            assert_true(device->granules[k] >= 0);
            if (c->info.mode != TSR_SPLIT_MODE_TENSOR || c->mixed)
                continue;
            assert_float_equal(device->achieved[k],
                               (double)device->granules[k] / (double)c->info.n_granules[k], 1e-12);
            if (!capped && !c->automatic) /* largest remainder: less than one granule off */
                assert_true(fabs((double)device->granules[k] -
                                 device->requested * (double)c->info.n_granules[k]) < 1.0 + 1e-5);
        }
        assert_float_equal(share, 1, 1e-9);
        if (c->info.mode == TSR_SPLIT_MODE_TENSOR && !c->mixed)
            assert_int_equal(n, c->info.n_granules[k]);
    }
}

/* Device d holds elements [first of d, first of d + 1) of the axis: all of it, in order, without a gap. */
static void check_map(const checked *c, const tsr_split_group *group, const tsr_shard_map *map,
                      int64_t extent)
{
    int64_t next = 0;
    /* No block of that class is in the group; a stage that the planner chose may be the output alone. */
    bool stage = c->automatic && c->info.mode == TSR_SPLIT_MODE_LAYER;
    if ((c->mixed || stage) && map->extent == 0)
        return;
    assert_int_equal(map->extent, extent);
    assert_int_equal(map->n_devices, c->info.n_devices);
    for (int d = 0; d < map->n_devices; d++) {
        int64_t first = map->begin[d] * map->granule, end = map->begin[d + 1] * map->granule;
        first = first < extent ? first : extent;
        end = end < extent ? end : extent;
        assert_int_equal(first, next);
        assert_true(end >= first);
        if (end > first)
            assert_true(group->devices >> d & 1);
        next = end;
    }
    assert_int_equal(next, extent);
}

/* The architecture's key, or `otherwise` where the file has none. */
static int64_t key(const checked *c, const char *suffix, int64_t otherwise)
{
    tsr_gguf_string arch;
    uint64_t value;
    char name[128];
    assert_int_equal(tsr_gguf_get_string(c->gguf, "general.architecture", &arch), TSR_OK);
    snprintf(name, sizeof name, "%.*s.%s", (int)arch.bytes, arch.data, suffix);
    if (!tsr_gguf_has_key(c->gguf, name))
        return otherwise;
    assert_int_equal(tsr_gguf_get_u64(c->gguf, name, &value), TSR_OK);
    return (int64_t)value;
}

static int64_t head_dim_of(const checked *c)
{
    int64_t width = key(c, "embedding_length", 0) / key(c, "attention.head_count", 1);
    return key(c, "attention.key_length", width);
}

static int64_t rows_of(const checked *c, const char *name)
{
    const tsr_gguf_tensor *tensor = tsr_gguf_find_tensor(c->gguf, name);
    assert_non_null(tensor);
    return tensor->ne[1];
}

/* Of the FFN's axis: columns, or whole experts. */
static int64_t ffn_extent(const checked *c)
{
    const int64_t columns = key(c, "feed_forward_length", 0);
    if (!c->info.has_experts)
        return columns;
    return c->info.expert_split == TSR_EXPERT_SPLIT_EXPERTS ? key(c, "expert_count", 0)
                                                            : key(c, "expert_feed_forward_length", columns);
}

static void check_maps(const checked *c)
{
    const tsr_model_split *split = tsr_plan_split(c->plan);
    int64_t n_heads = key(c, "attention.head_count", 0), n_kv = key(c, "attention.head_count_kv", n_heads);
    int64_t head_dim = head_dim_of(c);
    for (int g = 0; g < split->n_groups; g++) {
        const tsr_split_group *group = &split->groups[g];
        check_map(c, group, &group->q, n_heads * head_dim);
        check_map(c, group, &group->kv, n_kv * head_dim);
        check_map(c, group, &group->kv_heads, n_kv);
        check_map(c, group, &group->ffn, ffn_extent(c));
        check_map(c, group, &group->vocab, rows_of(c, "token_embd.weight"));
        for (int d = 0; d < c->info.n_devices; d++) /* heads go together with their rows */
            assert_int_equal(group->q.begin[d], group->kv.begin[d]);
    }
}

/* The devices of the block that a norm belongs to. */
static int n_devices_of(const checked *c, const char *name)
{
    const tsr_model_split *split = tsr_plan_split(c->plan);
    int layer, group = split->output_group;
    if (sscanf(name, "blk.%d.", &layer) == 1)
        group = strstr(name, "ffn") || strstr(name, "ffw") ? split->ffn_group[layer]
                                                           : split->attention_group[layer];
    return __builtin_popcountll(split->groups[group].devices);
}

static bool is_architecture(const checked *c, const char *name)
{
    tsr_gguf_string arch;
    assert_int_equal(tsr_gguf_get_string(c->gguf, "general.architecture", &arch), TSR_OK);
    return strlen(name) == arch.bytes && memcmp(name, arch.data, arch.bytes) == 0;
}

static bool is_norm_of_all_heads(const checked *c, const tsr_gguf_tensor *tensor)
{
    return (strstr(tensor->name, "attn_q_norm") || strstr(tensor->name, "attn_k_norm")) &&
           (is_architecture(c, "olmo2") || is_architecture(c, "olmoe") || is_architecture(c, "minimax-m2"));
}

/* Biases of what is divided by rows are divided with it, and norms over all heads with the heads; a router is
 * whole. */
static bool is_divided(const checked *c, const tsr_gguf_tensor *tensor)
{
    static const char *const names[] = {"attn_q.bias",   "attn_k.bias", "attn_v.bias", "attn_qkv.bias",
                                        "ffn_gate.bias", "ffn_up.bias", "attn_sinks"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strstr(tensor->name, names[i]))
            return true;
    return is_norm_of_all_heads(c, tensor) || (tensor->n_dims > 1 && !strstr(tensor->name, "ffn_gate_inp"));
}

/* Matrices once, norms and routers once per device that works on their block, the embedding a second time
 * where a tied output matrix is elsewhere. Copies add padding of less than the alignment per tensor and
 * device; up to three matrices are one tensor of the file. With a split of prompts, at most twice as much. */
static void check_weights(const checked *c)
{
    const tsr_model_split *split = tsr_plan_split(c->plan);
    size_t expected = 0, planned = 0, n_used = 0, slack = 0;
    for (int d = 0; d < c->info.n_devices; d++) {
        planned += c->devices[d].bytes[TSR_MEMORY_WEIGHTS];
        n_used += c->devices[d].used;
    }
    for (int64_t i = 0; i < tsr_gguf_n_tensors(c->gguf); i++) {
        const tsr_gguf_tensor *tensor = tsr_gguf_tensor_at(c->gguf, i);
        if (strncmp(tensor->name, "rope_", 5) == 0) /* read on the caller's side */
            continue;
        expected += tensor->bytes * (size_t)(is_divided(c, tensor) ? 1 : n_devices_of(c, tensor->name));
    }
    if (!tsr_gguf_find_tensor(c->gguf, "output.weight") && split->embedding_group != split->output_group)
        expected += tsr_gguf_find_tensor(c->gguf, "token_embd.weight")->bytes;
    if (c->copies)
        slack = n_used * c->alignment * (size_t)(3 * tsr_gguf_n_tensors(c->gguf) + 1);
    assert_true(planned >= expected);
    assert_true(planned <= (expected + slack) * (c->info.prompt_tokens > 0 ? 2 : 1));
}

/* Positions that a layer sees; 0: all. Of every n layers all but the last have a window. */
static int64_t window_of(const checked *c, int64_t layer)
{
    static const struct {
        const char *arch;
        int64_t period;
    } families[] = {{"gemma2", 2}, {"gemma3", 6}, {"gpt-oss", 2},    {"cohere2", 4},
                    {"olmo2", 4},  {"phi3", 0},   {"starcoder2", 0}, {"exaone4", 4}};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (!is_architecture(c, families[i].arch))
            continue;
        int64_t period = key(c, "attention.sliding_window_pattern", families[i].period);
        return period == 0 || layer % period < period - 1 ? key(c, "attention.sliding_window", 0) : 0;
    }
    return 0;
}

/* Pages of a layer: those of the context, each sequence ending in the middle of one; or in all sequences
 * those that a window and a batch touch, wherever they begin. */
static int64_t pages_of(const checked *c, int64_t layer)
{
    int64_t page = TSR_KV_PAGE_TOKENS, window = window_of(c, layer), most = 0;
    int64_t all = (c->info.n_ctx + c->info.n_seq_max * (page - 1)) / page;
    if (window == 0 || c->config->session.swa_full)
        return all;
    for (int64_t begin = 0; begin < page; begin++) {
        int64_t last = begin + window - 1 + c->info.n_batch - 1;
        most = last / page + 1 > most ? last / page + 1 : most;
    }
    return most * c->info.n_seq_max < all ? most * c->info.n_seq_max : all;
}

/* Keys and values of every page of the layers with a window, or without, rounded up per part and device. */
static void check_kv_of(const checked *c, bool windowed, size_t planned)
{
    int64_t n_heads = key(c, "attention.head_count", 0), n_kv = key(c, "attention.head_count_kv", n_heads);
    int64_t head_dim = head_dim_of(c), n_pages = 0;
    for (int64_t l = 0; l < c->info.n_layers; l++)
        n_pages += (window_of(c, l) > 0) == windowed ? pages_of(c, l) : 0;
    size_t row = tsr_type_row_bytes(c->info.type_k, head_dim) + tsr_type_row_bytes(c->info.type_v, head_dim);
    size_t exact = (size_t)(n_pages * TSR_KV_PAGE_TOKENS * n_kv) * row;
    size_t slack = (size_t)c->info.n_devices * ((size_t)n_pages * 2 * c->alignment + c->granularity);
    assert_true(planned >= exact && planned <= (n_pages ? exact + slack : 0));
}

static void check_kv(const checked *c)
{
    size_t all = 0, windowed = 0;
    int64_t n_windowed = 0;
    for (int64_t l = 0; l < c->info.n_layers; l++)
        n_windowed += window_of(c, l) > 0;
    assert_int_equal(c->info.n_windowed, n_windowed);
    assert_int_equal(c->info.window, n_windowed ? key(c, "attention.sliding_window", 0) : 0);
    for (int d = 0; d < c->info.n_devices; d++) {
        const tsr_plan_device *device = &c->devices[d];
        all += device->bytes[TSR_MEMORY_KV];
        windowed += device->kv_windowed_bytes;
        assert_true(device->kv_windowed_bytes <= device->bytes[TSR_MEMORY_KV]);
        assert_int_equal(device->bytes[TSR_MEMORY_KV] > 0, device->granules[TSR_CLASS_ATTENTION] > 0);
    }
    check_kv_of(c, true, windowed);
    check_kv_of(c, false, all - windowed);
}

static void check(checked c, bool capped)
{
    const tsr_plan *plan = c.plan;
    const tsr_model_config *config = c.config;
    tsr_plan_times times;
    tsr_plan_get_info(plan, &c.info);
    tsr_plan_predict(plan, &times);
    c.automatic = times.automatic;
    c.mixed = config->offload.n_gpu_layers >= 0 || config->offload.n_rules > 0 ||
              config->split.mode == TSR_SPLIT_MODE_AUTO;
    assert_true(times.decode.total_ns > 0 && times.prompt.total_ns > 0);
    if (config->split.mode != TSR_SPLIT_MODE_AUTO)
        assert_int_equal(c.info.mode, config->split.mode);
    assert_int_equal(c.info.n_layers, key(&c, "block_count", 0));
    for (int d = 0; d < c.info.n_devices; d++)
        assert_int_equal(tsr_plan_get_device(plan, d, &c.devices[d]), TSR_OK);
    check_shares(&c, capped);
    check_classes(&c, capped);
    check_maps(&c);
    check_weights(&c);
    check_kv(&c);
    for (int d = 0; d < c.info.n_devices; d++) /* the packing is as small as any */
        assert_int_equal(c.devices[d].bytes[TSR_MEMORY_ARENA], c.devices[d].arena_bound_bytes);
}

void plan_check(const tsr_plan *plan, const tsr_gguf *gguf, const tsr_model_config *config, bool capped)
{
    const checked c = {.plan = plan,
                       .gguf = gguf,
                       .config = config,
                       .copies = config->load.copy_weights,
                       .alignment = 64,
                       .granularity = 65536};
    check(c, capped);
}

void plan_check_gpus(const tsr_plan *plan, const tsr_gguf *gguf, const tsr_model_config *config,
                     size_t granularity)
{
    const checked c = {.plan = plan,
                       .gguf = gguf,
                       .config = config,
                       .copies = true,
                       .alignment = TSR_GPU_ALIGNMENT,
                       .granularity = granularity};
    check(c, false);
}

void plan_check_equal(const tsr_plan *a, const tsr_plan *b)
{
    tsr_plan_info info[2];
    tsr_plan_get_info(a, &info[0]);
    tsr_plan_get_info(b, &info[1]);
    info[1].n_ctx_fitted = info[0].n_ctx_fitted; /* a config may state what a fit chose */
    assert_memory_equal(&info[0], &info[1], sizeof info[0]);
    for (int d = 0; d < info[0].n_devices; d++) {
        tsr_plan_device device[2];
        assert_int_equal(tsr_plan_get_device(a, d, &device[0]), TSR_OK);
        assert_int_equal(tsr_plan_get_device(b, d, &device[1]), TSR_OK);
        assert_string_equal(device[0].name, device[1].name);
        assert_int_equal(device[0].used, device[1].used);
        device[1].free_bytes = device[0].free_bytes;         /* other processes change what is available */
        size_t begin = offsetof(tsr_plan_device, requested); /* no padding from here on */
        assert_memory_equal((char *)&device[0] + begin, (char *)&device[1] + begin, sizeof device[0] - begin);
    }
    for (int i = 0; tsr_plan_note(a, i) || tsr_plan_note(b, i); i++) {
        assert_non_null(tsr_plan_note(a, i));
        assert_non_null(tsr_plan_note(b, i));
        assert_string_equal(tsr_plan_note(a, i), tsr_plan_note(b, i));
    }
}

/* Checking a model's config, and filling in the values that it leaves open. */
#include "model/config.h"

#include "core/config.h"
#include "core/mem.h"
#include "core/status.h"
#include "graph/graph.h"

static tsr_status check_range(const char *name, int64_t value, int64_t low, int64_t high)
{
    if (value >= low && value <= high)
        return TSR_OK;
    return tsr_fail(TSR_ERR_INVALID, "%s is %lld; it must be in [%lld, %lld]", name, (long long)value,
                    (long long)low, (long long)high);
}

/* The KV region checks that the blocks of a type divide a head. */
static tsr_status check_kv_type(const char *name, tsr_type type)
{
    static const tsr_type types[] = {TSR_TYPE_F32, TSR_TYPE_F16, TSR_TYPE_BF16, TSR_TYPE_Q8_0, TSR_TYPE_Q4_0};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (type == types[i])
            return TSR_OK;
    return tsr_fail(TSR_ERR_INVALID, "%s is %s; use F32, F16, BF16, Q8_0 or Q4_0", name, tsr_type_name(type));
}

size_t tsr_model_config_init(tsr_model_config *config_out, size_t size)
{
    const tsr_model_config defaults = {
        .split = {.mode = TSR_SPLIT_MODE_TENSOR, .experts = TSR_EXPERT_SPLIT_AUTO},
        .offload = {.n_gpu_layers = -1},
        .session =
            {.n_seq_max = 1, .n_batch = 512, .type_k = TSR_TYPE_F16, .type_v = TSR_TYPE_F16, .n_sessions = 1},
        .compute = {.reduction = TSR_REDUCTION_EXACT, .activation_bits = 16},
        .workload = {.n_prompt = 512, .n_new = 128},
    };
    return tsr_config_write(&defaults, sizeof defaults, config_out, size);
}

tsr_status tsr_model_config_read(const tsr_model_config *config, tsr_model_config *config_out)
{
    tsr_model_config own = tsr_model_config_default();
    tsr_status status =
        tsr_config_read("tsr_model_config", config, offsetof(tsr_model_config, plan), &own, sizeof own);
    if (status == TSR_OK)
        *config_out = own;
    return status;
}

tsr_status tsr_model_config_resolve(const tsr_model_shape *shape, const tsr_model_config *config,
                                    tsr_model_config *resolved_out)
{
    tsr_status status = TSR_OK;
    tsr_model_config c = config ? *config : tsr_model_config_default();
    if (c.session.n_ctx == 0)
        c.session.n_ctx = shape->hparams.n_ctx_train;
    if (c.session.n_outputs_max == 0)
        c.session.n_outputs_max = c.output.embeddings ? c.session.n_batch : c.session.n_seq_max;
    if (c.workload.n_seq == 0)
        c.workload.n_seq = c.session.n_seq_max;
    TSR_TRY(check_range("n_ctx", c.session.n_ctx, 1, INT32_MAX / 2));
    TSR_TRY(check_range("n_seq_max", c.session.n_seq_max, 1, 1 << 16));
    TSR_TRY(check_range("n_sessions", c.session.n_sessions, 1, 1 << 10));
    TSR_TRY(check_range("n_batch", c.session.n_batch, 1, 1 << 16));
    TSR_TRY(check_range("n_outputs_max", c.session.n_outputs_max, 1, 1 << 16));
    TSR_TRY(check_range("split.mode", c.split.mode, TSR_SPLIT_MODE_NONE, TSR_SPLIT_MODE_AUTO));
    TSR_TRY(check_range("split.experts", c.split.experts, TSR_EXPERT_SPLIT_COLUMNS, TSR_EXPERT_SPLIT_AUTO));
    TSR_TRY(check_kv_type("type_k", c.session.type_k));
    TSR_TRY(check_kv_type("type_v", c.session.type_v));
    TSR_TRY(check_range("workload.n_prompt", c.workload.n_prompt, 0, 1 << 30));
    TSR_TRY(check_range("workload.n_new", c.workload.n_new, c.workload.n_prompt == 0, 1 << 30));
    TSR_TRY(check_range("workload.n_seq", c.workload.n_seq, 1, c.session.n_seq_max));
    if (c.prompt.n_tokens != 0)
        TSR_TRY(check_range("prompt.n_tokens", c.prompt.n_tokens, 2, 1 << 16));
    if (c.output.embeddings && c.prediction.load)
        TSR_TRY(tsr_fail(TSR_ERR_INVALID, "output.embeddings and prediction.load exclude each other: a "
                                          "prediction layer proposes tokens; set one of them"));
    if (!tsr_activation_bits_known(c.compute.activation_bits))
        TSR_TRY(tsr_fail(TSR_ERR_INVALID, "activation_bits is %d; it must be 16 or 8",
                         c.compute.activation_bits));
    TSR_TRY(check_range("reduction", c.compute.reduction, TSR_REDUCTION_EXACT, TSR_REDUCTION_BF16));
    c.session.n_batch = (int)TSR_MIN((int64_t)c.session.n_batch, c.session.n_ctx);
    c.session.n_outputs_max = TSR_MIN(c.session.n_outputs_max, c.session.n_batch);
    *resolved_out = c;
out:
    return status;
}

/* The rules of a fit: the settings that may be reduced, their order, and the cuts of each. Cut 0 is the
 * wanted value. */
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "plan/fit/fit.h"

/* -- context -- */

/* Cut 1 is the largest multiple of TSR_FIT_CTX_STEP below the full context, every further cut the next
 * multiple, and the last cut the least context. */
static int64_t context_cuts(const tsr_fitting *fitting)
{
    int64_t full = fitting->fit->info.wanted.n_ctx, least = fitting->limits.n_ctx_min;
    bool open = fitting->given->session.n_ctx == 0;
    return open && full > least ? (full - 1) / TSR_FIT_CTX_STEP - least / TSR_FIT_CTX_STEP + 1 : 0;
}

static void cut_context(const tsr_fitting *fitting, int64_t cut, tsr_model_config *config)
{
    int64_t full = fitting->fit->info.wanted.n_ctx, n_steps = (full - 1) / TSR_FIT_CTX_STEP - cut + 1;
    config->session.n_ctx = cut == 0                       ? full
                            : cut == context_cuts(fitting) ? fitting->limits.n_ctx_min
                                                           : n_steps * TSR_FIT_CTX_STEP;
}

/* -- KV types -- */

static bool is_smaller(tsr_type a, tsr_type b)
{
    return tsr_type_block_bytes(a) * (size_t)tsr_type_block_elems(b) <
           tsr_type_block_bytes(b) * (size_t)tsr_type_block_elems(a);
}

static int64_t kv_type_cuts(const tsr_fitting *fitting)
{
    const tsr_fit_config *limits = &fitting->limits;
    return is_smaller(limits->type_k, fitting->fit->info.wanted.type_k) ||
           is_smaller(limits->type_v, fitting->fit->info.wanted.type_v);
}

static void cut_kv_type(const tsr_fitting *fitting, int64_t cut, tsr_model_config *config)
{
    const tsr_fit_config *limits = &fitting->limits;
    if (cut && is_smaller(limits->type_k, config->session.type_k))
        config->session.type_k = limits->type_k;
    if (cut && is_smaller(limits->type_v, config->session.type_v))
        config->session.type_v = limits->type_v;
}

/* -- offload -- */

/* Cut n offloads the experts of the first n layers. The last layer with experts is the last cut. */
static int64_t expert_cuts(const tsr_fitting *fitting)
{
    int64_t n = 0;
    if (fitting->offload_device < 0 || fitting->given->offload.n_cpu_moe)
        return 0;
    for (int i = 0; i < fitting->planner->weights.n; i++)
        if (fitting->planner->weights.list[i]->expert)
            n = TSR_MAX(n, fitting->planner->weights.list[i]->layer + 1);
    return n;
}

static void cut_experts(const tsr_fitting *fitting, int64_t cut, tsr_model_config *config)
{
    (void)fitting;
    config->offload.n_cpu_moe = (int)cut;
}

/* Cut 1 offloads embedding and output, and every further cut one more layer. */
static int64_t layer_cuts(const tsr_fitting *fitting)
{
    bool open = fitting->offload_device >= 0 && fitting->given->offload.n_gpu_layers == -1;
    return open ? fitting->planner->shape.hparams.n_layers + 1 : 0;
}

static void cut_layers(const tsr_fitting *fitting, int64_t cut, tsr_model_config *config)
{
    config->offload.n_gpu_layers = (int)(fitting->planner->shape.hparams.n_layers + 1 - cut);
}

/* -- the rules in their order -- */

const tsr_fit_cut_rule tsr_fit_cut_rules[TSR_FIT_CUT_RULES] = {
    {TSR_FIT_CUT_KV_TYPE, false, kv_type_cuts, cut_kv_type},
    {TSR_FIT_CUT_CONTEXT, false, context_cuts, cut_context},
    {TSR_FIT_CUT_EXPERTS, true, expert_cuts, cut_experts},
    {TSR_FIT_CUT_LAYERS, true, layer_cuts, cut_layers},
};

const char *tsr_fit_cut_name(tsr_fit_cut cut)
{
    static const char *const names[TSR_FIT_CUT_COUNT] = {"context", "kv_type", "experts", "layers",
                                                         "context_back"};
    return cut >= 0 && cut < TSR_FIT_CUT_COUNT ? names[cut] : "?";
}

void tsr_fit_write_step(const tsr_fitting *fitting, tsr_fit_step *step)
{
    const tsr_fit_choice *a = &step->before, *b = &step->after;
    const char *to = fitting->offload_device < 0 ? "" : fitting->planner->props[fitting->offload_device].name;
    long long n_layers = (long long)fitting->planner->shape.hparams.n_layers;
    switch (step->cut) {
    case TSR_FIT_CUT_KV_TYPE:
        snprintf(step->text, sizeof step->text, "KV in %s and %s -> %s and %s", tsr_type_name(a->type_k),
                 tsr_type_name(a->type_v), tsr_type_name(b->type_k), tsr_type_name(b->type_v));
        return;
    case TSR_FIT_CUT_EXPERTS:
        snprintf(step->text, sizeof step->text, "experts of the first %d of %lld layers -> %s", b->n_cpu_moe,
                 n_layers, to);
        return;
    case TSR_FIT_CUT_LAYERS:
        snprintf(step->text, sizeof step->text, "embedding, output and %lld of %lld layers -> %s",
                 n_layers - b->n_gpu_layers, n_layers, to);
        return;
    default:
        snprintf(step->text, sizeof step->text, "context %lld -> %lld tokens", (long long)a->n_ctx,
                 (long long)b->n_ctx);
    }
}

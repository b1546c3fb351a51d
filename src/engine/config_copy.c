/* A model's own copies of the objects that its config pointed to, so that the model can be planned again. */
#include "engine/config_copy.h"

#include <string.h>

#include "core/mem.h"

static tsr_status copy_text(tsr_config_copy *copy, const char *text, const char **text_out)
{
    char *own = tsr_mem_strdup(text);
    if (!own)
        return tsr_fail(TSR_ERR_MEMORY, "out of host memory for a model's config");
    copy->texts[copy->n_texts++] = own;
    *text_out = own;
    return TSR_OK;
}

static tsr_status copy_overrides(tsr_model_config *config, tsr_config_copy *copy)
{
    tsr_status status = TSR_OK;
    size_t n = (size_t)config->offload.n_rules;
    TSR_TRY(tsr_mem_array(2 * n + 1, sizeof *copy->texts, "a model's config", &copy->texts));
    if (config->offload.device)
        TSR_TRY(copy_text(copy, config->offload.device, &config->offload.device));
    if (n == 0)
        goto out;
    TSR_TRY(tsr_mem_array(n, sizeof *copy->offload_rules, "a model's config", &copy->offload_rules));
    for (size_t i = 0; i < n; i++) {
        TSR_TRY(copy_text(copy, config->offload.rules[i].pattern, &copy->offload_rules[i].pattern));
        TSR_TRY(copy_text(copy, config->offload.rules[i].device, &copy->offload_rules[i].device));
    }
    config->offload.rules = copy->offload_rules;
out:
    return status;
}

tsr_status tsr_model_config_copy(tsr_model_config *config, int n_devices, tsr_config_copy *copy)
{
    tsr_status status = TSR_OK;
    if (config->plan.rates) {
        TSR_TRY(tsr_mem_array((size_t)n_devices, sizeof *copy->rates, "a model's config", &copy->rates));
        memcpy(copy->rates, config->plan.rates, (size_t)n_devices * sizeof *copy->rates);
        config->plan.rates = copy->rates;
    }
    if (config->plan.links) {
        TSR_TRY(tsr_links_copy(config->plan.links, &copy->links));
        config->plan.links = copy->links;
    }
    if (config->prompt.tensor_split) {
        size_t n = (size_t)config->prompt.n_tensor_split;
        TSR_TRY(tsr_mem_array(n, sizeof *copy->prompt_split, "a model's config", &copy->prompt_split));
        memcpy(copy->prompt_split, config->prompt.tensor_split, n * sizeof *copy->prompt_split);
        config->prompt.tensor_split = copy->prompt_split;
    }
    if (config->margin.bytes) {
        size_t n = (size_t)config->margin.n;
        TSR_TRY(tsr_mem_array(n, sizeof *copy->margins, "a model's config", &copy->margins));
        memcpy(copy->margins, config->margin.bytes, n * sizeof *copy->margins);
        config->margin.bytes = copy->margins;
    }
    TSR_TRY(copy_overrides(config, copy));
out:
    return status;
}

void tsr_config_copy_free(tsr_config_copy *copy)
{
    for (int i = 0; i < copy->n_texts; i++)
        tsr_mem_free(copy->texts[i]);
    tsr_mem_free(copy->texts);
    tsr_mem_free(copy->offload_rules);
    tsr_links_destroy(copy->links);
    tsr_mem_free(copy->rates);
    tsr_mem_free(copy->prompt_split);
    tsr_mem_free(copy->margins);
    *copy = (tsr_config_copy){0};
}

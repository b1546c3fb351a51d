/* A model's own copies of what its config pointed to when it was opened, so that it can be planned again. */
#include "engine/config_copy.h"

#include <string.h>

#include "core/mem.h"

static tsr_status keep_text(tsr_kept_config *kept, const char *text, const char **text_out)
{
    char *copy = tsr_mem_strdup(text);
    if (!copy)
        return tsr_fail(TSR_ERR_MEMORY, "out of host memory for a model's config");
    kept->texts[kept->n_texts++] = copy;
    *text_out = copy;
    return TSR_OK;
}

static tsr_status keep_overrides(tsr_model_config *config, tsr_kept_config *kept)
{
    tsr_status status = TSR_OK;
    size_t n = (size_t)config->n_overrides;
    TSR_TRY(tsr_mem_array(2 * n + 1, sizeof *kept->texts, "a model's config", &kept->texts));
    if (config->offload_device)
        TSR_TRY(keep_text(kept, config->offload_device, &config->offload_device));
    if (n == 0)
        goto out;
    TSR_TRY(tsr_mem_array(n, sizeof *kept->overrides, "a model's config", &kept->overrides));
    for (size_t i = 0; i < n; i++) {
        TSR_TRY(keep_text(kept, config->overrides[i].pattern, &kept->overrides[i].pattern));
        TSR_TRY(keep_text(kept, config->overrides[i].device, &kept->overrides[i].device));
    }
    config->overrides = kept->overrides;
out:
    return status;
}

tsr_status tsr_model_config_keep(tsr_model_config *config, int n_devices, tsr_kept_config *kept)
{
    tsr_status status = TSR_OK;
    if (config->rates) {
        TSR_TRY(tsr_mem_array((size_t)n_devices, sizeof *kept->rates, "a model's config", &kept->rates));
        memcpy(kept->rates, config->rates, (size_t)n_devices * sizeof *kept->rates);
        config->rates = kept->rates;
    }
    if (config->links) {
        TSR_TRY(tsr_links_copy(config->links, &kept->links));
        config->links = kept->links;
    }
    TSR_TRY(keep_overrides(config, kept));
out:
    return status;
}

void tsr_kept_config_drop(tsr_kept_config *kept)
{
    for (int i = 0; i < kept->n_texts; i++)
        tsr_mem_free(kept->texts[i]);
    tsr_mem_free(kept->texts);
    tsr_mem_free(kept->overrides);
    tsr_links_destroy(kept->links);
    tsr_mem_free(kept->rates);
    *kept = (tsr_kept_config){0};
}

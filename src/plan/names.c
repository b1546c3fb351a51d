/* Names of the choices that a plan makes, and back. */
#include <string.h>

#include <tsr/plan.h>

#include "core/status.h"

const char *tsr_split_mode_name(tsr_split_mode mode)
{
    switch (mode) {
    case TSR_SPLIT_MODE_NONE:
        return "none";
    case TSR_SPLIT_MODE_LAYER:
        return "layer";
    case TSR_SPLIT_MODE_TENSOR:
        return "tensor";
    case TSR_SPLIT_MODE_AUTO:
        return "auto";
    }
    return "?";
}

tsr_status tsr_split_mode_parse(const char *name, tsr_split_mode *mode_out)
{
    for (tsr_split_mode mode = TSR_SPLIT_MODE_NONE; mode <= TSR_SPLIT_MODE_AUTO; mode++) {
        if (strcmp(name, tsr_split_mode_name(mode)) == 0) {
            *mode_out = mode;
            return TSR_OK;
        }
    }
    return tsr_fail(TSR_ERR_INVALID, "split mode \"%s\": use tensor, layer, none or auto", name);
}

const char *tsr_expert_split_name(tsr_expert_split split)
{
    return split == TSR_EXPERT_SPLIT_COLUMNS   ? "columns"
           : split == TSR_EXPERT_SPLIT_EXPERTS ? "experts"
           : split == TSR_EXPERT_SPLIT_AUTO    ? "auto"
                                               : "?";
}

tsr_status tsr_expert_split_parse(const char *name, tsr_expert_split *split_out)
{
    for (tsr_expert_split split = TSR_EXPERT_SPLIT_COLUMNS; split <= TSR_EXPERT_SPLIT_AUTO; split++) {
        if (strcmp(name, tsr_expert_split_name(split)) == 0) {
            *split_out = split;
            return TSR_OK;
        }
    }
    return tsr_fail(TSR_ERR_INVALID, "expert split \"%s\": use columns, experts or auto", name);
}

const char *tsr_split_class_name(tsr_split_class_id id)
{
    static const char *const names[TSR_CLASS_COUNT] = {"attention", "ffn", "output"};
    return id >= 0 && id < TSR_CLASS_COUNT ? names[id] : "?";
}

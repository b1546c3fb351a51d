/* A plan as JSON; see json_plan.h. */
#include "json_plan.h"

#include <stdint.h>
#include <time.h>

#include "text.h"

json_t *tool_json_bytes(const size_t bytes[TSR_MEMORY_COUNT])
{
    json_t *object = json_object();
    for (int o = 0; o < TSR_MEMORY_COUNT; o++)
        json_object_set_new(object, tsr_memory_owner_name(o), json_integer((json_int_t)bytes[o]));
    return object;
}

static json_t *classes(const tsr_plan_info *info)
{
    static const char *const units[TSR_CLASS_COUNT] = {"kv_heads", "columns", "rows"};
    json_t *object = json_object();
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        json_object_set_new(object, tsr_split_class_name(c),
                            json_pack("{s:I, s:I, s:s}", "n_granules", (json_int_t)info->n_granules[c],
                                      "granule_size", (json_int_t)info->granule_size[c], "granule_unit",
                                      units[c]));
    return object;
}

static json_t *device_classes(const tsr_plan_device *device)
{
    json_t *object = json_object();
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        json_object_set_new(object, tsr_split_class_name(c),
                            json_pack("{s:f, s:I}", "achieved", device->achieved[c], "granules",
                                      (json_int_t)device->granules[c]));
    return object;
}

/* SIZE_MAX: there is no limit. */
static json_t *limit_json(size_t bytes)
{
    return bytes == SIZE_MAX ? json_null() : json_integer((json_int_t)bytes);
}

/* Granules by class of a split of prompts; null if there is none. */
static json_t *prompt_object(const tsr_plan *plan, const tsr_plan_device *device)
{
    tsr_plan_info info;
    tsr_plan_get_info(plan, &info);
    if (info.prompt_tokens == 0)
        return json_null();
    json_t *object = json_pack("{s:I, s:I}", "n_tokens", (json_int_t)info.prompt_tokens, "bytes",
                               (json_int_t)device->prompt_bytes);
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        json_object_set_new(object, tsr_split_class_name(c),
                            json_integer((json_int_t)device->prompt_granules[c]));
    return object;
}

static json_t *device_object(const tsr_plan *plan, const tsr_plan_device *device)
{
    return json_pack(
        "{s:s, s:s, s:b, s:f, s:o, s:I, s:o, s:I, s:I, s:o, s:I, s:o, s:I, s:I, s:o}", "name", device->name,
        "kind", tsr_device_kind_name(device->kind), "used", device->used, "requested", device->requested,
        "classes", device_classes(device), "n_layers", (json_int_t)device->n_layers, "bytes",
        tool_json_bytes(device->bytes), "total_bytes", (json_int_t)device->total_bytes, "kv_windowed_bytes",
        (json_int_t)device->kv_windowed_bytes, "memory_cap_bytes", limit_json(device->memory_cap),
        "margin_bytes", (json_int_t)device->margin_bytes, "free_bytes", limit_json(device->free_bytes),
        "missing_bytes", (json_int_t)device->missing_bytes, "arena_bound_bytes",
        (json_int_t)device->arena_bound_bytes, "prompt_split", prompt_object(plan, device));
}

static json_t *devices(const tsr_plan *plan, int n)
{
    json_t *array = json_array();
    tsr_plan_device device;
    for (int d = 0; d < n; d++)
        if (tsr_plan_get_device(plan, d, &device) == TSR_OK)
            json_array_append_new(array, device_object(plan, &device));
    return array;
}

static json_t *notes(const tsr_plan *plan)
{
    json_t *array = json_array();
    for (int i = 0; tsr_plan_note(plan, i); i++)
        json_array_append_new(array, tool_text_json(tsr_plan_note(plan, i)));
    return array;
}

static json_t *phase_object(const tsr_plan_phase *phase)
{
    return json_pack("{s:I, s:f, s:f, s:f, s:f}", "n_tokens", (json_int_t)phase->n_tokens, "ns",
                     phase->total_ns, "tokens_per_s", (double)phase->n_tokens / phase->total_ns * 1e9,
                     "transfer_ns", phase->transfer_ns, "overlap_ns", phase->overlap_ns);
}

static json_t *alternatives(const tsr_plan *plan)
{
    json_t *array = json_array();
    tsr_plan_alternative a;
    for (int i = 0; tsr_plan_alternative_at(plan, i, &a); i++)
        json_array_append_new(array,
                              json_pack("{s:s, s:f, s:f, s:f, s:b, s:b}", "layout", a.text, "decode_ns",
                                        a.decode_ns, "prompt_ns", a.prompt_ns, "workload_ns", a.workload_ns,
                                        "in_memory", a.in_memory, "too_large", a.too_large));
    return array;
}

/* "2026-11-20T12:00:00Z"; null if unknown. */
static json_t *date_json(int64_t seconds)
{
    char text[32];
    time_t at = (time_t)seconds;
    struct tm utc;
    if (seconds <= 0 || !gmtime_r(&at, &utc))
        return json_null();
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return json_string(text);
}

static json_t *workload(const tsr_plan *plan, double ns)
{
    tsr_plan_info info;
    tsr_plan_get_info(plan, &info);
    return json_pack("{s:i, s:i, s:i, s:f}", "n_prompt", info.n_prompt, "n_new", info.n_new, "n_seq",
                     info.n_seq, "ns", ns);
}

/* null if rates are unknown. */
static json_t *predicted(const tsr_plan *plan)
{
    tsr_plan_times t;
    tsr_plan_predict(plan, &t);
    if (!t.known)
        return json_null();
    return json_pack("{s:b, s:b, s:b, s:o, s:f, s:o, s:o, s:o, s:o}", "automatic", t.automatic, "proven",
                     t.proven, "measured", t.measured, "measured_at", date_json(t.measured_at), "load",
                     t.load, "decode", phase_object(&t.decode), "prompt", phase_object(&t.prompt), "workload",
                     workload(plan, t.workload_ns), "alternatives", alternatives(plan));
}

json_t *tool_json_plan(const tsr_plan *plan, const char *model)
{
    tsr_plan_info info;
    tsr_plan_get_info(plan, &info);
    return json_pack(
        "{s:o, s:b, s:s, s:s?, s:I, s:I, s:b, s:i, s:i, s:s, s:s, s:I, s:I, s:I, s:i, s:i, s:b, s:b, s:o, "
        "s:o, s:o, s:o}",
        "model", tool_text_json(model), "fits", info.fits, "split_mode", tsr_split_mode_name(info.mode),
        "expert_split", info.has_experts ? tsr_expert_split_name(info.expert_split) : NULL, "n_ctx",
        (json_int_t)info.n_ctx, "n_ctx_train", (json_int_t)info.n_ctx_train, "n_ctx_fitted",
        info.n_ctx_fitted, "n_seq_max", info.n_seq_max, "n_batch", info.n_batch, "type_k",
        tsr_type_name(info.type_k), "type_v", tsr_type_name(info.type_v), "n_layers",
        (json_int_t)info.n_layers, "n_windowed", (json_int_t)info.n_windowed, "window",
        (json_int_t)info.window, "n_all_reduces", info.n_all_reduces, "n_transfers", info.n_transfers,
        "runnable", info.runnable, "exact_arena", info.exact_arena, "classes", classes(&info), "devices",
        devices(plan, info.n_devices), "predicted", predicted(plan), "notes", notes(plan));
}

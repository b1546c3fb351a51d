/* Names of the choices that a plan makes, and back; names of devices, workloads and times. */
#include "plan/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/device_set.h"
#include "core/mem.h"
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

/* -- devices -- */

/* "cuda3@1": the number that ranges count, of several processes the one before their number. "cuda" is the
 * stem, "@1" the tail. */
static void find_number(const char *name, size_t *stem_out, size_t *end_out)
{
    size_t end = strcspn(name, "@"), stem = end;
    while (stem > 0 && name[stem - 1] >= '0' && name[stem - 1] <= '9')
        stem--;
    *stem_out = stem;
    *end_out = end;
}

bool tsr_plan_names_follow(const char *a, const char *b)
{
    size_t stem_a, stem_b, end_a, end_b;
    find_number(a, &stem_a, &end_a);
    find_number(b, &stem_b, &end_b);
    return stem_a == stem_b && strncmp(a, b, stem_a) == 0 && stem_a < end_a && stem_b < end_b &&
           strcmp(a + end_a, b + end_b) == 0 &&
           strtol(b + stem_b, NULL, 10) == strtol(a + stem_a, NULL, 10) + 1;
}

void tsr_plan_range_text(const char *first, const char *last, char text[TSR_PLAN_RANGE_BYTES])
{
    size_t stem, end;
    find_number(last, &stem, &end);
    snprintf(text, TSR_PLAN_RANGE_BYTES, "%.*s-%s", (int)strcspn(first, "@"), first, last + stem);
}

void tsr_plan_name_range(const tsr_plan_device *devices, int n, char text[TSR_PLAN_RANGE_BYTES])
{
    if (n == 1)
        snprintf(text, TSR_PLAN_RANGE_BYTES, "%s", devices->name);
    else
        tsr_plan_range_text(devices->name, devices[n - 1].name, text);
}

void tsr_plan_append_names(const tsr_plan_device *devices, int n_devices, uint64_t set, const char *separator,
                           char *text, size_t size)
{
    char name[TSR_PLAN_RANGE_BYTES];
    const char *before = "";
    for (int d = 0, n; d < n_devices; d += n) {
        n = 1;
        if (!tsr_device_set_has(set, d))
            continue;
        while (d + n < n_devices && tsr_device_set_has(set, d + n) &&
               tsr_plan_names_follow(devices[d + n - 1].name, devices[d + n].name))
            n++;
        tsr_plan_name_range(&devices[d], n, name);
        size_t used = strlen(text);
        snprintf(text + used, size - used, "%s%s", before, name);
        before = separator;
    }
}

/* -- workloads and times -- */

const char *tsr_plan_time_text(double ns, char text[TSR_PLAN_TIME_BYTES])
{
    if (ns >= 1e9)
        snprintf(text, TSR_PLAN_TIME_BYTES, "%.2f s", ns * 1e-9);
    else if (ns >= 1e6)
        snprintf(text, TSR_PLAN_TIME_BYTES, "%.2f ms", ns * 1e-6);
    else
        snprintf(text, TSR_PLAN_TIME_BYTES, "%.1f us", ns * 1e-3);
    return text;
}

void tsr_plan_name_workload(const tsr_plan_info *info, char text[TSR_PLAN_WORKLOAD_BYTES])
{
    char sequences[32] = "";
    if (info->n_seq > 1)
        snprintf(sequences, sizeof sequences, "%d sequences of ", info->n_seq);
    if (info->n_prompt == 0)
        snprintf(text, TSR_PLAN_WORKLOAD_BYTES, "%s%d token%s out", sequences, info->n_new,
                 tsr_plural(info->n_new));
    else if (info->n_new == 0)
        snprintf(text, TSR_PLAN_WORKLOAD_BYTES, "%s%d token%s in", sequences, info->n_prompt,
                 tsr_plural(info->n_prompt));
    else
        snprintf(text, TSR_PLAN_WORKLOAD_BYTES, "%s%d token%s in and %d out", sequences, info->n_prompt,
                 tsr_plural(info->n_prompt), info->n_new);
}

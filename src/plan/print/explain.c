/* Explaining a plan: the predicted time of a step by its parts and devices, and those of other layouts. */
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "plan/names.h"
#include "plan/print/text.h"

enum { WALK_TEXT = 160, ALTERNATIVE_TEXT = 160, LONGEST_ALTERNATIVE = 42 };

/* -- phases -- */

/* "179.9 us on cuda0 + 4.1 us all-reduce" */
static void write_walk(const tsr_plan_walk *walk, const char *device, char text[WALK_TEXT])
{
    char work[TSR_PLAN_TIME_BYTES], sync[TSR_PLAN_TIME_BYTES], all_reduce[TSR_PLAN_TIME_BYTES + 16] = "";
    if (walk->sync_ns > 0)
        snprintf(all_reduce, sizeof all_reduce, " + %s all-reduce", tsr_plan_time_text(walk->sync_ns, sync));
    snprintf(text, WALK_TEXT, "%s on %s%s", tsr_plan_time_text(walk->work_ns, work), device, all_reduce);
}

/* Walks from walks[0] on that are alike: as many repeats and the same times, on devices with names that
 * follow each other. */
static int count_alike(const tsr_plan *plan, const tsr_plan_walk *walks, int n)
{
    char first[WALK_TEXT], text[WALK_TEXT];
    int alike = 1;
    write_walk(&walks[0], "", first);
    for (; alike < n; alike++) {
        const tsr_plan_walk *walk = &walks[alike];
        if (walk->slowest < 0 || walk->class_id != walks[0].class_id || walk->repeats != walks[0].repeats ||
            !tsr_plan_names_follow(plan->devices[walks[alike - 1].slowest].name,
                                   plan->devices[walk->slowest].name))
            break;
        write_walk(walk, "", text);
        if (strcmp(text, first) != 0)
            break;
    }
    return alike;
}

/* A line for each group of devices that works on the class, or one for several that are alike. */
static void put_walks(const tsr_plan_printer *p, const tsr_plan_walks *walks)
{
    int class_id = -1;
    for (int i = 0, n; i < walks->n; i += n) {
        const tsr_plan_walk *walk = &walks->list[i];
        char text[WALK_TEXT], name[TSR_PLAN_RANGE_BYTES], each[TSR_PLAN_RANGE_BYTES + 8];
        n = 1;
        if (walk->slowest < 0)
            continue;
        n = count_alike(p->plan, walk, walks->n - i);
        tsr_plan_name_range(&p->plan->devices[walk->slowest], n, name);
        snprintf(each, sizeof each, "%s%s", n > 1 ? "each of " : "", name);
        write_walk(walk, each, text);
        tsr_plan_put(p, "  %-9s  %3d x (%s)\n",
                     (int)walk->class_id == class_id ? "" : tsr_split_class_name(walk->class_id),
                     walk->repeats, text);
        class_id = (int)walk->class_id;
    }
}

static void put_phase(const tsr_plan_printer *p, const char *name, const tsr_plan_phase *phase,
                      const tsr_plan_walks *walks)
{
    char text[TSR_PLAN_TIME_BYTES];
    tsr_plan_put(p, "%s, %lld token%s: %s, %.1f tokens/s\n", name, (long long)phase->n_tokens,
                 tsr_plural(phase->n_tokens), tsr_plan_time_text(phase->total_ns, text),
                 (double)phase->n_tokens / phase->total_ns * 1e9);
    put_walks(p, walks);
    if (phase->transfer_ns > 0)
        tsr_plan_put(p, "  transfers %s\n", tsr_plan_time_text(phase->transfer_ns, text));
    tsr_plan_stage second;
    const bool stages = tsr_plan_stage_at(p->plan, 1, &second);
    if (phase->overlap_ns > 0)
        tsr_plan_put(p, "  less %s: %s\n", tsr_plan_time_text(phase->overlap_ns, text),
                     stages ? "groups work at different chunks at the same time"
                            : "all-reduces run beside work on the other half of a chunk");
    if (phase->overlap_ns < 0)
        tsr_plan_put(p, "  more %s: %s\n", tsr_plan_time_text(-phase->overlap_ns, text),
                     stages ? "chunks for several groups are small" : "halves of chunks are small");
}

/* -- devices -- */

enum { DECODE, PROMPT };

static const tsr_plan_phase *phase_of(const tsr_plan *plan, int phase)
{
    return phase == DECODE ? &plan->times.decode : &plan->times.prompt;
}

/* Time that a device works in a step. */
static double work_of(const tsr_plan *plan, const tsr_plan_device *device, int phase)
{
    const tsr_plan_phase *times = phase_of(plan, phase);
    double ns = 0;
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        ns += times->device_ns[c][device - plan->devices] * times->repeats[c];
    return ns;
}

static void cell_work(const tsr_plan *plan, const tsr_plan_device *device, int phase, char *text)
{
    double ns = work_of(plan, device, phase);
    if (ns > 0)
        tsr_plan_time_text(ns, text);
    else
        snprintf(text, TSR_PLAN_CELL_BYTES, "-");
}

static void cell_busy(const tsr_plan *plan, const tsr_plan_device *device, int phase, char *text)
{
    snprintf(text, TSR_PLAN_CELL_BYTES, "%.0f %%",
             100 * work_of(plan, device, phase) / phase_of(plan, phase)->total_ns);
}

/* What the device changes: "-12 %" of the time without it. In parentheses what a device that is left out
 * would change. */
static void cell_effect(const tsr_plan *plan, const tsr_plan_device *device, int phase, char *text)
{
    const tsr_plan_effect *other = &plan->effect[device - plan->devices];
    const double with_plan = phase_of(plan, phase)->total_ns,
                 otherwise = phase == DECODE ? other->decode_ns : other->prompt_ns;
    if (!(otherwise > 0))
        snprintf(text, TSR_PLAN_CELL_BYTES, "-");
    else if (device->used)
        snprintf(text, TSR_PLAN_CELL_BYTES, "%+.0f %%", 100 * (with_plan / otherwise - 1));
    else
        snprintf(text, TSR_PLAN_CELL_BYTES, "(%+.0f %%)", 100 * (otherwise / with_plan - 1));
}

static void put_devices(const tsr_plan_printer *p)
{
    enum { N_OF_WORK = 4 };
    static const tsr_plan_column columns[] = {
        {"decode work", cell_work, DECODE},      {"busy", cell_busy, DECODE},
        {"prompt work", cell_work, PROMPT},      {"busy", cell_busy, PROMPT},
        {"decode with it", cell_effect, DECODE}, {"prompt with it", cell_effect, PROMPT}};
    const tsr_plan_info *info = &p->plan->info;
    /* what other devices would take is known of tensor mode */
    const bool compares =
        info->mode == TSR_SPLIT_MODE_TENSOR && p->plan->times.automatic && info->n_devices > 1;
    tsr_plan_put_table(p, "device", columns, compares ? sizeof columns / sizeof *columns : N_OF_WORK,
                       p->plan->devices, info->n_devices, NULL);
}

/* -- alternatives -- */

/* "without cuda1" after "without cuda0", with the same times. */
static bool is_like_next(const tsr_plan_alternative *a, const tsr_plan_alternative *b)
{
    char one[TSR_PLAN_TIME_BYTES], other[TSR_PLAN_TIME_BYTES];
    return a->in_memory == b->in_memory && a->too_large == b->too_large &&
           tsr_plan_names_follow(a->text, b->text) &&
           strcmp(tsr_plan_time_text(a->decode_ns, one), tsr_plan_time_text(b->decode_ns, other)) == 0 &&
           strcmp(tsr_plan_time_text(a->prompt_ns, one), tsr_plan_time_text(b->prompt_ns, other)) == 0 &&
           strcmp(tsr_plan_time_text(a->workload_ns, one), tsr_plan_time_text(b->workload_ns, other)) == 0;
}

/* Write the text of n alternatives that are alike, "without one of cuda0-3", with a mark on one that is too
 * large. */
static void write_alternative(const tsr_plan_alternative *a, int n, char text[ALTERNATIVE_TEXT])
{
    const char *blank = strrchr(a->text, ' ');
    char range[TSR_PLAN_RANGE_BYTES];
    if (n == 1 || !blank) {
        snprintf(text, ALTERNATIVE_TEXT, "%s", a->text);
    } else {
        tsr_plan_range_text(blank + 1, a[n - 1].text, range);
        snprintf(text, ALTERNATIVE_TEXT, "%.*s one of %s", (int)(blank - a->text), a->text, range);
    }
    if (a->too_large)
        snprintf(text + strlen(text), ALTERNATIVE_TEXT - strlen(text), " *");
}

static void put_times(const tsr_plan_printer *p, const char *text, int width, double decode_ns,
                      double prompt_ns, double workload_ns)
{
    char decode[TSR_PLAN_TIME_BYTES], prompt[TSR_PLAN_TIME_BYTES], workload[TSR_PLAN_TIME_BYTES];
    bool is_long = strlen(text) > (size_t)width;
    if (is_long) /* the times go below */
        tsr_plan_put_wrapped(p, "%s", text);
    tsr_plan_put(p, "%-*s  %10s  %10s  %10s\n", width, is_long ? "" : text,
                 tsr_plan_time_text(decode_ns, decode), tsr_plan_time_text(prompt_ns, prompt),
                 tsr_plan_time_text(workload_ns, workload));
}

/* The alternatives that fit into memory, or those that disregard memory. */
static void put_alternatives(const tsr_plan_printer *p, const char *heading, bool in_memory)
{
    const tsr_plan *plan = p->plan;
    char text[ALTERNATIVE_TEXT];
    size_t width = strlen(heading);
    bool any = false, any_too_large = false;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1 && !any)
            return;
        if (pass == 1) {
            width = TSR_MIN(width, LONGEST_ALTERNATIVE);
            tsr_plan_put(p, "\n%-*s  %10s  %10s  %10s\n", (int)width, heading, "decode", "prompt",
                         "workload");
            put_times(p, "this plan", (int)width, plan->times.decode.total_ns, plan->times.prompt.total_ns,
                      plan->times.workload_ns);
        }
        for (int i = 0, n; i < plan->n_alternatives; i += n) {
            const tsr_plan_alternative *a = &plan->alternatives[i];
            for (n = 1; i + n < plan->n_alternatives && is_like_next(&a[n - 1], &a[n]);)
                n++;
            if (a->in_memory != in_memory)
                continue;
            write_alternative(a, n, text);
            width = pass == 0 ? TSR_MAX(width, strlen(text)) : width;
            any = true;
            any_too_large = any_too_large || a->too_large;
            if (pass == 1)
                put_times(p, text, (int)width, a->decode_ns, a->prompt_ns, a->workload_ns);
        }
    }
    if (any_too_large)
        tsr_plan_put(p, "* too large for the memory of a device\n");
}

void tsr_plan_explain(const tsr_plan *plan, tsr_write_fn write, void *user)
{
    tsr_plan_printer p = {.plan = plan, .write = write, .user = user};
    const tsr_plan_times *t = &plan->times;
    if (!t->known) {
        tsr_plan_put_wrapped(&p,
                             "Times are not predicted: the rates of some devices with this model's types of "
                             "weights are unknown. `tsr bench` measures them.");
        return;
    }
    tsr_plan_put_wrapped(&p, "Predicted by rates that were %s.",
                         t->measured ? "measured" : "taken from descriptions or assumed, not measured");
    if (t->automatic) {
        char workload[TSR_PLAN_WORKLOAD_BYTES];
        tsr_plan_name_workload(&plan->info, workload);
        tsr_plan_put_wrapped(&p, "The shares are the planner's, for %s: %s", workload,
                             t->proven ? "no others would take less time by these rates."
                                       : "good ones, though not proven to be the best by these rates.");
    }
    if (plan->info.has_experts && plan->info.runnable && plan->info.mode == TSR_SPLIT_MODE_TENSOR &&
        plan->info.n_devices > 1)
        tsr_plan_put_wrapped(
            &p, "Of the experts %s.",
            plan->info.expert_split == TSR_EXPERT_SPLIT_COLUMNS
                ? "every device has columns: all devices work, whatever experts a token uses"
                : "every device has some whole: a token takes as long as the device with most of its "
                  "experts, as expected by chance");
    tsr_plan_put(&p, "\n");
    put_phase(&p, "decode", &t->decode, &plan->decode_walks);
    put_phase(&p, "prompt", &t->prompt, &plan->prompt_walks);
    put_devices(&p);
    put_alternatives(&p, "best of modes and phases", true);
    put_alternatives(&p, "layout, memory aside", false);
}

/* Why a plan is as it is: the predicted time of a step by its parts, what every device does in it, and what
 * other layouts would take. */
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "plan/print/text.h"

enum { TIME_TEXT = 24 };

static const char *time_text(double ns, char *text)
{
    if (ns >= 1e9)
        snprintf(text, TIME_TEXT, "%.2f s", ns * 1e-9);
    else if (ns >= 1e6)
        snprintf(text, TIME_TEXT, "%.2f ms", ns * 1e-6);
    else
        snprintf(text, TIME_TEXT, "%.1f us", ns * 1e-3);
    return text;
}

static void put_phase(const tsr_plan_printer *p, const char *name, const tsr_plan_phase *phase)
{
    char total[TIME_TEXT], work[TIME_TEXT], sync[TIME_TEXT];
    tsr_plan_put(p, "%s, %lld token%s: %s, %.1f tokens/s\n", name, (long long)phase->n_tokens,
                 tsr_plural(phase->n_tokens), time_text(phase->total_ns, total),
                 (double)phase->n_tokens / phase->total_ns * 1e9);
    for (int c = 0; c < TSR_CLASS_COUNT; c++) {
        if (phase->slowest[c] < 0)
            continue;
        tsr_plan_put(p, "  %-9s  %3.0f x (%s on %s", tsr_split_class_name(c), phase->repeats[c],
                     time_text(phase->work_ns[c], work), p->plan->devices[phase->slowest[c]].name);
        if (phase->sync_ns[c] > 0)
            tsr_plan_put(p, " + %s all-reduce", time_text(phase->sync_ns[c], sync));
        tsr_plan_put(p, ")\n");
    }
    if (phase->transfer_ns > 0)
        tsr_plan_put(p, "  transfers %s\n", time_text(phase->transfer_ns, work));
}

/* Time that a device works in a step. */
static double work_of(const tsr_plan_phase *phase, int d)
{
    double ns = 0;
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        ns += phase->device_ns[c][d] * phase->repeats[c];
    return ns;
}

static void put_devices(const tsr_plan_printer *p)
{
    const tsr_plan_times *t = &p->plan->times;
    char decode[TIME_TEXT], prompt[TIME_TEXT];
    tsr_plan_put(p, "\n%-12s  %12s  %6s  %12s  %6s\n", "device", "decode work", "busy", "prompt work",
                 "busy");
    for (int d = 0; d < p->plan->info.n_devices; d++) {
        double a = work_of(&t->decode, d), b = work_of(&t->prompt, d);
        tsr_plan_put(p, "%-12s  %12s  %4.0f %%  %12s  %4.0f %%\n", p->plan->devices[d].name,
                     time_text(a, decode), 100 * a / t->decode.total_ns, time_text(b, prompt),
                     100 * b / t->prompt.total_ns);
    }
}

/* The alternatives that fit into memory, or those that disregard memory. */
static void put_alternatives(const tsr_plan_printer *p, const char *heading, bool in_memory)
{
    const tsr_plan *plan = p->plan;
    char decode[TIME_TEXT], prompt[TIME_TEXT];
    size_t width = strlen(heading);
    bool any = false;
    for (int i = 0; i < plan->n_alternatives; i++)
        if (plan->alternatives[i].in_memory == in_memory) {
            width = TSR_MAX(width, strlen(plan->alternatives[i].text));
            any = true;
        }
    if (!any)
        return;
    tsr_plan_put(p, "\n%-*s  %12s  %12s\n", (int)width, heading, "decode", "prompt");
    tsr_plan_put(p, "%-*s  %12s  %12s\n", (int)width, "this plan",
                 time_text(plan->times.decode.total_ns, decode),
                 time_text(plan->times.prompt.total_ns, prompt));
    for (int i = 0; i < plan->n_alternatives; i++) {
        const tsr_plan_alternative *a = &plan->alternatives[i];
        if (a->in_memory == in_memory)
            tsr_plan_put(p, "%-*s  %12s  %12s\n", (int)width, a->text, time_text(a->decode_ns, decode),
                         time_text(a->prompt_ns, prompt));
    }
}

void tsr_plan_explain(const tsr_plan *plan, tsr_write_fn write, void *user)
{
    tsr_plan_printer p = {.plan = plan, .write = write, .user = user};
    const tsr_plan_times *t = &plan->times;
    if (!t->known) {
        tsr_plan_put(&p, "Times are not predicted: the rates of some devices with this model's types of "
                         "weights are unknown. `tsr bench` measures them.\n");
        return;
    }
    tsr_plan_put(&p, "Predicted by rates that were %s.\n",
                 t->measured ? "measured" : "taken from descriptions or assumed, not measured");
    if (t->automatic)
        tsr_plan_put(&p, "The shares are the planner's: %s\n",
                     t->proven ? "no others would take less time by these rates."
                               : "good ones, though not proven to be the best by these rates.");
    if (plan->info.has_experts && plan->info.runnable && plan->info.mode == TSR_SPLIT_MODE_TENSOR &&
        plan->info.n_devices > 1)
        tsr_plan_put(
            &p, "Of the experts %s.\n",
            plan->info.expert_split == TSR_EXPERT_SPLIT_COLUMNS
                ? "every device has columns: all have work whichever a token takes"
                : "every device has some whole: a token waits for the one with most of those it takes, "
                  "as expected by chance");
    tsr_plan_put(&p, "\n");
    put_phase(&p, "decode", &t->decode);
    put_phase(&p, "prompt", &t->prompt);
    put_devices(&p);
    put_alternatives(&p, "best of other modes", true);
    put_alternatives(&p, "layout, memory aside", false);
}

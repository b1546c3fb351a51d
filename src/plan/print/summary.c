/* The first lines of a printed plan: does the model fit, how fast will it be, how long is its context. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <tsr/bytes.h>

#include "core/mem.h"
#include "plan/names.h"
#include "plan/print/text.h"

enum { LIST_BYTES = 768 };
static const double MUCH = 1.05; /* a smaller gain is not worth a word */

/* The bytes of a device that a list is about; SIZE_MAX: the device is not in the list. */
typedef size_t amount_fn(const tsr_plan_device *device);

static size_t missing_of(const tsr_plan_device *device)
{
    return device->missing_bytes ? device->missing_bytes : SIZE_MAX;
}

static size_t free_of(const tsr_plan_device *device)
{
    return device->used && !device->missing_bytes ? device->free_bytes : SIZE_MAX;
}

/* "1 GiB free on each of cuda0-1, 3.2 GiB on cuda2"; empty for an empty list. */
static void write_list(const tsr_plan *plan, amount_fn *amount, const char *word, char list[LIST_BYTES])
{
    char bytes[TSR_BYTES_TEXT], other[TSR_BYTES_TEXT], name[TSR_PLAN_RANGE_BYTES];
    size_t used = 0;
    list[0] = '\0';
    for (int d = 0, n = 1; d < plan->info.n_devices && used < LIST_BYTES; d += n, n = 1) {
        const tsr_plan_device *devices = &plan->devices[d];
        if (amount(devices) == SIZE_MAX)
            continue;
        tsr_bytes_text(amount(devices), bytes);
        while (d + n < plan->info.n_devices && tsr_plan_names_follow(devices[n - 1].name, devices[n].name) &&
               amount(&devices[n]) != SIZE_MAX &&
               strcmp(tsr_bytes_text(amount(&devices[n]), other), bytes) == 0)
            n++;
        tsr_plan_name_range(devices, n, name);
        used += (size_t)snprintf(list + used, LIST_BYTES - used, "%s%s%s on %s%s", used ? ", " : "", bytes,
                                 used ? "" : word, n > 1 ? "each of " : "", name);
    }
}

static void put_room(const tsr_plan_printer *p)
{
    char missing[LIST_BYTES], left[LIST_BYTES], bytes[TSR_BYTES_TEXT], margin[64] = "";
    size_t most = 0;
    for (int d = 0; d < p->plan->info.n_devices; d++)
        most = TSR_MAX(most, p->plan->devices[d].missing_bytes ? p->plan->devices[d].margin_bytes : 0);
    if (most)
        snprintf(margin, sizeof margin, ", with %s to stay free", tsr_bytes_text(most, bytes));
    write_list(p->plan, missing_of, " missing", missing);
    write_list(p->plan, free_of, " free", left);
    if (!p->plan->info.fits)
        tsr_plan_put_wrapped(p, "Does not fit: %s%s%s%s", missing, margin, left[0] ? "; " : "", left);
    else
        tsr_plan_put_wrapped(p, "Fits: %s", left[0] ? left : "the devices have no cap");
}

/* "28.6", "578": three digits, or all before the point. */
static const char *speed_text(int64_t n_tokens, double ns, char text[32])
{
    double speed = (double)n_tokens / ns * 1e9;
    snprintf(text, 32, speed < 1000 ? "%.3g" : "%.0f", speed);
    return text;
}

/* "The memory speed of host0-1 is assumed, 25 GB/s each" */
static void put_assumed(const tsr_plan_printer *p)
{
    const tsr_plan *plan = p->plan;
    char name[TSR_PLAN_RANGE_BYTES];
    for (int d = 0, n; d < plan->info.n_devices; d += n) {
        const double *speed = &plan->assumed_bytes_per_s[d];
        n = 1;
        if (*speed == 0)
            continue;
        while (d + n < plan->info.n_devices && speed[n] == *speed &&
               tsr_plan_names_follow(plan->devices[d + n - 1].name, plan->devices[d + n].name))
            n++;
        tsr_plan_name_range(&plan->devices[d], n, name);
        tsr_plan_put_wrapped(p,
                             "The memory speed of %s is assumed, %.3g GB/s%s: `tsr bench` measures it, "
                             "--machine states it",
                             name, *speed * 1e-9, n > 1 ? " each" : "");
    }
}

enum { RATES_TEXT = 64 };

/* "measured 2026-11-20, load 3 %" */
static const char *rates_text(const tsr_plan_times *t, char text[RATES_TEXT])
{
    time_t at = (time_t)t->measured_at;
    struct tm utc;
    snprintf(text, RATES_TEXT, "%s", t->measured ? "measured" : "not measured");
    if (t->measured && at > 0 && gmtime_r(&at, &utc)) {
        size_t length = strftime(text, RATES_TEXT, "measured %Y-%m-%d", &utc);
        snprintf(text + length, RATES_TEXT - length, ", load %.0f %%", 100 * t->load);
    }
    return text;
}

static void put_speed(const tsr_plan_printer *p)
{
    const tsr_plan_times *t = &p->plan->times;
    char decode[32], prompt[32], rates[RATES_TEXT];
    if (t->known)
        tsr_plan_put_wrapped(p, "Predicted: decode %s and prompt %s tokens/s (rates %s)",
                             speed_text(t->decode.n_tokens, t->decode.total_ns, decode),
                             speed_text(t->prompt.n_tokens, t->prompt.total_ns, prompt),
                             rates_text(t, rates));
    else
        tsr_plan_put_wrapped(p, "Predicted: nothing, since rates of a device with these types of weights are "
                                "unknown; `tsr bench` measures them");
}

/* The alternative that is the best for a phase alone; NULL: the plan lists none. */
static const tsr_plan_alternative *find_phase(const tsr_plan *plan, const char *name)
{
    for (int i = 0; i < plan->n_alternatives; i++)
        if (strncmp(plan->alternatives[i].text, name, strlen(name)) == 0)
            return &plan->alternatives[i];
    return NULL;
}

/* "; --for decode: decode 123 and prompt 1082 tokens/s" if that makes much of a difference to the phase. */
static void append_phase(const tsr_plan *plan, const char *name, const char *word, char text[LIST_BYTES])
{
    const tsr_plan_alternative *a = find_phase(plan, name);
    const tsr_plan_phase *decode = &plan->times.decode, *prompt = &plan->times.prompt;
    const size_t used = strlen(text);
    char decode_text[32], prompt_text[32];
    if (a && (decode->total_ns >= MUCH * a->decode_ns || prompt->total_ns >= MUCH * a->prompt_ns))
        snprintf(text + used, LIST_BYTES - used, "; --for %s: decode %s and prompt %s tokens/s", word,
                 speed_text(decode->n_tokens, a->decode_ns, decode_text),
                 speed_text(prompt->n_tokens, a->prompt_ns, prompt_text));
}

/* "; --prompt-split auto: 1.04 s, 1.2 GiB more on cuda0" if that makes much of a difference. */
static void append_pair(const tsr_plan *plan, char text[LIST_BYTES])
{
    char time[TSR_PLAN_TIME_BYTES], bytes[TSR_BYTES_TEXT];
    size_t used = strlen(text);
    if (plan->pair_ns == 0 || plan->times.workload_ns < MUCH * plan->pair_ns)
        return;
    used += (size_t)snprintf(text + used, LIST_BYTES - used, "; --prompt-split auto: %s",
                             tsr_plan_time_text(plan->pair_ns, time));
    for (int d = 0, n = 0; d < plan->info.n_devices && used < LIST_BYTES; d++)
        if (plan->pair_bytes[d] > plan->devices[d].total_bytes)
            used +=
                (size_t)snprintf(text + used, LIST_BYTES - used, ", %s%s on %s",
                                 tsr_bytes_text(plan->pair_bytes[d] - plan->devices[d].total_bytes, bytes),
                                 n++ ? "" : " more", plan->devices[d].name);
}

/* What the planner's split is the fastest for. */
static void put_goal(const tsr_plan_printer *p)
{
    const tsr_plan_info *info = &p->plan->info;
    const tsr_plan_times *t = &p->plan->times;
    char workload[TSR_PLAN_WORKLOAD_BYTES], others[LIST_BYTES] = "", time[TSR_PLAN_TIME_BYTES];
    if (!t->automatic || !t->known)
        return;
    tsr_plan_name_workload(info, workload);
    if (info->n_prompt > 0 && info->n_new > 0) {
        append_phase(p->plan, TSR_PLAN_FOR_DECODE, "decode", others);
        append_phase(p->plan, TSR_PLAN_FOR_PROMPT, "prompt", others);
        append_pair(p->plan, others);
    }
    tsr_plan_put_wrapped(p, "Split: the fastest for %s, %s%s", workload,
                         tsr_plan_time_text(t->workload_ns, time), others);
}

static bool holds_all(const tsr_plan *plan, const tsr_plan_device *device, int c)
{
    return device->prompt_granules[c] == plan->info.n_granules[c];
}

/* "Steps of 64 tokens and more: ffn cuda0 75.0 %, cuda1 25.0 %; output cuda0; this takes 1.2 GiB more on
 * cuda0" */
static void put_prompt_split(const tsr_plan_printer *p)
{
    const tsr_plan *plan = p->plan;
    char text[LIST_BYTES] = "", bytes[TSR_BYTES_TEXT];
    const char *before = "; this takes ";
    size_t used = 0;
    if (plan->info.prompt_tokens == 0)
        return;
    for (int c = TSR_CLASS_FFN; c < TSR_CLASS_COUNT; c++) {
        const char *comma = "";
        used += (size_t)snprintf(text + used, LIST_BYTES - used, "%s%s ", c > TSR_CLASS_FFN ? "; " : "",
                                 tsr_split_class_name(c));
        for (int d = 0; d < plan->info.n_devices && used < LIST_BYTES; d++) {
            const tsr_plan_device *device = &plan->devices[d];
            if (device->prompt_granules[c] == 0)
                continue;
            used += (size_t)snprintf(text + used, LIST_BYTES - used, "%s%s", comma, device->name);
            comma = ", ";
            if (!holds_all(plan, device, c) && used < LIST_BYTES)
                used += (size_t)snprintf(text + used, LIST_BYTES - used, " %.1f %%",
                                         100 * (double)device->prompt_granules[c] /
                                             (double)plan->info.n_granules[c]);
        }
        if (used >= LIST_BYTES)
            break;
    }
    for (int d = 0; d < plan->info.n_devices && used < LIST_BYTES; d++)
        if (plan->devices[d].prompt_bytes > 0) {
            used += (size_t)snprintf(text + used, LIST_BYTES - used, "%s%s%s on %s", before,
                                     tsr_bytes_text(plan->devices[d].prompt_bytes, bytes),
                                     before[0] == ';' ? " more" : "", plan->devices[d].name);
            before = ", ";
        }
    tsr_plan_put_wrapped(p, "Steps of %lld tokens and more: %s", (long long)plan->info.prompt_tokens, text);
}

static void put_context(const tsr_plan_printer *p)
{
    const tsr_plan_info *info = &p->plan->info;
    long long n = (long long)info->n_ctx, trained = (long long)info->n_ctx_train;
    if (n == trained)
        tsr_plan_put(p, "Context: %lld tokens, as trained\n", n);
    else if (n > trained)
        tsr_plan_put(p, "Context: %lld tokens, more than the %lld trained\n", n, trained);
    else
        tsr_plan_put(p, "Context: %lld of %lld trained tokens%s\n", n, trained,
                     info->n_ctx_fitted ? ", the most that fit; -c N sets another" : "");
}

void tsr_plan_print_summary(const tsr_plan *plan, tsr_write_fn write, void *user)
{
    tsr_plan_printer p = {.plan = plan, .write = write, .user = user};
    put_room(&p);
    if (plan->info.fits) {
        put_speed(&p);
        put_assumed(&p);
        put_goal(&p);
        put_prompt_split(&p);
    }
    put_context(&p);
}

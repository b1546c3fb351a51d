/* A fit as text: what was wanted and what of it is missing, the cuts, the placement that fits. */
#include <stdio.h>
#include <string.h>

#include <tsr/bytes.h>

#include "core/mem.h"
#include "plan/fit/fit.h"
#include "plan/names.h"
#include "plan/print/text.h"

enum { SAVED_BYTES = 400 };

static void put_wanted(const tsr_plan_printer *p, const tsr_fit *fit)
{
    const tsr_fit_choice *wanted = &fit->info.wanted;
    tsr_plan_put(p, "Wanted: %lld tokens of context, KV in %s and %s\n", (long long)wanted->n_ctx,
                 tsr_type_name(wanted->type_k), tsr_type_name(wanted->type_v));
    tsr_plan_put_memory(p, fit->wanted, fit->info.n_devices, true);
}

/* "-4 GiB" for memory that a step takes. */
static const char *signed_text(int64_t bytes, char text[TSR_BYTES_TEXT + 1])
{
    text[0] = '-';
    tsr_bytes_text((uint64_t)(bytes < 0 ? -bytes : bytes), text + (bytes < 0));
    return text;
}

/* "saves 12 GiB (host0 4 GiB, each of cuda0-1 8 GiB)" */
static void write_saved(const tsr_fit *fit, const tsr_fit_step *step, char saved[SAVED_BYTES])
{
    const int sign = step->saved_bytes < 0 ? -1 : 1;
    char text[TSR_BYTES_TEXT + 1], other[TSR_BYTES_TEXT + 1], name[TSR_PLAN_RANGE_BYTES];
    size_t used = (size_t)snprintf(saved, SAVED_BYTES, "%s %s", sign < 0 ? "takes" : "saves",
                                   signed_text(sign * step->saved_bytes, text));
    int listed = 0;
    for (int d = 0, n; d < fit->info.n_devices && fit->info.n_devices > 1 && used < SAVED_BYTES; d += n) {
        n = 1;
        if (step->device_bytes[d] == 0)
            continue;
        signed_text(sign * step->device_bytes[d], text);
        while (d + n < fit->info.n_devices &&
               tsr_plan_names_follow(fit->wanted[d + n - 1].name, fit->wanted[d + n].name) &&
               strcmp(signed_text(sign * step->device_bytes[d + n], other), text) == 0)
            n++;
        tsr_plan_name_range(&fit->wanted[d], n, name);
        used += (size_t)snprintf(saved + used, SAVED_BYTES - used, "%s%s%s %s", listed++ ? ", " : " (",
                                 n > 1 ? "each of " : "", name, text);
    }
    if (listed && used < SAVED_BYTES)
        snprintf(saved + used, SAVED_BYTES - used, ")");
}

static bool lacks_on_some_device(const tsr_fit *fit)
{
    for (int d = 0; d < fit->info.n_devices; d++)
        if (fit->wanted[d].missing_bytes)
            return true;
    return false;
}

static void put_cuts(const tsr_plan_printer *p, const tsr_fit *fit)
{
    size_t width = 0;
    for (int i = 0; i < fit->info.n_steps; i++)
        width = TSR_MAX(width, strlen(fit->steps[i].text));
    tsr_plan_put(p, "%s\n",
                 fit->info.n_steps           ? "Cut to fit:"
                 : lacks_on_some_device(fit) ? "Nothing is cut: other devices take what is missing"
                                             : "Nothing is cut");
    for (int i = 0; i < fit->info.n_steps; i++) {
        char saved[SAVED_BYTES];
        write_saved(fit, &fit->steps[i], saved);
        if (2 + width + 2 + strlen(saved) <= TSR_PRINT_COLUMNS) {
            tsr_plan_put(p, "  %-*s  %s\n", (int)width, fit->steps[i].text, saved);
        } else {
            tsr_plan_put(p, "  %s\n", fit->steps[i].text);
            tsr_plan_put_wrapped(p, "    %s", saved);
        }
    }
}

void tsr_fit_print_cuts(const tsr_fit *fit, tsr_write_fn write, void *user)
{
    tsr_plan_printer p = {.plan = fit->plan, .write = write, .user = user};
    put_cuts(&p, fit);
}

void tsr_fit_print(const tsr_fit *fit, tsr_write_fn write, void *user)
{
    tsr_plan_printer p = {.plan = fit->plan, .write = write, .user = user};
    put_wanted(&p, fit);
    tsr_plan_put(&p, "\n");
    put_cuts(&p, fit);
    tsr_plan_put(&p, "\n");
    tsr_plan_print(fit->plan, write, user);
}

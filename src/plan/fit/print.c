/* A fit as text: what was wanted and what of it is missing, the cuts, the placement that fits. */
#include <stdio.h>
#include <string.h>

#include <tsr/bytes.h>

#include "core/mem.h"
#include "plan/fit/fit.h"
#include "plan/print/text.h"

static void put_wanted(const tsr_plan_printer *p, const tsr_fit *fit)
{
    const tsr_fit_choice *wanted = &fit->info.wanted;
    tsr_plan_put(p, "Wanted: %lld tokens of context, KV in %s and %s\n", (long long)wanted->n_ctx,
                 tsr_type_name(wanted->type_k), tsr_type_name(wanted->type_v));
    tsr_plan_put_memory(p, fit->wanted, fit->info.n_devices, true);
}

static const char *bytes_text(int64_t bytes, char *text)
{
    return tsr_bytes_text((uint64_t)(bytes < 0 ? -bytes : bytes), text);
}

/* "saves 12 GiB (host0 4 GiB, host1 8 GiB)" */
static void put_saved(const tsr_plan_printer *p, const tsr_fit *fit, const tsr_fit_step *step)
{
    char text[TSR_BYTES_TEXT];
    int n = 0;
    tsr_plan_put(p, "%s %s", step->saved_bytes < 0 ? "takes" : "saves", bytes_text(step->saved_bytes, text));
    for (int d = 0; d < fit->info.n_devices && fit->info.n_devices > 1; d++) {
        int64_t bytes = step->saved_bytes < 0 ? -step->device_bytes[d] : step->device_bytes[d];
        if (bytes)
            tsr_plan_put(p, "%s%s %s%s", n++ ? ", " : " (", fit->wanted[d].name, bytes < 0 ? "-" : "",
                         bytes_text(bytes, text));
    }
    tsr_plan_put(p, "%s\n", n ? ")" : "");
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
        tsr_plan_put(p, "  %-*s  ", (int)width, fit->steps[i].text);
        put_saved(p, fit, &fit->steps[i]);
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

/* Rounding of several classes that share the devices' memory.
 *
 * Each class is rounded alone first; if the result fits, it is the answer. Otherwise fractional targets are
 * computed, in which every device that would be over its room is reduced to its room, and a search
 * (fit_search.c) finds the nearest whole granules that fit. All arithmetic is in bytes and integers. */
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "core/status.h"
#include "split/fit.h"
#include "split/round.h"

typedef struct fit {
    const tsr_split_class *classes;
    int n_classes, n_devices;
    bool used[TSR_MAX_DEVICES];    /* has a share in some class */
    int64_t room[TSR_MAX_DEVICES]; /* bytes for granules, at most all there are */
    int64_t needed;                /* bytes of all granules */
    int64_t ideal[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES];
    int64_t count[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES];
} fit;

static tsr_status check_classes(fit *f)
{
    tsr_status status = TSR_OK;

    for (int k = 0; k < f->n_classes; k++) {
        const tsr_split_class *c = &f->classes[k];
        int64_t bytes;
        if (!c->shares || c->n_granules < 0 || c->n_granules > TSR_SPLIT_MAX_GRANULES)
            return tsr_fail(TSR_ERR_INVALID, "class %d needs shares and 0 to %lld granules; it has %lld", k,
                            (long long)TSR_SPLIT_MAX_GRANULES, (long long)c->n_granules);
        if (c->granule_bytes > INT64_MAX / 4 ||
            __builtin_mul_overflow(c->n_granules, (int64_t)c->granule_bytes, &bytes) ||
            bytes > INT64_MAX / 4 - f->needed)
            return tsr_fail(TSR_ERR_INVALID, "class %s: %lld granules of %zu bytes are more than 2^61 bytes",
                            c->name ? c->name : "?", (long long)c->n_granules, c->granule_bytes);
        f->needed += bytes;
        TSR_TRY(tsr_split_ideals(c->shares, f->n_devices, c->n_granules, f->ideal[k]));
        for (int d = 0; d < f->n_devices; d++)
            f->used[d] = f->used[d] || c->shares[d] > 0;
        TSR_TRY(tsr_split_round(c->shares, f->n_devices, c->n_granules, NULL, f->count[k]));
    }
out:
    return status;
}

enum { DEVICE_TEXT = 48 };

/* The name of device d in messages, written to text[DEVICE_TEXT], which is returned. */
static const char *device_text(const tsr_split_room *rooms, int d, char *text)
{
    if (rooms[d].name)
        snprintf(text, DEVICE_TEXT, "device %s", rooms[d].name);
    else
        snprintf(text, DEVICE_TEXT, "device %d", d);
    return text;
}

static tsr_status check_rooms(fit *f, const tsr_split_room *rooms)
{
    char text[DEVICE_TEXT];
    for (int d = 0; d < f->n_devices; d++) {
        if (!f->used[d])
            continue;
        if (rooms[d].fixed_bytes > rooms[d].capacity_bytes)
            return tsr_fail(TSR_ERR_MEMORY,
                            "%s may hold %zu bytes, but %zu are needed there whatever it computes: %zu "
                            "bytes are missing; give it a share of 0 or more memory",
                            device_text(rooms, d, text), rooms[d].capacity_bytes, rooms[d].fixed_bytes,
                            rooms[d].fixed_bytes - rooms[d].capacity_bytes);
        size_t room = rooms[d].capacity_bytes - rooms[d].fixed_bytes;
        f->room[d] = room > (size_t)f->needed ? f->needed : (int64_t)room;
    }
    return TSR_OK;
}

/* By how many bytes a device's counts exceed its room (negative: that much is free). */
static int64_t overrun(const fit *f, int d)
{
    int64_t bytes = -f->room[d];
    for (int k = 0; k < f->n_classes; k++)
        bytes += f->count[k][d] * (int64_t)f->classes[k].granule_bytes;
    return bytes;
}

/* Fractional targets in bytes. A device over its room is pinned at its room, with all its classes scaled
 * alike. The bytes that it loses go to the devices that are not pinned, in proportion to their shares. This
 * is repeated while some device is over its room. Every round pins a device, so there are at most n_devices
 * rounds. */
static void set_targets(const fit *f, int64_t target[][TSR_MAX_DEVICES])
{
    bool pinned[TSR_MAX_DEVICES] = {false}, again = true;

    while (again) {
        again = false;
        for (int k = 0; k < f->n_classes; k++) {
            int64_t open = f->classes[k].n_granules * (int64_t)f->classes[k].granule_bytes, weights = 0;
            for (int d = 0; d < f->n_devices; d++)
                *(pinned[d] ? &open : &weights) += pinned[d] ? -target[k][d] : f->ideal[k][d];
            for (int d = 0; d < f->n_devices; d++)
                if (!pinned[d])
                    target[k][d] = weights ? tsr_split_scale(open, f->ideal[k][d], weights) : 0;
        }
        for (int d = 0; d < f->n_devices; d++) {
            int64_t sum = 0;
            for (int k = 0; k < f->n_classes; k++)
                sum += target[k][d];
            if (pinned[d] || sum <= f->room[d])
                continue;
            for (int k = 0; k < f->n_classes; k++)
                target[k][d] = tsr_split_scale(target[k][d], f->room[d], sum);
            pinned[d] = again = true;
        }
    }
}

int tsr_split_order(const size_t *bytes, int n_classes, int *order)
{
    int n = 0;
    for (int k = 0; k < n_classes; k++) {
        if (bytes[k] == 0)
            continue;
        int at = n++;
        for (; at > 0 && bytes[order[at - 1]] < bytes[k]; at--)
            order[at] = order[at - 1];
        order[at] = k;
    }
    return n;
}

static tsr_status search_counts(fit *f, bool *fits_out)
{
    tsr_status status = TSR_OK;
    tsr_split_fit_problem problem = {.n_devices = f->n_devices};
    int64_t target[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES] = {{0}};
    int64_t found[TSR_SPLIT_MAX_CLASSES][TSR_MAX_DEVICES];
    size_t bytes[TSR_SPLIT_MAX_CLASSES];
    int order[TSR_SPLIT_MAX_CLASSES];

    set_targets(f, target);
    for (int k = 0; k < f->n_classes; k++)
        bytes[k] = f->classes[k].n_granules ? f->classes[k].granule_bytes : 0;
    problem.n_classes = tsr_split_order(bytes, f->n_classes, order);
    memcpy(problem.room_bytes, f->room, sizeof f->room);
    for (int i = 0; i < problem.n_classes; i++) {
        const tsr_split_class *c = &f->classes[order[i]];
        problem.n_granules[i] = c->n_granules;
        problem.granule_bytes[i] = (int64_t)c->granule_bytes;
        memcpy(problem.target_bytes[i], target[order[i]], sizeof target[order[i]]);
        for (int d = 0; d < f->n_devices; d++)
            problem.allowed[i][d] = c->shares[d] > 0;
    }
    TSR_TRY(tsr_split_fit_search(&problem, fits_out, found));
    for (int i = 0; *fits_out && i < problem.n_classes; i++)
        memcpy(f->count[order[i]], found[i], sizeof found[i]);
out:
    return status;
}

/* Bytes that all devices together lack. */
static int64_t shortage(const fit *f)
{
    int64_t missing = f->needed;
    for (int d = 0; d < f->n_devices; d++)
        missing = TSR_MAX(missing - f->room[d], 0);
    return missing;
}

static tsr_status fail_short(const fit *f, const tsr_split_room *rooms)
{
    char text[DEVICE_TEXT];
    int worst = 0;

    for (int d = 0; d < f->n_devices; d++)
        worst = overrun(f, d) > overrun(f, worst) ? d : worst;
    long long over = overrun(f, worst);
    if (shortage(f) > 0)
        return tsr_fail(TSR_ERR_MEMORY,
                        "the model does not fit: %s, which may hold %zu bytes, is %lld bytes short, and "
                        "all devices together are %lld bytes short; add devices or memory, or use a smaller "
                        "model or context",
                        device_text(rooms, worst, text), rooms[worst].capacity_bytes, over,
                        (long long)shortage(f));
    return tsr_fail(TSR_ERR_MEMORY,
                    "the model does not fit in whole granules: %s, which may hold %zu bytes, is %lld "
                    "bytes short; give it more memory or change tensor_split",
                    device_text(rooms, worst, text), rooms[worst].capacity_bytes, over);
}

tsr_status tsr_split_fit_in_rooms(const tsr_split_class *classes, int n_classes, const tsr_split_room *rooms,
                                  int n_devices, int64_t *count_out, bool *no_room)
{
    tsr_status status = TSR_OK;
    fit f = {.classes = classes, .n_classes = n_classes, .n_devices = n_devices};
    bool fits = true;

    if (!classes || !rooms || !count_out || n_classes < 1 || n_classes > TSR_SPLIT_MAX_CLASSES ||
        n_devices < 1 || n_devices > TSR_MAX_DEVICES)
        return tsr_fail(TSR_ERR_INVALID,
                        "cannot fit %d classes on %d devices: 1 to %d classes and 1 to %d devices", n_classes,
                        n_devices, TSR_SPLIT_MAX_CLASSES, TSR_MAX_DEVICES);
    TSR_TRY(check_classes(&f));
    status = check_rooms(&f, rooms);
    if (status != TSR_OK) {
        *no_room = true;
        return status;
    }
    for (int d = 0; d < n_devices; d++)
        fits = fits && overrun(&f, d) <= 0;
    if (!fits && shortage(&f) == 0)
        TSR_TRY(search_counts(&f, &fits));
    if (!fits) {
        *no_room = true;
        return fail_short(&f, rooms);
    }
    for (int k = 0; k < n_classes; k++)
        memcpy(count_out + k * n_devices, f.count[k], (size_t)n_devices * sizeof *count_out);
out:
    return status;
}

tsr_status tsr_split_fit(const tsr_split_class *classes, int n_classes, const tsr_split_room *rooms,
                         int n_devices, int64_t *count_out)
{
    bool no_room = false;
    return tsr_split_fit_in_rooms(classes, n_classes, rooms, n_devices, count_out, &no_room);
}

/* Measured values of the link model: a table ordered by operation and by size, interpolated between sizes.
 * It has all-reduces over sets of devices and transfers from one device to another, distinguished by
 * `from`. Measuring and storing the values is done elsewhere. */
#include "topo/links/links.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"

enum { MOST_VALUES = 1 << 16 };

static tsr_device_set all_devices(const tsr_links *links)
{
    return tsr_device_set_all(links->n_devices);
}

/* The order of the table: operation, then bytes. */
static int compare(const tsr_links_value *a, const tsr_links_value *b)
{
    if (a->from != b->from)
        return a->from < b->from ? -1 : 1;
    if (a->devices != b->devices)
        return a->devices < b->devices ? -1 : 1;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

tsr_status tsr_links_reserve(tsr_links *links, int n)
{
    if (n > MOST_VALUES - links->n_measured)
        return tsr_fail(TSR_ERR_INVALID, "more than %d measured values of links; measure fewer sizes",
                        MOST_VALUES);
    int needed = links->n_measured + n;
    if (needed <= links->n_room)
        return TSR_OK;
    tsr_links_value *grown = tsr_mem_realloc(links->measured, (size_t)needed, sizeof *links->measured);
    if (!grown)
        return tsr_fail(TSR_ERR_MEMORY, "out of host memory for measured values of links");
    links->measured = grown;
    links->n_room = needed;
    return TSR_OK;
}

static tsr_status check(const tsr_links *links, const tsr_links_value *value)
{
    bool several = (value->devices & (value->devices - 1)) != 0;
    if (!(value->ns > 0) || !isfinite(value->ns))
        return tsr_fail(TSR_ERR_INVALID, "a measured value between devices must be positive, not %g ns",
                        value->ns);
    if (value->from < 0 && !several)
        return tsr_fail(TSR_ERR_INVALID, "a measured all-reduce needs two devices or more");
    if (value->from >= links->n_devices || (value->from >= 0 && (several || !value->devices)))
        return tsr_fail(TSR_ERR_INVALID, "a measured transfer must go from one device to one other of the %d",
                        links->n_devices);
    if (value->from >= 0 && value->devices == tsr_device_set_one(value->from))
        return tsr_fail(TSR_ERR_INVALID, "a measured transfer must go to another device than its source");
    return TSR_OK;
}

tsr_status tsr_links_set_measured(tsr_links *links, const tsr_links_value *value)
{
    tsr_status status = TSR_OK;
    tsr_links_value own = *value;
    int at = 0;
    own.from = TSR_MAX(own.from, -1);
    own.devices &= all_devices(links);
    TSR_TRY(check(links, &own));
    while (at < links->n_measured && compare(&links->measured[at], &own) < 0)
        at++;
    if (at == links->n_measured || compare(&links->measured[at], &own) != 0) {
        TSR_TRY(tsr_links_reserve(links, 1));
        memmove(&links->measured[at + 1], &links->measured[at],
                (size_t)(links->n_measured - at) * sizeof own);
        links->n_measured++;
    }
    links->measured[at] = own;
out:
    return status;
}

int tsr_links_n_measured(const tsr_links *links)
{
    return links->n_measured;
}

const tsr_links_value *tsr_links_measured(const tsr_links *links, int index)
{
    return index >= 0 && index < links->n_measured ? &links->measured[index] : NULL;
}

/* -- interpolation -- */

/* The values of one set of devices or one route: their number, and the first. */
static int values_of(const tsr_links *links, int from, tsr_device_set devices,
                     const tsr_links_value **first_out)
{
    const tsr_links_value *m = links->measured;
    int first = 0, end;
    devices &= all_devices(links);
    const tsr_links_value key = {.from = from, .devices = devices};
    while (first < links->n_measured && compare(&m[first], &key) < 0)
        first++;
    for (end = first; end < links->n_measured && m[end].from == from && m[end].devices == devices;)
        end++;
    *first_out = m ? m + first : NULL;
    return end - first;
}

/* Linear interpolation between two values. */
static double on_line(const tsr_links_value *a, const tsr_links_value *b, double bytes)
{
    double slope = (b->ns - a->ns) / ((double)b->bytes - (double)a->bytes);
    return a->ns + TSR_MAX(slope, 0) * (bytes - (double)a->bytes);
}

double tsr_links_measured_ns(const tsr_links *links, int from, tsr_device_set devices, uint64_t bytes)
{
    const tsr_links_value *m;
    int n = values_of(links, from, devices, &m);
    if (n == 0)
        return -1;
    if (bytes <= m[0].bytes)
        return m[0].ns;
    for (int i = 1; i < n; i++)
        if (bytes <= m[i].bytes)
            return on_line(&m[i - 1], &m[i], (double)bytes);
    if (n >= 2)
        return TSR_MAX(on_line(&m[n - 2], &m[n - 1], (double)bytes), m[n - 1].ns);
    return m[0].ns * ((double)bytes / (double)TSR_MAX(m[0].bytes, 1)); /* one value: proportional */
}

bool tsr_links_measured_link(const tsr_links *links, int from, int to, tsr_link *link)
{
    const tsr_links_value *m;
    int n = values_of(links, from, tsr_device_set_one(to), &m);
    if (n == 0)
        return false;
    link->latency_ns = m[0].ns;
    link->bytes_per_s = (double)TSR_MAX(m[n - 1].bytes, 1) / m[n - 1].ns * 1e9;
    link->guessed = false;
    link->measured = true;
    return true;
}

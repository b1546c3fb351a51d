/* Stop strings; see run_stop.h. */
#include "run_stop.h"

#include <string.h>

/* The longest beginning of `string` that is the end of its first `matched` bytes followed by `byte`. */
static size_t extend(const char *string, size_t matched, char byte)
{
    for (size_t n = matched + 1; n > 0; n--)
        if (string[n - 1] == byte && memcmp(string, string + matched - (n - 1), n - 1) == 0)
            return n;
    return 0;
}

/* The string with the most matched bytes: those are held back. */
static int longest(const run_stop *stop)
{
    int best = 0;
    for (int i = 1; i < stop->strings->n; i++)
        if (stop->matched[i] > stop->matched[best])
            best = i;
    return best;
}

/* Bytes of the longest string that `byte` completes, 0 if none. */
static size_t push_byte(run_stop *stop, char byte)
{
    size_t complete = 0;
    for (int i = 0; i < stop->strings->n; i++) {
        const char *string = stop->strings->items[i];
        stop->matched[i] = extend(string, stop->matched[i], byte);
        if (string[stop->matched[i]] == '\0' && stop->matched[i] > complete)
            complete = stop->matched[i];
    }
    return complete;
}

bool run_stop_push(run_stop *stop, tsr_bytes text, tsr_bytes parts_out[2])
{
    parts_out[0] = (tsr_bytes){0};
    parts_out[1] = text;
    if (stop->strings->n == 0)
        return false;
    const int before = longest(stop);
    const tsr_bytes held = {stop->strings->items[before], stop->matched[before]};
    size_t at = 0, complete = 0;
    while (at < text.bytes && complete == 0)
        complete = push_byte(stop, text.data[at++]);
    const size_t kept = complete ? complete : stop->matched[longest(stop)];
    const size_t free_bytes = held.bytes + at - kept;
    parts_out[0] = (tsr_bytes){held.data, free_bytes < held.bytes ? free_bytes : held.bytes};
    parts_out[1] = (tsr_bytes){text.data, free_bytes - parts_out[0].bytes};
    if (complete)
        memset(stop->matched, 0, sizeof stop->matched);
    return complete > 0;
}

tsr_bytes run_stop_finish(run_stop *stop)
{
    if (stop->strings->n == 0)
        return (tsr_bytes){0};
    const int best = longest(stop);
    const tsr_bytes held = {stop->strings->items[best], stop->matched[best]};
    memset(stop->matched, 0, sizeof stop->matched);
    return held;
}

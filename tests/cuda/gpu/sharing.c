/* See sharing.h. */
#include "cuda/gpu/sharing.h"

#include <assert.h>
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

gpu_sharing_state gpu_sharing;

static const char cuda[] = "cuda";
enum { NAME = sizeof cuda - 1 };

/* One part of the list: a device, or an option of the device before. */
static size_t put_part(const gpu_sharing_state *s, const char *part, size_t n, char *to, size_t room)
{
    const bool is_gpu = strncmp(part, cuda, NAME) == 0;
    size_t used = 0;
    if (is_gpu && n == NAME) {
        for (int i = 0; i < s->n_described; i++)
            used += (size_t)snprintf(to + used, room - used, "%s%s:%d", i ? "," : "", cuda, i % s->n_real);
        return used;
    }
    if (is_gpu && part[NAME] == ':' && isdigit((unsigned char)part[NAME + 1]))
        return (size_t)snprintf(to, room, "%s:%d", cuda, atoi(part + NAME + 1) % s->n_real);
    return (size_t)snprintf(to, room, "%.*s", (int)n, part);
}

const char *gpu_sharing_devices(const gpu_sharing_state *state, const char *devices,
                                char text[GPU_SHARING_TEXT])
{
    size_t used = 0;
    if (!devices || state->n_real >= state->n_described)
        return devices;
    for (const char *part = devices;; part++) {
        const size_t n = strcspn(part, ",");
        used += put_part(state, part, n, text + used, GPU_SHARING_TEXT - used);
        assert(used + 1 < GPU_SHARING_TEXT);
        part += n;
        if (*part == '\0')
            break;
        text[used++] = ',';
    }
    text[used] = '\0';
    return text;
}

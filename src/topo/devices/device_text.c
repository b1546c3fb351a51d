/* Parser of the --devices text. The grammar is in tsr/device_list.h. The text is cut at commas and each piece
 * is parsed separately, so that a message can quote the piece. */
#include "topo/devices/device_text.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tsr/bytes.h>

#include "core/mem.h"
#include "core/status.h"

enum { PIECE_BYTES = 64, MAX_THREADS = 1024, MAX_CPU = 65535 };

static const char remedy[] = "write e.g. 'host:2,mem=4GiB,threads=8'";

/* The next piece without surrounding blanks, cut where it is too long; false at the end of the text. */
static bool next_piece(const char **text, char piece[PIECE_BYTES])
{
    if (!*text)
        return false;
    const char *comma = strchr(*text, ',');
    const char *from = *text;
    const char *to = comma ? comma : from + strlen(from);
    while (from < to && isspace((unsigned char)*from))
        from++;
    while (to > from && isspace((unsigned char)to[-1]))
        to--;
    snprintf(piece, PIECE_BYTES, "%.*s", (int)TSR_MIN(to - from, PIECE_BYTES - 1), from);
    *text = comma ? comma + 1 : NULL;
    return true;
}

/* A whole number in [least, most] and nothing after the number. */
static bool parse_number(const char *text, int least, int most, int *value_out)
{
    char *end;
    if (!isdigit((unsigned char)*text))
        return false;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || *end || value < least || value > most)
        return false;
    *value_out = (int)value;
    return true;
}

/* "0-7" or "3"; a piece "16-23" after it continues the list. */
static tsr_status parse_cpus(const char *range, const char *piece, tsr_device_item *item)
{
    char first[PIECE_BYTES];
    const char *dash = strchr(range, '-');
    int from, to, n = item->n_cpu_ranges;
    snprintf(first, sizeof first, "%.*s", (int)strcspn(range, "-"), range);
    if (item->kind != TSR_DEVICE_CUDA)
        return tsr_fail(TSR_ERR_INVALID,
                        "devices: '%s' follows a host device; cpus= is for the host threads of cuda devices, "
                        "host devices have threads=",
                        piece);
    if (!parse_number(first, 0, MAX_CPU, &from) || !parse_number(dash ? dash + 1 : first, from, MAX_CPU, &to))
        return tsr_fail(TSR_ERR_INVALID, "devices: cannot parse CPU list '%s'; write e.g. cpus=0-7,16-23",
                        piece);
    if (n == TSR_DEVICE_CPU_RANGES)
        return tsr_fail(TSR_ERR_INVALID, "devices: range '%s' exceeds the limit of %d ranges", piece,
                        TSR_DEVICE_CPU_RANGES);
    item->cpus[n].first = from;
    item->cpus[n].last = to;
    item->n_cpu_ranges++;
    return TSR_OK;
}

/* "managed=1" and similar options of GPUs. */
static tsr_status parse_switch(const char *piece, const tsr_device_item *item, bool *on)
{
    const char *value = strchr(piece, '=') + 1;
    if (item->kind != TSR_DEVICE_CUDA)
        return tsr_fail(TSR_ERR_INVALID, "devices: '%s' follows a host device; it is for cuda devices",
                        piece);
    if (strcmp(value, "0") != 0 && strcmp(value, "1") != 0)
        return tsr_fail(TSR_ERR_INVALID, "devices: '%s' is neither on nor off; write %.*s=1 or %.*s=0", piece,
                        (int)(value - piece - 1), piece, (int)(value - piece - 1), piece);
    *on = *value == '1';
    return TSR_OK;
}

/* The kernel sets of all builds (src/host/kernels/sets). Whether this build and this machine have the set is
 * checked when the host device is opened: the text may be about another machine. */
static bool is_isa_name(const char *name)
{
    static const char *const names[] = {"amx",  "avx512bf16", "avx512vnni", "avx512", "avxvnni",
                                        "avx2", "dotprod",    "neon",       "generic"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

static tsr_status parse_isa(const char *piece, tsr_device_item *item)
{
    const char *name = piece + 4;
    if (item->kind == TSR_DEVICE_CUDA)
        return tsr_fail(TSR_ERR_INVALID, "devices: '%s' follows a cuda device; isa= is for host devices",
                        piece);
    if (*item->isa)
        return tsr_fail(TSR_ERR_INVALID, "devices: '%s' gives isa= twice for one item; keep one", piece);
    if (!is_isa_name(name))
        return tsr_fail(TSR_ERR_INVALID,
                        "devices: '%s' is no instruction set of kernels; x86-64 has isa=amx, avx512bf16, "
                        "avx512vnni, avx512, avxvnni and avx2, AArch64 has dotprod and neon, all have "
                        "isa=generic",
                        piece);
    memcpy(item->isa, name, strlen(name) + 1);
    return TSR_OK;
}

static tsr_status parse_duty(const char *piece, tsr_device_item *item)
{
    char number[PIECE_BYTES];
    snprintf(number, sizeof number, "%s", piece + 5);
    number[strcspn(number, "%")] = '\0';
    if (item->kind == TSR_DEVICE_CUDA)
        return tsr_fail(TSR_ERR_INVALID, "devices: '%s' follows a cuda device; duty= is for host devices",
                        piece);
    if (item->duty)
        return tsr_fail(TSR_ERR_INVALID, "devices: '%s' gives duty= twice for one item; keep one", piece);
    if (!parse_number(number, 1, 100, &item->duty))
        return tsr_fail(TSR_ERR_INVALID, "devices: '%s' is not a percentage; write duty=1%% to duty=100%%",
                        piece);
    return TSR_OK;
}

static tsr_status parse_option(const char *piece, tsr_device_item *item)
{
    if (strncmp(piece, "managed=", 8) == 0)
        return parse_switch(piece, item, &item->managed);
    if (strncmp(piece, "wrap=", 5) == 0)
        return parse_switch(piece, item, &item->wrap);
    if (strncmp(piece, "mem=", 4) == 0) {
        if (item->mem_cap_bytes)
            return tsr_fail(TSR_ERR_INVALID, "devices: '%s' gives mem= twice for one item; keep one", piece);
        if (tsr_bytes_parse(piece + 4, &item->mem_cap_bytes) != TSR_OK || item->mem_cap_bytes == 0)
            return tsr_fail(
                TSR_ERR_INVALID,
                "devices: cannot parse memory cap '%s'; write e.g. mem=200MiB, mem=1.5GB or mem=4096", piece);
        return TSR_OK;
    }
    if (strncmp(piece, "cpus=", 5) == 0) {
        if (item->n_cpu_ranges)
            return tsr_fail(TSR_ERR_INVALID, "devices: '%s' gives cpus= twice for one item; keep one", piece);
        return parse_cpus(piece + 5, piece, item);
    }
    if (strncmp(piece, "threads=", 8) == 0 && item->kind == TSR_DEVICE_CUDA)
        return tsr_fail(TSR_ERR_INVALID, "devices: '%s' follows a cuda device; threads= is for host devices",
                        piece);
    if (strncmp(piece, "threads=", 8) == 0) {
        if (item->threads)
            return tsr_fail(TSR_ERR_INVALID, "devices: '%s' gives threads= twice for one item; keep one",
                            piece);
        if (!parse_number(piece + 8, 1, MAX_THREADS, &item->threads))
            return tsr_fail(TSR_ERR_INVALID,
                            "devices: cannot parse thread count '%s'; write threads=1 to threads=%d", piece,
                            MAX_THREADS);
        return TSR_OK;
    }
    if (strncmp(piece, "isa=", 4) == 0)
        return parse_isa(piece, item);
    if (strncmp(piece, "duty=", 5) == 0)
        return parse_duty(piece, item);
    return tsr_fail(TSR_ERR_INVALID,
                    "devices: unknown option '%s'; the options are mem=BYTES, threads=N, isa=NAME and "
                    "duty=N%%, for cuda devices mem=BYTES, cpus=LIST, managed=1 and wrap=1",
                    piece);
}

/* Whether the text looks like a UUID or a PCI bus id; it is resolved once the GPUs are known. */
static bool is_gpu_name(const char *text)
{
    bool is_uuid = strncasecmp(text, "GPU-", 4) == 0 || strncasecmp(text, "MIG-", 4) == 0;
    bool is_bus_id = strchr(text, ':') && strspn(text, "0123456789abcdefABCDEF:.") == strlen(text);
    return (is_uuid && text[4]) || is_bus_id;
}

static tsr_status parse_device(const char *piece, tsr_device_item *item_out)
{
    size_t length = strcspn(piece, ":");
    const char *number = piece[length] == ':' ? piece + length + 1 : NULL;
    bool is_host = length == 4 && strncmp(piece, "host", length) == 0;
    bool is_cuda = length == 4 && strncmp(piece, "cuda", length) == 0;
    if (!is_host && !is_cuda)
        return tsr_fail(TSR_ERR_INVALID,
                        "devices: unknown kind of device '%s'; the kinds are host and cuda, %s", piece,
                        remedy);
    *item_out = (tsr_device_item){.kind = is_cuda ? TSR_DEVICE_CUDA : TSR_DEVICE_HOST, .gpu = -1};
    if (number && is_host && !parse_number(number, 1, TSR_MAX_DEVICES, &item_out->count))
        return tsr_fail(TSR_ERR_INVALID, "devices: '%s': the number of devices is 1 to %d, %s", piece,
                        TSR_MAX_DEVICES, remedy);
    if (number && is_cuda && is_gpu_name(number) && strlen(number) < sizeof item_out->gpu_name)
        snprintf(item_out->gpu_name, sizeof item_out->gpu_name, "%s", number);
    else if (number && is_cuda && !parse_number(number, 0, INT_MAX, &item_out->gpu))
        return tsr_fail(TSR_ERR_INVALID,
                        "devices: '%s': GPUs are numbered from 0; write e.g. 'cuda:0,cuda:1', or a UUID or "
                        "PCI bus id as in nvidia-smi",
                        piece);
    return TSR_OK;
}

static bool is_blank(const char *text)
{
    return !text || text[strspn(text, " \t\r\n")] == '\0';
}

tsr_status tsr_device_spec_parse(const char *text, const char *by_default, tsr_device_spec *spec_out)
{
    tsr_status status = TSR_OK;
    tsr_device_spec spec = {0};
    char piece[PIECE_BYTES];
    bool in_cpus = false; /* the previous piece was cpus= or continued it */
    const char *rest = is_blank(text) ? by_default : text;

    while (next_piece(&rest, piece)) {
        if (!*piece) {
            status =
                tsr_fail(TSR_ERR_INVALID,
                         "devices: '%s' has an empty item between two commas or at an end; %s", text, remedy);
            goto out;
        }
        if (strlen(piece) == PIECE_BYTES - 1) {
            status = tsr_fail(TSR_ERR_INVALID, "devices: '%s...' is too long for an item; %s", piece, remedy);
            goto out;
        }
        if (isdigit((unsigned char)*piece) && in_cpus) {
            TSR_TRY(parse_cpus(piece, piece, &spec.items[spec.n_items - 1]));
            continue;
        }
        in_cpus = strncmp(piece, "cpus=", 5) == 0;
        if (strchr(piece, '=')) {
            if (spec.n_items == 0) {
                status = tsr_fail(TSR_ERR_INVALID, "devices: option '%s' comes before any device; %s", piece,
                                  remedy);
                goto out;
            }
            TSR_TRY(parse_option(piece, &spec.items[spec.n_items - 1]));
            continue;
        }
        if (spec.n_items == TSR_MAX_DEVICES) {
            status = tsr_fail(TSR_ERR_INVALID, "devices: item '%s' exceeds the limit of %d devices", piece,
                              TSR_MAX_DEVICES);
            goto out;
        }
        TSR_TRY(parse_device(piece, &spec.items[spec.n_items]));
        spec.n_items++;
    }
    *spec_out = spec;
out:
    return status;
}

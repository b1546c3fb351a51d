/* Byte counts as text: of every report, and of the texts of devices, machines and options. */
#include <tsr/bytes.h>

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <strings.h>

#include "core/status.h"

const char *tsr_bytes_text(uint64_t bytes, char *text)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 1024 && unit < 6; unit++)
        value /= 1024;
    bool whole = value == (double)(int)value || value >= 100;
    snprintf(text, TSR_BYTES_TEXT, "%.*f %s", whole ? 0 : 1, value, units[unit]);
    return text;
}

tsr_status tsr_bytes_parse(const char *text, uint64_t *bytes_out)
{
    static const struct {
        const char *suffix;
        double factor;
    } units[] = {{"", 1},       {"B", 1},        {"KB", 1e3},     {"MB", 1e6},    {"GB", 1e9},
                 {"TB", 1e12},  {"K", 0x1p10},   {"KiB", 0x1p10}, {"M", 0x1p20},  {"MiB", 0x1p20},
                 {"G", 0x1p30}, {"GiB", 0x1p30}, {"T", 0x1p40},   {"TiB", 0x1p40}};
    const char *p = text ? text : "";
    /* Parsed by hand: strtod would also accept signs, exponents, "nan", and another locale's comma. */
    double value = 0, place = 1;
    bool digits = false;
    for (; isdigit((unsigned char)*p); p++, digits = true)
        value = value * 10 + (*p - '0');
    if (*p == '.')
        for (p++; isdigit((unsigned char)*p); p++, digits = true)
            value += (*p - '0') * (place /= 10);
    while (*p == ' ')
        p++;
    for (size_t i = 0; digits && i < sizeof units / sizeof *units; i++) {
        if (strcasecmp(p, units[i].suffix) != 0)
            continue;
        if (value * units[i].factor >= 0x1p63)
            return tsr_fail(TSR_ERR_INVALID, "'%s' exceeds the memory of any machine", text);
        *bytes_out = (uint64_t)(value * units[i].factor);
        return TSR_OK;
    }
    return tsr_fail(TSR_ERR_INVALID, "cannot parse byte count '%s'; write e.g. 200MiB, 1.5GB or 4096",
                    text ? text : "(null)");
}

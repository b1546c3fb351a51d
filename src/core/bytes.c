/* Byte counts as text, for every report of the library and of its tools. */
#include <tsr/bytes.h>

#include <stdbool.h>
#include <stdio.h>

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

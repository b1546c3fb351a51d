/* tensor_split: from text to floats (request.c makes shares of them).
 *
 * Numbers are read by hand because strtod() follows the process's locale: in a German locale, reading "0.5"
 * would stop at the point. A proportion needs no correct rounding in the last bit, so a decimal mantissa and
 * a power of ten are enough. */
#include <tsr/split.h>

#include <ctype.h>
#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "core/status.h"

enum { SHOWN = 32 }; /* characters of a bad entry that a message repeats */

static const char *skip_blanks(const char *s, const char *end)
{
    while (s < end && isspace((unsigned char)*s))
        s++;
    return s;
}

/* Read digits into *value; *scale counts the digits after the point. A double cannot hold more than 18
 * digits. */
static const char *read_digits(const char *s, const char *end, double *value, int *scale, bool fraction)
{
    for (; s < end && isdigit((unsigned char)*s); s++) {
        *value = *value * 10 + (*s - '0');
        if (fraction)
            ++*scale;
    }
    return s;
}

/* [+-]digits[.digits][e[+-]digits], the whole of [s, end). */
static bool read_number(const char *s, const char *end, double *number_out)
{
    double value = 0;
    int scale = 0, exponent = 0;
    bool negative = s < end && *s == '-', exponent_negative;

    if (s < end && (*s == '-' || *s == '+'))
        s++;
    const char *digits = s;
    s = read_digits(s, end, &value, &scale, false);
    bool any = s > digits;
    if (s < end && *s == '.') {
        digits = ++s;
        s = read_digits(s, end, &value, &scale, true);
        any = any || s > digits;
    }
    if (!any)
        return false;
    if (s < end && (*s == 'e' || *s == 'E')) {
        s++;
        exponent_negative = s < end && *s == '-';
        if (s < end && (*s == '-' || *s == '+'))
            s++;
        digits = s;
        for (; s < end && isdigit((unsigned char)*s); s++)
            exponent = TSR_MIN(exponent * 10 + (*s - '0'), 9999);
        if (s == digits)
            return false;
        exponent = exponent_negative ? -exponent : exponent;
    }
    if (value > 0)
        value *= pow(10, exponent - scale);
    *number_out = negative ? -value : value;
    return s == end;
}

/* "inf", "nan" and their variants: strtod() reads them as numbers, and they get a message of their own. */
static bool is_non_finite_word(const char *s, const char *end)
{
    static const char *const words[] = {"inf", "nan", "infinity"};
    char lower[SHOWN] = "";
    if (s < end && (*s == '-' || *s == '+'))
        s++;
    if (end - s >= SHOWN)
        return false;
    for (int i = 0; s + i < end; i++)
        lower[i] = (char)tolower((unsigned char)s[i]);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(lower, words[i]))
            return true;
    return false;
}

static tsr_status read_entry(const char *s, const char *end, int number, float *out)
{
    double value;
    int shown = (int)TSR_MIN(end - s, SHOWN);

    if (s == end)
        return tsr_fail(TSR_ERR_INVALID,
                        "tensor_split entry %d is empty; write a number, 0 leaves the device out", number);
    if (is_non_finite_word(s, end))
        return tsr_fail(TSR_ERR_INVALID, "tensor_split entry %d is \"%.*s\"; it must be a finite proportion",
                        number, shown, s);
    if (!read_number(s, end, &value))
        return tsr_fail(TSR_ERR_INVALID,
                        "tensor_split entry %d is \"%.*s\", not a number; write proportions like 3,1", number,
                        shown, s);
    if (value < 0)
        return tsr_fail(TSR_ERR_INVALID,
                        "tensor_split entry %d is \"%.*s\"; it must not be negative, 0 leaves the device out",
                        number, shown, s);
    *out = (float)value;
    if (!isfinite(*out))
        return tsr_fail(
            TSR_ERR_INVALID,
            "tensor_split entry %d is \"%.*s\", too large for a float; scale the proportions down", number,
            shown, s);
    return TSR_OK;
}

tsr_status tsr_split_parse(const char *text, float *out, int capacity, int *n_out)
{
    tsr_status status = TSR_OK;
    float values[TSR_MAX_DEVICES];
    int n = 0, most = TSR_MIN(capacity, TSR_MAX_DEVICES);

    if (!text || !out || !n_out || capacity < 1)
        return tsr_fail(TSR_ERR_INVALID, "tsr_split_parse needs a text, an array with room, and a count");
    for (const char *s = text;; s++) {
        const char *separator = s + strcspn(s, ",/"), *end = separator;
        s = skip_blanks(s, end);
        while (end > s && isspace((unsigned char)end[-1]))
            end--;
        if (n == most)
            return tsr_fail(TSR_ERR_INVALID,
                            "tensor_split entry %d is one too many: at most %d devices can be named", n + 1,
                            most);
        TSR_TRY(read_entry(s, end, n + 1, &values[n]));
        n++;
        s = separator;
        if (!*s)
            break;
    }
    memcpy(out, values, (size_t)n * sizeof *values);
    *n_out = n;
out:
    return status;
}

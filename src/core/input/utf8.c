/* UTF-8 validation; see utf8.h for the rules. */
#include "core/input/utf8.h"

#include <string.h>

/* Requirements of a lead byte: the length, and the range of the second byte, which excludes overlong
 * forms, surrogates and values beyond U+10FFFF (RFC 3629, section 4). Length 0: not a lead byte. */
typedef struct lead_rule {
    unsigned length;
    uint8_t second_min, second_max;
} lead_rule;

static lead_rule lead_rule_of(uint8_t lead)
{
    if (lead < 0x80)
        return (lead_rule){1, 0x80, 0xBF};
    if (lead < 0xC2)
        return (lead_rule){0, 0x80, 0xBF};
    if (lead < 0xE0)
        return (lead_rule){2, 0x80, 0xBF};
    if (lead < 0xF0)
        return (lead_rule){3, lead == 0xE0 ? 0xA0 : 0x80, lead == 0xED ? 0x9F : 0xBF};
    if (lead < 0xF5)
        return (lead_rule){4, lead == 0xF0 ? 0x90 : 0x80, lead == 0xF4 ? 0x8F : 0xBF};
    return (lead_rule){0, 0x80, 0xBF};
}

size_t tsr_utf8_sequence(const char *text, size_t bytes, bool *cut_out)
{
    bool cut = false;
    size_t length = 0;

    if (bytes) {
        lead_rule rule = lead_rule_of((uint8_t)text[0]);
        size_t good = rule.length ? 1 : 0;
        while (good && good < rule.length && good < bytes) {
            uint8_t next = (uint8_t)text[good];
            uint8_t min = good == 1 ? rule.second_min : 0x80, max = good == 1 ? rule.second_max : 0xBF;
            if (next < min || next > max)
                break;
            good++;
        }
        cut = good && good < rule.length && good == bytes;
        length = good == rule.length ? good : 0;
    }
    if (cut_out)
        *cut_out = cut;
    return length;
}

bool tsr_utf8_is_control(const char *sequence)
{
    const uint8_t first = (uint8_t)sequence[0];
    return first < 0x20 || first == 0x7F || (first == 0xC2 && (uint8_t)sequence[1] < 0xA0);
}

size_t tsr_utf8_valid_prefix(const char *text, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        uint64_t eight;
        if (bytes - at >= sizeof eight) { /* mostly ASCII: eight bytes at a time */
            memcpy(&eight, text + at, sizeof eight);
            if (!(eight & 0x8080808080808080u)) {
                at += sizeof eight;
                continue;
            }
        }
        size_t length = tsr_utf8_sequence(text + at, bytes - at, NULL);
        if (!length)
            break;
        at += length;
    }
    return at;
}

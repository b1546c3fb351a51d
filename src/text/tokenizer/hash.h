/* Hashes of short texts and of numbers, for tables in memory only. */
#ifndef TSR_TEXT_TOKENIZER_HASH_H
#define TSR_TEXT_TOKENIZER_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Multiply-and-shift by an odd constant (2^64 / golden ratio; Knuth, TAOCP 3, section 6.4). */
static inline uint64_t tsr_hash_mix(uint64_t value)
{
    value *= 0x9E3779B97F4A7C15u;
    return value ^ (value >> 32);
}

/* `bytes` is a constant 4 or 8 in all calls. */
static inline uint64_t tsr_hash_load(const char *text, size_t bytes)
{
    uint64_t value = 0;
    memcpy(&value, text, bytes);
    return value;
}

/* Of text[bytes], bytes > 0. Eight bytes at a time; the last eight may overlap the previous ones, so that
 * no loop over single bytes is needed. */
static inline uint32_t tsr_hash_text(const char *text, size_t bytes)
{
    const char *end = text + bytes;
    uint64_t hash = bytes, last;

    if (bytes >= 8) {
        for (; end - text > 8; text += 8)
            hash = tsr_hash_mix(hash ^ tsr_hash_load(text, 8));
        last = tsr_hash_load(end - 8, 8);
    } else if (bytes >= 4) {
        last = tsr_hash_load(text, 4) << 32 | tsr_hash_load(end - 4, 4);
    } else {
        last = (uint64_t)(uint8_t)text[0] << 16 | (uint64_t)(uint8_t)text[bytes / 2] << 8 | (uint8_t)end[-1];
    }
    return (uint32_t)tsr_hash_mix(hash ^ last);
}

#endif

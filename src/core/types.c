/* The table of element types and the public calls that read it. */
#include <tsr/types.h>

#include <stdio.h>
#include <strings.h>

#include "core/mem.h"
#include "core/quant/quant.h"
#include "core/status.h"

static void decode_f32(const void *src, float *dst, int64_t n)
{
    memcpy(dst, src, (size_t)n * sizeof *dst);
}

static void encode_f32(const float *src, void *dst, int64_t n)
{
    memcpy(dst, src, (size_t)n * sizeof *src);
}

static void decode_f16(const void *src, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, (const char *)src + (size_t)i * sizeof half, sizeof half);
        dst[i] = tsr_f16_to_f32(half);
    }
}

static void encode_f16(const float *src, void *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t half = tsr_f32_to_f16(src[i]);
        memcpy((char *)dst + (size_t)i * sizeof half, &half, sizeof half);
    }
}

static void decode_bf16(const void *src, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, (const char *)src + (size_t)i * sizeof half, sizeof half);
        dst[i] = tsr_bf16_to_f32(half);
    }
}

static void encode_bf16(const float *src, void *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t half = tsr_f32_to_bf16(src[i]);
        memcpy((char *)dst + (size_t)i * sizeof half, &half, sizeof half);
    }
}

struct type_traits {
    const char *name; /* NULL: no such type */
    int block_elems;
    size_t block_bytes;
    void (*decode)(const void *src, float *dst, int64_t n_blocks); /* NULL for the integer types */
    void (*encode)(const float *src, void *dst, int64_t n_blocks);
};

static const struct type_traits table[] = {
    [TSR_TYPE_F32] = {"F32", 1, 4, decode_f32, encode_f32},
    [TSR_TYPE_F16] = {"F16", 1, 2, decode_f16, encode_f16},
    [TSR_TYPE_BF16] = {"BF16", 1, 2, decode_bf16, encode_bf16},
    [TSR_TYPE_Q8_0] = {"Q8_0", 32, sizeof(tsr_block_q8_0), tsr_quant_decode_q8_0, tsr_quant_encode_q8_0},
    [TSR_TYPE_Q4_0] = {"Q4_0", 32, sizeof(tsr_block_q4_0), tsr_quant_decode_q4_0, tsr_quant_encode_q4_0},
    [TSR_TYPE_Q4_K] = {"Q4_K", 256, sizeof(tsr_block_q4_k), tsr_quant_decode_q4_k, tsr_quant_encode_q4_k},
    [TSR_TYPE_Q5_K] = {"Q5_K", 256, sizeof(tsr_block_q5_k), tsr_quant_decode_q5_k, tsr_quant_encode_q5_k},
    [TSR_TYPE_Q6_K] = {"Q6_K", 256, sizeof(tsr_block_q6_k), tsr_quant_decode_q6_k, tsr_quant_encode_q6_k},
    [TSR_TYPE_I32] = {"I32", 1, 4, NULL, NULL},
    [TSR_TYPE_I64] = {"I64", 1, 8, NULL, NULL},
    [TSR_TYPE_Q4_1] = {"Q4_1", 32, sizeof(tsr_block_q4_1), tsr_quant_decode_q4_1, tsr_quant_encode_q4_1},
    [TSR_TYPE_Q5_0] = {"Q5_0", 32, sizeof(tsr_block_q5_0), tsr_quant_decode_q5_0, tsr_quant_encode_q5_0},
    [TSR_TYPE_Q5_1] = {"Q5_1", 32, sizeof(tsr_block_q5_1), tsr_quant_decode_q5_1, tsr_quant_encode_q5_1},
    [TSR_TYPE_Q2_K] = {"Q2_K", 256, sizeof(tsr_block_q2_k), tsr_quant_decode_q2_k, tsr_quant_encode_q2_k},
    [TSR_TYPE_Q3_K] = {"Q3_K", 256, sizeof(tsr_block_q3_k), tsr_quant_decode_q3_k, tsr_quant_encode_q3_k},
    [TSR_TYPE_IQ2_XXS] = {"IQ2_XXS", 256, sizeof(tsr_block_iq2_xxs), tsr_quant_decode_iq2_xxs,
                          tsr_quant_encode_iq2_xxs},
    [TSR_TYPE_IQ2_XS] = {"IQ2_XS", 256, sizeof(tsr_block_iq2_xs), tsr_quant_decode_iq2_xs,
                         tsr_quant_encode_iq2_xs},
    [TSR_TYPE_IQ3_XXS] = {"IQ3_XXS", 256, sizeof(tsr_block_iq3_xxs), tsr_quant_decode_iq3_xxs,
                          tsr_quant_encode_iq3_xxs},
    [TSR_TYPE_IQ1_S] = {"IQ1_S", 256, sizeof(tsr_block_iq1_s), tsr_quant_decode_iq1_s,
                        tsr_quant_encode_iq1_s},
    [TSR_TYPE_IQ4_NL] = {"IQ4_NL", 32, sizeof(tsr_block_iq4_nl), tsr_quant_decode_iq4_nl,
                         tsr_quant_encode_iq4_nl},
    [TSR_TYPE_IQ3_S] = {"IQ3_S", 256, sizeof(tsr_block_iq3_s), tsr_quant_decode_iq3_s,
                        tsr_quant_encode_iq3_s},
    [TSR_TYPE_IQ2_S] = {"IQ2_S", 256, sizeof(tsr_block_iq2_s), tsr_quant_decode_iq2_s,
                        tsr_quant_encode_iq2_s},
    [TSR_TYPE_IQ4_XS] = {"IQ4_XS", 256, sizeof(tsr_block_iq4_xs), tsr_quant_decode_iq4_xs,
                         tsr_quant_encode_iq4_xs},
    [TSR_TYPE_IQ1_M] = {"IQ1_M", 256, sizeof(tsr_block_iq1_m), tsr_quant_decode_iq1_m,
                        tsr_quant_encode_iq1_m},
    [TSR_TYPE_TQ1_0] = {"TQ1_0", 256, sizeof(tsr_block_tq1_0), tsr_quant_decode_tq1_0,
                        tsr_quant_encode_tq1_0},
    [TSR_TYPE_TQ2_0] = {"TQ2_0", 256, sizeof(tsr_block_tq2_0), tsr_quant_decode_tq2_0,
                        tsr_quant_encode_tq2_0},
    [TSR_TYPE_MXFP4] = {"MXFP4", 32, sizeof(tsr_block_mxfp4), tsr_quant_decode_mxfp4, tsr_quant_encode_mxfp4},
    [TSR_TYPE_NVFP4] = {"NVFP4", 64, sizeof(tsr_block_nvfp4), tsr_quant_decode_nvfp4, tsr_quant_encode_nvfp4},
};

enum { TABLE_SIZE = sizeof table / sizeof table[0] };

/* NULL for an unknown type. */
static const struct type_traits *traits_of(int type)
{
    if (type < 0 || type >= TABLE_SIZE || !table[type].name)
        return NULL;
    return &table[type];
}

bool tsr_type_known(int type)
{
    return traits_of(type) != NULL;
}

const char *tsr_type_name(tsr_type type)
{
    const struct type_traits *traits = traits_of((int)type);
    return traits ? traits->name : "?";
}

void tsr_type_list(char *text, size_t capacity)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < TABLE_SIZE && used < capacity; i++)
        if (tsr_type_known(i))
            used += (size_t)snprintf(text + used, capacity - used, "%s%s", used ? ", " : "", table[i].name);
}

tsr_status tsr_type_parse(const char *name, tsr_type *type_out)
{
    if (!name || !type_out)
        return tsr_fail(TSR_ERR_INVALID, "tsr_type_parse: name and type_out must not be NULL");
    for (int i = 0; i < TABLE_SIZE; i++) {
        if (tsr_type_known(i) && strcasecmp(name, table[i].name) == 0) {
            *type_out = (tsr_type)i;
            return TSR_OK;
        }
    }
    char known[256];
    tsr_type_list(known, sizeof known);
    return tsr_fail(TSR_ERR_NOT_FOUND, "unknown type \"%s\"; known: %s", name, known);
}

int64_t tsr_type_block_elems(tsr_type type)
{
    const struct type_traits *traits = traits_of((int)type);
    return traits ? traits->block_elems : 0;
}

size_t tsr_type_block_bytes(tsr_type type)
{
    const struct type_traits *traits = traits_of((int)type);
    return traits ? traits->block_bytes : 0;
}

size_t tsr_type_row_bytes(tsr_type type, int64_t n_elems)
{
    const struct type_traits *traits = traits_of((int)type);
    size_t bytes;
    if (!traits || n_elems < 0 || n_elems % traits->block_elems != 0)
        return 0;
    uint64_t n_blocks = (uint64_t)n_elems / (uint64_t)traits->block_elems;
    if (n_blocks > SIZE_MAX || !tsr_mul_size((size_t)n_blocks, traits->block_bytes, &bytes))
        return 0;
    return bytes;
}

/* Checks common to encode and decode; returns the traits and the block count for the codec. */
static tsr_status check_codec_call(const char *call, tsr_type type, const void *src, const void *dst,
                                   int64_t n_elems, const struct type_traits **traits_out,
                                   int64_t *n_blocks_out)
{
    const struct type_traits *traits = traits_of((int)type);
    if (!traits || !traits->decode)
        return tsr_fail(TSR_ERR_UNSUPPORTED, "%s: type %d (%s) has no conversion to or from f32", call,
                        (int)type, tsr_type_name(type));
    if (n_elems < 0 || n_elems % traits->block_elems != 0)
        return tsr_fail(TSR_ERR_INVALID, "%s: %lld elements of %s, but they come in blocks of %d", call,
                        (long long)n_elems, traits->name, traits->block_elems);
    if (n_elems > 0 && (!src || !dst))
        return tsr_fail(TSR_ERR_INVALID, "%s: src and dst must not be NULL", call);
    *traits_out = traits;
    *n_blocks_out = n_elems / traits->block_elems;
    return TSR_OK;
}

tsr_status tsr_type_to_f32(tsr_type type, const void *src, float *dst, int64_t n_elems)
{
    const struct type_traits *traits;
    int64_t n_blocks;
    tsr_status status = check_codec_call("tsr_type_to_f32", type, src, dst, n_elems, &traits, &n_blocks);
    if (status == TSR_OK && n_blocks > 0)
        traits->decode(src, dst, n_blocks);
    return status;
}

tsr_status tsr_type_from_f32(tsr_type type, const float *src, void *dst, int64_t n_elems)
{
    const struct type_traits *traits;
    int64_t n_blocks;
    tsr_status status = check_codec_call("tsr_type_from_f32", type, src, dst, n_elems, &traits, &n_blocks);
    if (status == TSR_OK && n_blocks > 0)
        traits->encode(src, dst, n_blocks);
    return status;
}

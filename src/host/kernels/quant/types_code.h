/* The rules of unpacked super-blocks (codes.h). types.h says what each function does.
 *
 * A panel's header is the whole panel: it is unpacked once, in parts, and its groups are loads. */
#ifndef TSR_HOST_KERNELS_QUANT_TYPES_CODE_H
#define TSR_HOST_KERNELS_QUANT_TYPES_CODE_H

#include "host/kernels/quant/codes.h"
#include "host/kernels/quant/panel.h"

/* The type that stands for all of codes.h in kernels. */
#define QUANT_CODE TSR_TYPE_IQ2_XXS

/* 62 * 31 * 32 * X_LIMIT is below 2^31. */
static const quant_traits code_traits = {.group_blocks = 2,
                                         .parts = 4,
                                         .x_limit = X_LIMIT,
                                         .offset = CODE_OFFSET,
                                         .sub_scales = true,
                                         .above_32 = true};

/* The type whose kernels multiply `type`. */
ALWAYS_INLINE tsr_type quant_kernels(tsr_type type)
{
    return is_code(type) ? QUANT_CODE : type;
}

/* The type that rows are stored in, where kernels are those of `kernels`. */
ALWAYS_INLINE tsr_type quant_stored(tsr_type kernels, tsr_type type)
{
    return kernels == QUANT_CODE ? type : kernels;
}

/* Block b of the super-block of any such type at p. */
ALWAYS_INLINE void code_expand(tsr_type type, const unsigned char *p, int b, quant_block *out)
{
    code_super super;
    code_super_of(type, p, &super);
    const byte32 q = code_quants(type, p, &super, b);
    out->scale = code_scale_at(type, p);
    for (int i = 0; i < X_BLOCK; i++)
        quant_put(out, i, (int8_t)q[i] * (2 * super.scale[2 * b + i / 16] + 1));
}

#if defined(TSR_ISA_INT_VEC)

/* The place of row r in a panel: vector i of a half has rows i, 4 + i, ... (int_vec.h). */
ALWAYS_INLINE uint8_t *code_place(code_panel *codes, int r)
{
    return codes->q[0][0] + r % 4 * (int)sizeof(vec_int) + r / 4 * 16;
}

static NOINLINE void code_panel_unpack(const int_rows *rows, code_panel *codes)
{
    switch (rows->stored) {
#define UNPACK_CASE(constant)                                                                    \
    case constant:                                                                               \
        for (int r = 0; r < INT_LANES; r++) {                                                    \
            const unsigned char *row = int_row(rows, r);                                         \
            codes->scale[r] = code_scale_at(constant, row);                                      \
            code_unpack(constant, row, code_place(codes, r), sizeof codes->q[0], codes->sub[r]); \
        }                                                                                        \
        break;
        FOR_EACH_CODE_TYPE(UNPACK_CASE)
#undef UNPACK_CASE
    default:
        break;
    }
}

ALWAYS_INLINE void code_header_load(const int_rows *rows, int b, quant_panel *panel)
{
    (void)b;
    code_panel_unpack(rows, &panel->codes);
    const int_rows subs = int_rows_of(rows->stored, panel->codes.sub[0], sizeof panel->codes.sub[0]);
    quant_load_words(&subs, 0, panel->word);
}

ALWAYS_INLINE void code_group_load(const int_rows *rows, const quant_panel *panel, int b, quant_group *group)
{
    (void)rows;
    UNROLL for (int i = 0; i < 16; i++) group->bytes[i] = int_load(panel->codes.q[2 * b + i / 4][i % 4]);
}

ALWAYS_INLINE vec_bits code_quads(const quant_group *group, int b, int i)
{
    return quant_bytes(group, b % 2 * 8 + i);
}

ALWAYS_INLINE vec code_scale(const quant_panel *panel, int b)
{
    (void)b;
    return vec_load(panel->codes.scale);
}

ALWAYS_INLINE vec_int code_sub_scale(const quant_panel *panel, int which)
{
    const vec_bits four = (vec_bits)int_load(panel->word[which / 4]);
    return (vec_int)(four >> 8 * (which % 4) & 255);
}

#endif
#endif

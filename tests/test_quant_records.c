/* Decoding against what the Python package gguf decodes (scripts/make-quant-tables, quant_records.h): random
 * blocks, every bit of every value. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <tsr/types.h>

#include "core/quant/half.h"
#include "support/random.h"

static const struct {
    tsr_type type;
    int scale_at;
    uint64_t hash;
    uint32_t first[4];
} records[] = {
#include "quant_records.h"
};

enum { N_BLOCKS = 2048 };

static void random_blocks_decode_as_recorded(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof records / sizeof records[0]; r++) {
        const tsr_type type = records[r].type;
        const size_t bytes = tsr_type_block_bytes(type);
        const int64_t n = N_BLOCKS * tsr_type_block_elems(type);
        uint64_t seed = (uint64_t)type, hash = 0xcbf29ce484222325u;
        uint8_t *blocks = malloc(N_BLOCKS * bytes);
        float *values = malloc((size_t)n * sizeof *values);
        for (size_t i = 0; i < N_BLOCKS * bytes; i++)
            blocks[i] = (uint8_t)random_u64(&seed);
        for (size_t b = 0; b < N_BLOCKS; b++) { /* finite scales */
            if (records[r].scale_at >= 0)
                blocks[b * bytes + (size_t)records[r].scale_at] &= 0xbf;
            if (type == TSR_TYPE_MXFP4)
                blocks[b * bytes] &= 0x7f;
        }
        assert_int_equal(tsr_type_to_f32(type, blocks, values, n), TSR_OK);
        for (int i = 0; i < 4; i++)
            assert_int_equal(tsr_f32_bits(values[i]), records[r].first[i]);
        for (int64_t i = 0; i < n; i++)
            hash = (hash ^ tsr_f32_bits(values[i])) * 0x100000001b3u;
        if (hash != records[r].hash)
            fail_msg("%s: the values of %d blocks are not those recorded", tsr_type_name(type), N_BLOCKS);
        free(values);
        free(blocks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_blocks_decode_as_recorded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Proportions, rounding, granules and shard maps; test_split_fit.c has what classes with joint memory add.
 *
 * The rounding is held against a naive checker that enumerates every assignment; it shares nothing with the
 * library but the meaning of the words. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/split.h>

#include "support/message.h"
#include "support/random.h"

static int64_t sum_of(const int64_t *values, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += values[i];
    return sum;
}

/* -- parsing -- */

static void reads_proportions(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int n;
        float values[4];
    } cases[] = {
        {"3,1", 2, {3, 1}},
        {"3/1", 2, {3, 1}},
        {"0.5,0.25,0.25", 3, {0.5f, 0.25f, 0.25f}},
        {" 1 , 2/ .5", 3, {1, 2, 0.5f}},
        {"7", 1, {7}},
        {"1e2,5E-1,+2.,0", 4, {100, 0.5f, 2, 0}},
        {"0,0", 2, {0, 0}},
        {"0.1,0.7", 2, {0.1f, 0.7f}},
        {"0.00000000000000000000000000000000000001,1e-999", 2, {1e-38f, 0}},
        {"16777217,123456789.123456789", 2, {16777216.0f, 123456789.123456789f}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float out[4] = {-1, -1, -1, -1};
        int n = -1;
        assert_int_equal(tsr_split_parse(cases[i].text, out, 4, &n), TSR_OK);
        assert_int_equal(n, cases[i].n);
        for (int d = 0; d < n; d++)
            assert_true(out[d] == cases[i].values[d]);
        for (int d = n; d < 4; d++)
            assert_true(out[d] == -1);
    }
}

static void refuses_text_that_is_no_split(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "entry 1 is empty"},
        {"3,", "entry 2 is empty"},
        {",3", "entry 1 is empty"},
        {"3, ,1", "entry 2 is empty"},
        {"3,-1", "entry 2 is \"-1\"; it must not be negative"},
        {"nan,1", "entry 1 is \"nan\"; it must be a finite"},
        {"1,-Inf", "entry 2 is \"-Inf\"; it must be a finite"},
        {"1,infinity", "entry 2 is \"infinity\"; it must be a finite"},
        {"1,1e39", "entry 2 is \"1e39\", too large"},
        {"1,1e99999999999", "too large"},
        {"1,a", "entry 2 is \"a\", not a number"},
        {"1 2", "entry 1 is \"1 2\", not a number"},
        {"1,.", "entry 2 is \".\", not a number"},
        {"1,e5", "not a number"},
        {"1,2e", "not a number"},
        {"0x10", "not a number"},
        {"1;2", "not a number"},
        {"1,2,3,4,5", "entry 5 is one too many: at most 4"},
        {"abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz", "not a number"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float out[4] = {-1, -1, -1, -1};
        int n = -1;
        assert_int_equal(tsr_split_parse(cases[i].text, out, 4, &n), TSR_ERR_INVALID);
        assert_message_has(cases[i].message);
        assert_int_equal(n, -1);
        assert_true(out[0] == -1);
    }
    float out[1];
    int n;
    assert_int_equal(tsr_split_parse(NULL, out, 1, &n), TSR_ERR_INVALID);
    assert_int_equal(tsr_split_parse("1", out, 0, &n), TSR_ERR_INVALID);
}

/* Any bytes at all: either a message, or proportions that strtof() would read as well. */
static void survives_any_text(void **state)
{
    (void)state;
    static const char alphabet[] = "0123456789012345678901234567890123456789..,,//-+eE nainf\t\x80";
    uint64_t seed = 7;
    int good = 0;

    for (int round = 0; round < 200000; round++) {
        char text[24];
        float out[8];
        int n = 0, length = (int)random_below(&seed, sizeof text);
        for (int i = 0; i < length; i++)
            text[i] = alphabet[random_below(&seed, sizeof alphabet - 1)];
        text[length] = '\0';
        if (tsr_split_parse(text, out, 8, &n) != TSR_OK) {
            assert_message_has("tensor_split entry ");
            continue;
        }
        good++;
        const char *at = text;
        for (int d = 0; d < n; d++, at++) {
            float expected = strtof(at, NULL);
            assert_true(isfinite(out[d]) && fabsf(out[d] - expected) <= 1e-6f * expected + FLT_MIN);
            at += strcspn(at, ",/");
        }
        assert_true(at == text + length + 1);
    }
    assert_true(good > 1000);
}

static void turns_a_split_into_shares(void **state)
{
    (void)state;
    double shares[4];
    float zeros[3] = {0}, split[] = {3, 0, 1};

    assert_int_equal(tsr_split_check(NULL, 0, 4, shares), TSR_OK);
    for (int d = 0; d < 4; d++)
        assert_true(shares[d] == 0.25);
    assert_int_equal(tsr_split_check(zeros, 3, 4, shares), TSR_OK);
    assert_true(shares[3] == 0.25);
    assert_int_equal(tsr_split_check(split, 3, 4, shares), TSR_OK);
    assert_true(shares[0] == 0.75 && shares[1] == 0 && shares[2] == 0.25 && shares[3] == 0);

    float huge[] = {FLT_MAX, FLT_MAX};
    assert_int_equal(tsr_split_check(huge, 2, 2, shares), TSR_OK);
    assert_true(shares[0] == 0.5 && shares[1] == 0.5);
}

static void refuses_floats_that_are_no_split(void **state)
{
    (void)state;
    double shares[2] = {-1, -1};
    float too_many[] = {1, 1, 1}, negative[] = {1, -1}, not_finite[] = {NAN, 1}, infinite[] = {1, INFINITY};

    assert_int_equal(tsr_split_check(too_many, 3, 2, shares), TSR_ERR_INVALID);
    assert_message_has("entry 3 has no device");
    assert_int_equal(tsr_split_check(negative, 2, 2, shares), TSR_ERR_INVALID);
    assert_message_has("entry 2 is -1");
    assert_int_equal(tsr_split_check(not_finite, 2, 2, shares), TSR_ERR_INVALID);
    assert_message_has("entry 1 is");
    assert_int_equal(tsr_split_check(infinite, 2, 2, shares), TSR_ERR_INVALID);
    assert_message_has("entry 2 is inf");
    assert_int_equal(tsr_split_check(NULL, 0, 0, shares), TSR_ERR_INVALID);
    assert_int_equal(tsr_split_check(NULL, 0, TSR_MAX_DEVICES + 1, shares), TSR_ERR_INVALID);
    assert_true(shares[0] == -1 && shares[1] == -1);
}

/* -- rounding -- */

static void rounds_as_documented(void **state)
{
    (void)state;
    static const struct {
        int n;
        double shares[4];
        int64_t n_granules, caps[4], counts[4];
    } cases[] = {
        {2, {49, 51}, 8, {-1, -1}, {4, 4}},
        {3, {24, 24, 16}, 4, {-1, -1, -1}, {2, 1, 1}},
        {2, {3, 1}, 8, {5, 8}, {5, 3}},
        {2, {3, 1}, 8, {-1, -1}, {6, 2}},
        {2, {1, 0}, 8, {-1, -1}, {8, 0}},
        {3, {1, 1, 1}, 2, {-1, -1, -1}, {1, 1, 0}},
        /* more devices than granules: the last ones get none */
        {4, {1, 1, 1, 1}, 3, {-1, -1, -1, -1}, {1, 1, 1, 0}},
        /* 1/6, 1/2, 1/3 of 3: half granules tie although the doubles do not */
        {3, {1.0 / 6, 1.0 / 2, 1.0 / 3}, 3, {-1, -1, -1}, {1, 1, 1}},
        {2, {1, 1e-300}, 5, {-1, -1}, {5, 0}},
        {2, {1, 1e-300}, 5, {3, -1}, {3, 2}},
        {2, {DBL_MAX, DBL_MAX}, 4, {-1, -1}, {2, 2}},
        {2, {1, 1}, 0, {-1, -1}, {0, 0}},
        /* 54 of 60 leave 6; 30 and 10 take them over 3 : 1 */
        {3, {6, 3, 1}, 100, {54, -1, -1}, {54, 35, 11}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t counts[4];
        assert_int_equal(
            tsr_split_round(cases[i].shares, cases[i].n, cases[i].n_granules, cases[i].caps, counts), TSR_OK);
        for (int d = 0; d < cases[i].n; d++)
            if (counts[d] != cases[i].counts[d])
                fail_msg("case %zu, device %d: %lld granules, expected %lld", i, d, (long long)counts[d],
                         (long long)cases[i].counts[d]);
    }
}

/* Every assignment of n_granules to n_devices within the caps: the smallest largest deviation, or -1. */
typedef struct enumeration {
    int n_devices;
    const double *ideal;
    const int64_t *cap;
    double best;
} enumeration;

static void enumerate(enumeration *e, int d, int64_t left, double deviation)
{
    if (d == e->n_devices) {
        if (left == 0 && (e->best < 0 || deviation < e->best))
            e->best = deviation;
        return;
    }
    for (int64_t count = 0; count <= left && count <= e->cap[d]; count++)
        enumerate(e, d + 1, left - count, fmax(deviation, fabs((double)count - e->ideal[d])));
}

static void rounding_is_as_near_as_any_assignment(void **state)
{
    (void)state;
    uint64_t seed = 1;
    int infeasible = 0, capped = 0;

    for (int round = 0; round < 4000; round++) {
        int n = 1 + (int)random_below(&seed, 5);
        int64_t n_granules = random_below(&seed, 13), counts[5], caps[5], effective[5];
        double shares[5], ideal[5], sum = 0, worst = 0;
        bool use_caps = random_below(&seed, 2);
        for (int d = 0; d < n; d++) {
            shares[d] = random_below(&seed, 4) ? (double)random_below(&seed, 1000) / 7 : 0;
            caps[d] = random_below(&seed, 3) ? (int64_t)random_below(&seed, 8) : -1;
            sum += shares[d];
        }
        if (sum == 0)
            shares[0] = sum = 1;
        for (int d = 0; d < n; d++) {
            ideal[d] = shares[d] / sum * (double)n_granules;
            effective[d] = shares[d] == 0 ? 0 : !use_caps || caps[d] < 0 ? n_granules : caps[d];
        }
        enumeration e = {n, ideal, effective, -1};
        enumerate(&e, 0, n_granules, 0);

        tsr_status status = tsr_split_round(shares, n, n_granules, use_caps ? caps : NULL, counts);
        if (e.best < 0) {
            assert_int_equal(status, TSR_ERR_MEMORY);
            infeasible++;
            continue;
        }
        assert_int_equal(status, TSR_OK);
        assert_int_equal(sum_of(counts, n), n_granules);
        for (int d = 0; d < n; d++) {
            assert_true(counts[d] >= 0 && counts[d] <= effective[d]);
            worst = fmax(worst, fabs((double)counts[d] - ideal[d]));
        }
        if (worst > e.best + 1e-5)
            fail_msg("round %d: largest deviation %.6f, %.6f is possible", round, worst, e.best);
        capped += worst > 1;
    }
    assert_true(infeasible > 100 && capped > 100); /* the cases are not all easy ones */
}

/* Largest remainder in whole numbers: shares are small integers, remainders are exact. */
static void rounding_without_caps_is_largest_remainder(void **state)
{
    (void)state;
    uint64_t seed = 2;

    for (int round = 0; round < 2000; round++) {
        int n = 1 + (int)random_below(&seed, TSR_MAX_DEVICES);
        int64_t n_granules = random_below(&seed, 3) ? random_below(&seed, 100) : random_below(&seed, 200000);
        int64_t weight[TSR_MAX_DEVICES], expected[TSR_MAX_DEVICES], counts[TSR_MAX_DEVICES], total = 0;
        double shares[TSR_MAX_DEVICES];
        for (int d = 0; d < n; d++)
            total += weight[d] = random_below(&seed, 20);
        if (total == 0)
            total = weight[0] = 1;
        int64_t left = n_granules;
        for (int d = 0; d < n; d++) {
            shares[d] = (double)weight[d];
            expected[d] = weight[d] * n_granules / total;
            left -= expected[d];
        }
        bool given[TSR_MAX_DEVICES] = {false};
        for (; left > 0; left--) {
            int best = -1;
            for (int d = 0; d < n; d++)
                if (!given[d] && weight[d] > 0 &&
                    (best < 0 || weight[d] * n_granules % total > weight[best] * n_granules % total))
                    best = d;
            given[best] = true;
            expected[best]++;
        }
        assert_int_equal(tsr_split_round(shares, n, n_granules, NULL, counts), TSR_OK);
        assert_memory_equal(counts, expected, (size_t)n * sizeof *counts);
    }
}

/* Two devices that neither touch a cap nor the largest deviation stand in the proportion of their shares. */
static void what_caps_refuse_is_spread_in_proportion(void **state)
{
    (void)state;
    uint64_t seed = 3;
    int pairs = 0;

    for (int round = 0; round < 500; round++) {
        int n = 2 + (int)random_below(&seed, TSR_MAX_DEVICES - 1);
        int64_t n_granules = 1 + random_below(&seed, 100000), caps[TSR_MAX_DEVICES], counts[TSR_MAX_DEVICES];
        double shares[TSR_MAX_DEVICES], sum = 0, deviation = 0;
        for (int d = 0; d < n; d++)
            sum += shares[d] = (double)(1 + random_below(&seed, 1000));
        for (int d = 0; d < n; d++)
            caps[d] = random_below(&seed, 4) ? -1 : (int64_t)(shares[d] / sum * (double)n_granules / 2);
        if (tsr_split_round(shares, n, n_granules, caps, counts) != TSR_OK)
            continue;
        assert_int_equal(sum_of(counts, n), n_granules);
        for (int d = 0; d < n; d++)
            deviation = fmax(deviation, fabs((double)counts[d] - shares[d] / sum * (double)n_granules));
        for (int a = 0; a < n; a++) {
            assert_true(caps[a] < 0 || counts[a] <= caps[a]);
            for (int b = 0; b < n; b++) {
                bool inside = true;
                for (int which = 0; which < 2; which++) {
                    int d = which ? b : a;
                    double distance = fabs((double)counts[d] - shares[d] / sum * (double)n_granules);
                    inside = inside && distance < deviation - 1.01 && (caps[d] < 0 || counts[d] < caps[d]);
                }
                if (!inside)
                    continue;
                double ratio = shares[a] / shares[b];
                assert_true(fabs((double)counts[a] - (double)counts[b] * ratio) <= 1.01 * (1 + ratio));
                pairs++;
            }
        }
    }
    assert_true(pairs > 10000);
}

static void rounding_says_what_is_wrong(void **state)
{
    (void)state;
    double shares[] = {1, 1, 0}, bad[] = {1, -1, 0}, zero[] = {0, 0, 0};
    int64_t caps[] = {3, 2, 100}, counts[3] = {-1, -1, -1};

    assert_int_equal(tsr_split_round(shares, 3, 9, caps, counts), TSR_ERR_MEMORY);
    assert_message_has("4 of 9 granules find no device: the caps hold 5");
    assert_int_equal(tsr_split_round(bad, 3, 9, NULL, counts), TSR_ERR_INVALID);
    assert_message_has("device 1 is -1");
    assert_int_equal(tsr_split_round(zero, 3, 9, NULL, counts), TSR_ERR_INVALID);
    assert_int_equal(tsr_split_round(shares, 0, 9, NULL, counts), TSR_ERR_INVALID);
    assert_int_equal(tsr_split_round(shares, 3, -1, NULL, counts), TSR_ERR_INVALID);
    assert_int_equal(tsr_split_round(shares, 3, TSR_SPLIT_MAX_GRANULES + 1, NULL, counts), TSR_ERR_INVALID);
    assert_int_equal(counts[0], -1);
}

static void rounds_at_the_largest_sizes(void **state)
{
    (void)state;
    double shares[TSR_MAX_DEVICES];
    int64_t counts[TSR_MAX_DEVICES], caps[TSR_MAX_DEVICES];
    for (int d = 0; d < TSR_MAX_DEVICES; d++) {
        shares[d] = d % 2 ? 1e-12 : d + 1;
        caps[d] = d % 2 ? -1 : 1000;
    }
    assert_int_equal(tsr_split_round(shares, TSR_MAX_DEVICES, TSR_SPLIT_MAX_GRANULES, NULL, counts), TSR_OK);
    assert_int_equal(sum_of(counts, TSR_MAX_DEVICES), TSR_SPLIT_MAX_GRANULES);
    assert_int_equal(tsr_split_round(shares, TSR_MAX_DEVICES, TSR_SPLIT_MAX_GRANULES, caps, counts), TSR_OK);
    assert_int_equal(sum_of(counts, TSR_MAX_DEVICES), TSR_SPLIT_MAX_GRANULES);
}

/* -- granules -- */

static void attention_granules_are_the_fewest_whole_blocks(void **state)
{
    (void)state;
    static const int64_t blocks[] = {1, 32, 256};
    uint64_t seed = 5;
    int64_t heads;
    int joined = 0;

    assert_int_equal(tsr_granule_attention(128, 32, 8, 256, &heads), TSR_OK);
    assert_int_equal(heads, 1);
    assert_int_equal(tsr_granule_attention(64, 9, 3, 32, &heads), TSR_OK);
    assert_int_equal(heads, 1);
    assert_int_equal(tsr_granule_attention(48, 8, 8, 32, &heads), TSR_OK);
    assert_int_equal(heads, 2);
    for (int round = 0; round < 3000; round++) {
        int64_t head_dim = 8 * (1 + random_below(&seed, 32)), kv = 1 + random_below(&seed, 32);
        int64_t group = 1 + random_below(&seed, 8), block = blocks[random_below(&seed, 3)], fewest = 1;
        if (head_dim * group * kv % block) {
            assert_int_equal(tsr_granule_attention(head_dim, group * kv, kv, block, &heads), TSR_ERR_INVALID);
            continue;
        }
        while (fewest * group * head_dim % block)
            fewest++;
        assert_int_equal(tsr_granule_attention(head_dim, group * kv, kv, block, &heads), TSR_OK);
        assert_int_equal(heads, fewest);
        assert_int_equal(kv % heads, 0);
        joined += heads > 1;
    }
    assert_true(joined > 100);
}

static void ffn_granules_are_whole_blocks_and_vectors(void **state)
{
    (void)state;
    static const struct {
        int64_t n_ff, block, columns;
    } cases[] = {{11008, 32, 128}, {14336, 256, 256}, {1000, 1, 128}, {96, 32, 96}, {4800, 48, 384}};
    int64_t columns;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(tsr_granule_ffn(cases[i].n_ff, cases[i].block, &columns), TSR_OK);
        assert_int_equal(columns, cases[i].columns);
    }
    assert_int_equal(tsr_granule_ffn(100, 32, &columns), TSR_ERR_INVALID);
    assert_int_equal(tsr_granule_ffn(0, 32, &columns), TSR_ERR_INVALID);
    assert_int_equal(tsr_granule_attention(64, 9, 2, 1, &columns), TSR_ERR_INVALID);
    assert_message_has("9 heads for 2 KV heads");
    assert_int_equal(tsr_granule_attention(INT64_MAX, 4, 2, 1, &columns), TSR_ERR_INVALID);
    assert_int_equal(columns, 384);
}

/* -- shard maps -- */

static void shard_maps_cover_every_element_once(void **state)
{
    (void)state;
    uint64_t seed = 6;

    for (int round = 0; round < 500; round++) {
        int n = 1 + (int)random_below(&seed, 6);
        int64_t extent = random_below(&seed, 300), granule = 1 + random_below(&seed, 40), element = 0;
        int64_t n_granules = (extent + granule - 1) / granule, counts[6];
        double shares[6];
        tsr_shard_map map, other;
        for (int d = 0; d < n; d++)
            shares[d] = d ? (double)random_below(&seed, 4) : 1;
        assert_int_equal(tsr_split_round(shares, n, n_granules, NULL, counts), TSR_OK);
        assert_int_equal(tsr_shard_map_init(extent, granule, n, counts, &map), TSR_OK);
        assert_int_equal(tsr_shard_map_n_granules(&map), n_granules);
        for (int d = 0; d < n; d++) {
            int64_t granules = 0;
            assert_int_equal(tsr_shard_map_first(&map, d), element);
            for (int64_t i = 0; i < tsr_shard_map_count(&map, d); i++, element++) {
                assert_int_equal(tsr_shard_map_device(&map, element), d);
                granules += element % granule == 0;
            }
            assert_int_equal(granules, counts[d]);
        }
        assert_int_equal(element, extent);
        assert_int_equal(tsr_shard_map_first(&map, n), extent);
        assert_int_equal(tsr_shard_map_device(&map, -1), -1);
        assert_int_equal(tsr_shard_map_device(&map, extent), -1);

        other = map;
        assert_true(tsr_shard_map_equal(&map, &other));
        other.begin[n]++;
        assert_false(tsr_shard_map_equal(&map, &other));
        other = map;
        other.extent++;
        assert_false(tsr_shard_map_equal(&map, &other));
    }
}

static void shard_maps_refuse_wrong_counts(void **state)
{
    (void)state;
    tsr_shard_map map = {.extent = -7};
    int64_t few[] = {1, 1}, many[] = {3, 1}, negative[] = {4, -1};

    assert_int_equal(tsr_shard_map_init(300, 100, 2, few, &map), TSR_ERR_INVALID);
    assert_message_has("hand out 2 of 3 granules");
    assert_int_equal(tsr_shard_map_init(300, 100, 2, many, &map), TSR_ERR_INVALID);
    assert_message_has("1 granules for device 1, but 0 of 3");
    assert_int_equal(tsr_shard_map_init(300, 100, 2, negative, &map), TSR_ERR_INVALID);
    assert_int_equal(tsr_shard_map_init(300, 0, 2, few, &map), TSR_ERR_INVALID);
    assert_int_equal(tsr_shard_map_init(-1, 1, 2, few, &map), TSR_ERR_INVALID);
    assert_int_equal(map.extent, -7);
}

static void layers_go_to_devices_in_runs(void **state)
{
    (void)state;
    double shares[] = {3, 0, 1};
    int64_t caps[] = {4, -1, -1};
    tsr_shard_map map;

    assert_int_equal(tsr_split_layers(shares, 3, 9, NULL, &map), TSR_OK); /* 8 layers and the output */
    for (int64_t layer = 0; layer < 9; layer++)
        assert_int_equal(tsr_shard_map_device(&map, layer), layer < 7 ? 0 : 2);
    assert_int_equal(tsr_shard_map_count(&map, 1), 0);
    assert_int_equal(tsr_split_layers(shares, 3, 9, caps, &map), TSR_OK);
    assert_int_equal(tsr_shard_map_count(&map, 0), 4);
    caps[2] = 4;
    assert_int_equal(tsr_split_layers(shares, 3, 9, caps, &map), TSR_ERR_MEMORY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_proportions),
        cmocka_unit_test(refuses_text_that_is_no_split),
        cmocka_unit_test(survives_any_text),
        cmocka_unit_test(turns_a_split_into_shares),
        cmocka_unit_test(refuses_floats_that_are_no_split),
        cmocka_unit_test(rounds_as_documented),
        cmocka_unit_test(rounding_is_as_near_as_any_assignment),
        cmocka_unit_test(rounding_without_caps_is_largest_remainder),
        cmocka_unit_test(what_caps_refuse_is_spread_in_proportion),
        cmocka_unit_test(rounding_says_what_is_wrong),
        cmocka_unit_test(rounds_at_the_largest_sizes),
        cmocka_unit_test(attention_granules_are_the_fewest_whole_blocks),
        cmocka_unit_test(ffn_granules_are_whole_blocks_and_vectors),
        cmocka_unit_test(shard_maps_cover_every_element_once),
        cmocka_unit_test(shard_maps_refuse_wrong_counts),
        cmocka_unit_test(layers_go_to_devices_in_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

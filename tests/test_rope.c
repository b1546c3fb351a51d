/* Rotary tables against formulas written out here in long double, from the papers and not from the code:
 *
 *   Su et al., arXiv:2104.09864, section 3.2.2  theta_i = base^(-2i / d), pair i turned by position * theta_i
 *   Chen et al., arXiv:2306.15595               linear scaling: positions divided by the factor
 *   Peng et al., arXiv:2309.00071, section 3.2  YaRN: pairs that turn often stay, slow ones are interpolated
 *   Llama 3 files' rope_freqs.weight            theta_i divided by factor i
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/ops.h>

#include "arch/rope.h"
#include "support/failing_alloc.h"
#include "support/gguf_open.h"
#include "support/runner.h"

enum { MAX_ROT = 256 };

static const long double pi = 3.14159265358979323846264338327950288L;

static long double theta(const tsr_rope_params *hp, int64_t i)
{
    return expl(-2.0L * (long double)i / (long double)hp->n_rot * logl((long double)hp->base));
}

/* One float's rounding, and the angle's error in double precision: a few ulp of position * theta. */
static void assert_rows(const tsr_rope_tables *tables, const long double *frequency, long double magnitude)
{
    static const int64_t positions[] = {0, 1, 2, 17, 511, 4095, 8192, 131071, 1000000};
    float row[MAX_ROT];
    for (size_t p = 0; p < sizeof positions / sizeof *positions; p++) {
        tsr_rope_row(tables, positions[p], row);
        for (int64_t i = 0; i < tables->n_rot / 2; i++) {
            long double angle = (long double)positions[p] * frequency[i];
            long double bound = magnitude * (0x1p-24L + 0x1p-50L * (1 + angle));
            assert_true(fabsl((long double)row[2 * i] - magnitude * cosl(angle)) <= bound);
            assert_true(fabsl((long double)row[2 * i + 1] - magnitude * sinl(angle)) <= bound);
        }
    }
}

static tsr_rope_params plain(int64_t n_rot, double base)
{
    return (tsr_rope_params){.n_rot = n_rot,
                             .base = base,
                             .factor = 1,
                             .attn_factor = 1,
                             .n_ctx_orig = 8192,
                             .beta_fast = 32,
                             .beta_slow = 1};
}

static const struct {
    int64_t n_rot;
    double base;
} shapes[] = {{2, 10000}, {32, 10000}, {64, 1000000}, {80, 10000}, {128, 500000}, {256, 10000}};

enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static void unscaled_tables_are_exact(void **state)
{
    (void)state;
    for (int s = 0; s < N_SHAPES; s++) {
        tsr_rope_params hp = plain(shapes[s].n_rot, shapes[s].base);
        tsr_rope_tables tables;
        long double frequency[MAX_ROT / 2];
        hp.factor = 4; /* of no account without a scaling type */
        runner_ok(tsr_rope_tables_create(&hp, NULL, &tables), "tables");
        assert_int_equal(tables.n_rot, hp.n_rot);
        for (int64_t i = 0; i < hp.n_rot / 2; i++)
            frequency[i] = theta(&hp, i);
        assert_rows(&tables, frequency, 1);
        tsr_rope_tables_free(&tables);
    }
}

static void linear_scaling_divides_positions(void **state)
{
    (void)state;
    static const double factors[] = {0.5, 1, 2, 8, 40};
    for (int s = 0; s < N_SHAPES; s++)
        for (size_t k = 0; k < sizeof factors / sizeof *factors; k++) {
            tsr_rope_params hp = plain(shapes[s].n_rot, shapes[s].base);
            tsr_rope_tables tables;
            long double frequency[MAX_ROT / 2];
            hp.scaling = TSR_ROPE_SCALING_LINEAR;
            hp.factor = factors[k];
            runner_ok(tsr_rope_tables_create(&hp, NULL, &tables), "tables");
            for (int64_t i = 0; i < hp.n_rot / 2; i++)
                frequency[i] = theta(&hp, i) / (long double)factors[k];
            assert_rows(&tables, frequency, 1);
            tsr_rope_tables_free(&tables);
        }
}

/* Factors as Llama 3.1 computes them (factor 8, low 1, high 4, over 8192 tokens): its reference code divides
 * slow frequencies by 8, keeps fast ones and blends between; the file's tensor holds the quotients. */
static void llama3_factors_divide_frequencies(void **state)
{
    (void)state;
    tsr_rope_params hp = plain(128, 500000);
    tsr_rope_tables tables;
    long double frequency[MAX_ROT / 2];
    float factors[MAX_ROT / 2];
    for (int64_t i = 0; i < 64; i++) {
        long double turns = 8192 * theta(&hp, i) / (2 * pi), smooth = (turns - 1) / (4 - 1);
        smooth = smooth < 0 ? 0 : smooth > 1 ? 1 : smooth;
        factors[i] = (float)(1 / ((1 - smooth) / 8 + smooth));
        frequency[i] = theta(&hp, i) / (long double)factors[i];
    }
    assert_true(factors[0] == 1 && factors[63] == 8);
    runner_ok(tsr_rope_tables_create(&hp, factors, &tables), "tables");
    assert_rows(&tables, frequency, 1);
    tsr_rope_tables_free(&tables);
}

/* The pair (not a whole number) that turns `turns` times within n tokens: solve n * theta_i = 2 pi turns. */
static long double pair_turning(const tsr_rope_params *hp, long double turns)
{
    long double n = (long double)hp->n_ctx_orig;
    return (long double)hp->n_rot / 2 * logl(n / (2 * pi * turns)) / logl((long double)hp->base);
}

static void yarn_tables_are_exact(void **state)
{
    (void)state;
    static const double factors[] = {1, 2, 16, 40};
    for (int s = 1; s < N_SHAPES; s++)
        for (size_t k = 0; k < sizeof factors / sizeof *factors; k++) {
            tsr_rope_params hp = plain(shapes[s].n_rot, shapes[s].base);
            tsr_rope_tables tables;
            long double frequency[MAX_ROT / 2], factor = (long double)factors[k];
            int64_t n_kept = 0, n_stretched = 0;
            hp.scaling = TSR_ROPE_SCALING_YARN;
            hp.factor = factors[k];
            hp.n_ctx_orig = s % 2 ? 4096 : 32768;
            hp.attn_factor = s % 2 ? 1 : 0.75;
            runner_ok(tsr_rope_tables_create(&hp, NULL, &tables), "tables");
            long double first = floorl(pair_turning(&hp, 32)), last = ceill(pair_turning(&hp, 1));
            first = first < 0 ? 0 : first;
            last = last > (long double)hp.n_rot - 1 ? (long double)hp.n_rot - 1 : last;
            for (int64_t i = 0; i < hp.n_rot / 2; i++) {
                long double stretched = ((long double)i - first) / (last - first);
                stretched = stretched < 0 ? 0 : stretched > 1 ? 1 : stretched;
                frequency[i] = theta(&hp, i) * ((1 - stretched) + stretched / factor);
                n_kept += stretched == 0;
                n_stretched += stretched == 1;
                /* Whatever the ramp: fast pairs stay as trained, slow ones are interpolated. */
                long double turns = (long double)hp.n_ctx_orig * theta(&hp, i) / (2 * pi);
                if (turns > 32 * theta(&hp, 0) / theta(&hp, 1))
                    assert_float_equal(tables.inverse_frequency[i] / (double)theta(&hp, i), 1, 1e-12);
                if (turns < theta(&hp, 1))
                    assert_float_equal(tables.inverse_frequency[i] * factors[k] / (double)theta(&hp, i), 1,
                                       1e-12);
            }
            assert_true(n_kept > 0 && n_stretched > 0);
            assert_rows(&tables, frequency,
                        (long double)hp.attn_factor * (1 + logl(factor) / 10)); /* eq. 22 */
            tsr_rope_tables_free(&tables);
        }
}

/* Pairs before the rotation have angle 0 and grow with the temperature alone, not by YaRN; the rotated ones
 * are those of a shorter table. */
static void fixed_pairs_only_grow(void **state)
{
    (void)state;
    enum { FIXED = 6, ROT = 10 };
    tsr_rope_params p = plain(ROT, 10000), q = plain(FIXED + ROT, 10000);
    tsr_rope_tables turned, all;
    float short_row[ROT], row[FIXED + ROT];
    p.scaling = q.scaling = TSR_ROPE_SCALING_YARN;
    p.factor = q.factor = 16;
    p.temperature = q.temperature = 0.25;
    p.temperature_length = q.temperature_length = 100;
    q.n_fixed = FIXED;
    runner_ok(tsr_rope_tables_create(&p, NULL, &turned), "tables");
    runner_ok(tsr_rope_tables_create(&q, NULL, &all), "tables");
    for (int64_t position = 0; position < 1000; position += 37) {
        tsr_rope_row(&turned, position, short_row);
        tsr_rope_row(&all, position, row);
        assert_memory_equal(row + FIXED, short_row, sizeof short_row);
        const double growth = 1 + 0.25 * log(1 + floor((double)position / 100));
        for (int i = 0; i < FIXED; i += 2) {
            assert_true(row[i] == (float)growth);
            assert_true(row[i + 1] == 0);
        }
    }
    tsr_rope_tables_free(&turned);
    tsr_rope_tables_free(&all);
}

static void groups_share_angles_and_inverses_turn_back(void **state)
{
    (void)state;
    enum { ROT = 10, GROUP = 4 };
    tsr_rope_params p = plain(ROT, 10000);
    tsr_rope_tables tables, of_group, back;
    float row[ROT], first[ROT];
    runner_ok(tsr_rope_tables_create(&p, NULL, &tables), "tables");
    p.inverse = true;
    runner_ok(tsr_rope_tables_create(&p, NULL, &back), "tables");
    p.inverse = false;
    p.group = GROUP;
    runner_ok(tsr_rope_tables_create(&p, NULL, &of_group), "tables");
    for (int64_t position = 0; position < 50; position++) {
        tsr_rope_row(&of_group, position, row);
        tsr_rope_row(&tables, position / GROUP * GROUP, first);
        assert_memory_equal(row, first, sizeof row);
        tsr_rope_row(&tables, position, row);
        tsr_rope_row(&back, position, first);
        for (int i = 0; i < ROT; i += 2)
            assert_true(row[i] == first[i] && row[i + 1] == -first[i + 1]);
    }
    tsr_rope_tables_free(&tables);
    tsr_rope_tables_free(&of_group);
    tsr_rope_tables_free(&back);
}

static void magnitudes_scale_the_tables(void **state)
{
    (void)state;
    tsr_rope_params p = plain(64, 10000);
    tsr_rope_tables tables;
    float row[MAX_ROT];
    p.scaling = TSR_ROPE_SCALING_YARN;
    p.factor = 16;
    for (int half = 0; half <= 2; half++) {
        p.log_multiplier = half / 2.0;
        runner_ok(tsr_rope_tables_create(&p, NULL, &tables), "tables");
        assert_float_equal(tables.magnitude, (1 + 0.1 * log(16)) / (1 + p.log_multiplier * 0.1 * log(16)),
                           1e-12);
        tsr_rope_tables_free(&tables);
    }
    p.yarn_magnitude = 1.25; /* the file's own */
    runner_ok(tsr_rope_tables_create(&p, NULL, &tables), "tables");
    assert_float_equal(tables.magnitude, 1.25, 0);
    tsr_rope_tables_free(&tables);
    p = plain(64, 10000);
    p.n_ctx_orig = 100;
    p.temperature = 0.25;
    runner_ok(tsr_rope_tables_create(&p, NULL, &tables), "tables");
    for (int64_t position = 0; position < 1000; position += 33) {
        double steps = (double)(position / 100);
        tsr_rope_row(&tables, position, row);
        assert_float_equal(hypot((double)row[0], (double)row[1]), 1 + 0.25 * log(1 + steps), 1e-6);
    }
    tsr_rope_tables_free(&tables);
    p = plain(64, 10000); /* LongRoPE: frequencies by the file's factors alone */
    p.scaling = TSR_ROPE_SCALING_LONGROPE;
    p.factor = 32;
    p.attn_factor = 1.19;
    float factors[32];
    for (int i = 0; i < 32; i++)
        factors[i] = 1 + (float)i;
    runner_ok(tsr_rope_tables_create(&p, factors, &tables), "tables");
    assert_float_equal(tables.magnitude, 1.19, 0);
    for (int64_t i = 0; i < 32; i++)
        assert_float_equal(tables.inverse_frequency[i] * (double)(1 + i) / (double)theta(&p, i), 1, 1e-12);
    tsr_rope_tables_free(&tables);
}

/* -- layers -- */

static tsr_status read_window(const char *key, tsr_gguf_value_type type, const void *values, size_t n,
                              tsr_hparams *hp)
{
    gguf_writer *w = gguf_writer_create(3);
    gguf_writer_u32(w, "x.attention.sliding_window", 7);
    if (n > 0)
        gguf_writer_array(w, key, type, values, n);
    else if (values)
        gguf_writer_value(w, key, type, values);
    tsr_gguf *gguf = gguf_writer_open(w);
    *hp = (tsr_hparams){.architecture = "x", .n_layers = 6};
    tsr_keys keys = {.gguf = gguf, .architecture = "x"};
    tsr_status status = tsr_hparams_read_window(&keys, 2, hp);
    for (int64_t l = 0; l < 6 && status == TSR_OK; l++) {
        tsr_layer_kind kind;
        status = tsr_layer_kind_read(&keys, hp, l, &kind);
        if (status == TSR_OK)
            status = tsr_hparams_set_layer(hp, l, &kind);
    }
    tsr_gguf_close(gguf);
    return status;
}

static void check_windows(const tsr_hparams *hp, const char *layers)
{
    for (int l = 0; l < 6; l++)
        assert_int_equal(tsr_hparams_layer(hp, l)->window, layers[l] == 'w' ? 7 : 0);
}

static void patterns_say_which_layers_have_windows(void **state)
{
    (void)state;
    static const char key[] = "x.attention.sliding_window_pattern";
    static const bool thirds[] = {1, 1, 0, 1, 1, 0}, all[] = {1, 1, 1, 1, 1, 1}, none[6],
                      odd[] = {1, 0, 0, 1, 1, 1};
    const uint32_t three = 3, zero = 0, one = 1;
    tsr_hparams hp;
    runner_ok(read_window(NULL, TSR_GGUF_U32, NULL, 0, &hp), "default");
    check_windows(&hp, "w-w-w-");
    runner_ok(read_window(key, TSR_GGUF_U32, &three, 0, &hp), "period");
    check_windows(&hp, "ww-ww-");
    runner_ok(read_window(key, TSR_GGUF_U32, &zero, 0, &hp), "all");
    check_windows(&hp, "wwwwww");
    runner_ok(read_window(key, TSR_GGUF_U32, &one, 0, &hp), "none");
    check_windows(&hp, "------");
    runner_ok(read_window(key, TSR_GGUF_BOOL, thirds, 6, &hp), "flags");
    check_windows(&hp, "ww-ww-");
    runner_ok(read_window(key, TSR_GGUF_BOOL, all, 6, &hp), "flags");
    check_windows(&hp, "wwwwww");
    runner_ok(read_window(key, TSR_GGUF_BOOL, none, 6, &hp), "flags");
    check_windows(&hp, "------");
    runner_ok(read_window(key, TSR_GGUF_BOOL, odd, 6, &hp), "flags");
    check_windows(&hp, "w--www");
    assert_int_equal(hp.n_kinds, 2);
    assert_int_equal(read_window(key, TSR_GGUF_BOOL, thirds, 5, &hp), TSR_ERR_FORMAT);
}

static tsr_layer_kind layer_of(const tsr_hparams *hp, int64_t l)
{
    gguf_writer *w = gguf_writer_create(3);
    tsr_gguf *gguf = gguf_writer_open(w);
    tsr_keys keys = {.gguf = gguf, .architecture = "x"};
    tsr_layer_kind kind;
    runner_ok(tsr_layer_kind_read(&keys, hp, l, &kind), "layer");
    tsr_gguf_close(gguf);
    return kind;
}

static void each_layer_has_its_own_rotation(void **state)
{
    (void)state;
    tsr_hparams hp = {.n_layers = 8, .window = 7, .window_period = 2};
    assert_int_equal(layer_of(&hp, 0).rope_q, -1);
    hp.rope[TSR_ROPE_MAIN] = plain(64, 10000);
    assert_int_equal(layer_of(&hp, 0).rope_q, TSR_ROPE_MAIN); /* no other there */
    hp.rope[TSR_ROPE_WINDOWED] = plain(64, 500);
    assert_int_equal(layer_of(&hp, 0).rope_q, TSR_ROPE_WINDOWED);
    assert_int_equal(layer_of(&hp, 0).rope_k, TSR_ROPE_WINDOWED);
    assert_int_equal(layer_of(&hp, 1).rope_q, TSR_ROPE_MAIN);
    hp.rope[TSR_ROPE_QUERIES] = plain(64, 10000);
    assert_int_equal(layer_of(&hp, 1).rope_q, TSR_ROPE_QUERIES);
    assert_int_equal(layer_of(&hp, 1).rope_k, TSR_ROPE_MAIN);
}

/* -- from the keys of a file -- */

static tsr_rope_params read_keys(const char *type, const char *key, double value)
{
    gguf_writer *w = gguf_writer_create(3);
    tsr_hparams hp;
    gguf_writer_u32(w, "x.block_count", 1);
    gguf_writer_u32(w, "x.embedding_length", 256);
    gguf_writer_u32(w, "x.feed_forward_length", 256);
    gguf_writer_u32(w, "x.context_length", 2048);
    gguf_writer_u32(w, "x.attention.head_count", 4);
    if (type)
        gguf_writer_string(w, "x.rope.scaling.type", type);
    if (key)
        gguf_writer_f32(w, key, (float)value);
    tsr_gguf *gguf = gguf_writer_open(w);
    tsr_keys keys = {.gguf = gguf, .architecture = "x"};
    runner_ok(tsr_hparams_read(&keys, false, &hp), "keys");
    tsr_gguf_close(gguf);
    return hp.rope[TSR_ROPE_MAIN];
}

static void scaling_is_read_from_keys(void **state)
{
    (void)state;
    tsr_rope_params hp = read_keys(NULL, NULL, 0);
    assert_int_equal(hp.n_rot, 64);
    assert_float_equal(hp.base, 10000, 0);
    assert_float_equal(hp.n_ctx_orig, 2048, 0);
    assert_int_equal(hp.scaling, TSR_ROPE_SCALING_NONE);
    hp = read_keys("linear", "x.rope.scaling.factor", 4);
    assert_int_equal(hp.scaling, TSR_ROPE_SCALING_LINEAR);
    assert_float_equal(hp.factor, 4, 0);
    hp = read_keys(NULL, "x.rope.scaling.factor", 4); /* linear unless it says otherwise */
    assert_int_equal(hp.scaling, TSR_ROPE_SCALING_LINEAR);
    hp = read_keys(NULL, "x.rope.scale_linear", 2); /* the older key */
    assert_int_equal(hp.scaling, TSR_ROPE_SCALING_LINEAR);
    assert_float_equal(hp.factor, 2, 0);
    hp = read_keys("none", "x.rope.scaling.factor", 4);
    assert_int_equal(hp.scaling, TSR_ROPE_SCALING_NONE);
    hp = read_keys(NULL, "x.rope.scaling.factor", 0); /* files say 0 for none */
    assert_int_equal(hp.scaling, TSR_ROPE_SCALING_NONE);
    hp = read_keys("yarn", "x.rope.scaling.factor", 16);
    assert_int_equal(hp.scaling, TSR_ROPE_SCALING_YARN);
    assert_float_equal(hp.beta_fast, 32, 0);
    assert_float_equal(hp.beta_slow, 1, 0);
    hp = read_keys("yarn", "x.rope.scaling.yarn_attn_factor", 1.25);
    assert_float_equal(hp.yarn_magnitude, 1.25, 0);
}

/* tsr_rope_fill() has the bits of the tables of a model with the same parameters. */
static void public_tables_are_those_of_models(void **state)
{
    (void)state;
    enum { N_ROT = 64, N_POSITIONS = 5 };
    static const int32_t positions[N_POSITIONS] = {0, 1, 511, 8192, 1000000};
    static float rows[4][N_POSITIONS][N_ROT];
    float factors[N_ROT / 2], row[N_ROT];
    for (int i = 0; i < N_ROT / 2; i++)
        factors[i] = 1 + 0.25f * (float)i;
    for (int kind = 0; kind < 4; kind++) { /* linear, YaRN, YaRN with a growth of its own, LongRoPE */
        tsr_rope_params hp = plain(N_ROT, 500000);
        tsr_rope_tables tables;
        tsr_rope_config config = tsr_rope_config_default();
        const bool yarn = kind == 1 || kind == 2;
        hp.scaling = kind == 0 ? TSR_ROPE_SCALING_LINEAR
                     : yarn    ? TSR_ROPE_SCALING_YARN
                               : TSR_ROPE_SCALING_LONGROPE;
        hp.factor = config.factor = kind == 3 ? 1 : 4;
        hp.attn_factor = config.magnitude = kind == 0 ? 1 : 1.5;
        hp.yarn_magnitude = config.yarn_growth = kind == 2 ? 1.25 : 0;
        if (yarn) {
            config.yarn_n_ctx = hp.n_ctx_orig;
            hp.beta_fast = config.yarn_beta_fast = 24;
            hp.beta_slow = config.yarn_beta_slow = 2;
        }
        config.n_rot = N_ROT;
        config.base = 500000;
        config.factors = factors;
        runner_ok(tsr_rope_tables_create(&hp, factors, &tables), "tables");
        runner_ok(tsr_rope_fill(&config, positions, N_POSITIONS, rows[kind][0]), "fill");
        for (int p = 0; p < N_POSITIONS; p++) {
            tsr_rope_row(&tables, positions[p], row);
            assert_memory_equal(rows[kind][p], row, sizeof row);
        }
        for (int other = 0; other < kind; other++)
            assert_memory_not_equal(rows[kind], rows[other], sizeof rows[kind]);
        tsr_rope_tables_free(&tables);
        if (kind == 0) { /* the config of a program that knows no more of it */
            config.size = offsetof(tsr_rope_config, magnitude);
            config.magnitude = -1;
            runner_ok(tsr_rope_fill(&config, positions, N_POSITIONS, rows[1][0]), "fill");
            assert_memory_equal(rows[0], rows[1], sizeof rows[0]);
        }
    }
}

static void public_tables_refuse_what_has_no_angles(void **state)
{
    (void)state;
    const int32_t positions[2] = {0, 1};
    const float factors[2] = {1, 0};
    float rows[8];
    tsr_rope_config good = tsr_rope_config_default(), config;
    good.n_rot = 4;
    runner_ok(tsr_rope_fill(&good, positions, 2, rows), "fill");
#define REFUSE(field, value, words)                                                    \
    do {                                                                               \
        config = good;                                                                 \
        config.field = value;                                                          \
        assert_int_equal(tsr_rope_fill(&config, positions, 2, rows), TSR_ERR_INVALID); \
        assert_non_null(strstr(tsr_last_error(), words));                              \
    } while (0)
    REFUSE(n_rot, 0, "n_rot is 0");
    REFUSE(n_rot, 3, "n_rot is 3");
    REFUSE(base, 0, "base 0");
    REFUSE(base, INFINITY, "base inf");
    REFUSE(factor, -1, "factor -1");
    REFUSE(factor, NAN, "factor nan");
    REFUSE(factors, factors, "factor 1 is 0");
    REFUSE(size, 1, "tsr_rope_config");
    REFUSE(magnitude, 0, "magnitude 0");
    REFUSE(yarn_n_ctx, -1, "yarn_n_ctx -1");
    good.yarn_n_ctx = 4096;
    REFUSE(yarn_beta_fast, 0, "yarn_beta_fast 0");
    REFUSE(yarn_beta_slow, NAN, "yarn_beta_slow nan");
    REFUSE(yarn_growth, -2, "yarn_growth -2");
    REFUSE(base, 1, "base 1");
    good.yarn_n_ctx = 0;
    assert_int_equal(tsr_rope_fill(NULL, positions, 2, rows), TSR_ERR_INVALID);
    assert_int_equal(tsr_rope_fill(&good, NULL, 2, rows), TSR_ERR_INVALID);
    assert_int_equal(tsr_rope_fill(&good, positions, 2, NULL), TSR_ERR_INVALID);
    assert_int_equal(tsr_rope_fill(&good, positions, -1, rows), TSR_ERR_INVALID);
    assert_int_equal(tsr_rope_fill(&good, NULL, 0, NULL), TSR_OK);
}

static void memory_may_be_short(void **state)
{
    (void)state;
    tsr_rope_params hp = plain(64, 10000);
    tsr_rope_tables tables = {0};
    failing_alloc_set(1);
    tsr_status status = tsr_rope_tables_create(&hp, NULL, &tables);
    failing_alloc_set(0);
    assert_int_equal(status, TSR_ERR_MEMORY);
    assert_null(tables.inverse_frequency);
    tsr_rope_tables_free(&tables);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unscaled_tables_are_exact),
        cmocka_unit_test(linear_scaling_divides_positions),
        cmocka_unit_test(llama3_factors_divide_frequencies),
        cmocka_unit_test(yarn_tables_are_exact),
        cmocka_unit_test(fixed_pairs_only_grow),
        cmocka_unit_test(groups_share_angles_and_inverses_turn_back),
        cmocka_unit_test(magnitudes_scale_the_tables),
        cmocka_unit_test(patterns_say_which_layers_have_windows),
        cmocka_unit_test(each_layer_has_its_own_rotation),
        cmocka_unit_test(scaling_is_read_from_keys),
        cmocka_unit_test(public_tables_are_those_of_models),
        cmocka_unit_test(public_tables_refuse_what_has_no_angles),
        cmocka_unit_test(memory_may_be_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

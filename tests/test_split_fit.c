/* Several classes of tensors fitted into the memory of devices together.
 *
 * The fit is held against a naive checker that enumerates every assignment; it shares nothing with the
 * library but the meaning of the words. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tsr/split.h>

#include "support/failing_alloc.h"
#include "support/message.h"
#include "support/random.h"

static int64_t sum_of(const int64_t *values, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += values[i];
    return sum;
}

enum { FIT_DEVICES = 3, FIT_CLASSES = 3 };

/* A small problem with its fractional targets, computed as the header says, in doubles. */
typedef struct small_fit {
    int n_classes, n_devices;
    tsr_split_class classes[FIT_CLASSES];
    tsr_split_room rooms[FIT_DEVICES];
    double shares[FIT_CLASSES][FIT_DEVICES], target[FIT_CLASSES][FIT_DEVICES]; /* target in bytes */
    int64_t count[FIT_CLASSES][FIT_DEVICES];                                   /* during enumeration */
    double best;                                                               /* -1: nothing fits */
} small_fit;

static double fit_room(const small_fit *f, int d)
{
    return (double)f->rooms[d].capacity_bytes - (double)f->rooms[d].fixed_bytes;
}

static void compute_targets(small_fit *f)
{
    bool pinned[FIT_DEVICES] = {false};
    for (int round = 0; round <= f->n_devices; round++) {
        for (int k = 0; k < f->n_classes; k++) {
            double open = (double)f->classes[k].n_granules * (double)f->classes[k].granule_bytes, weight = 0;
            for (int d = 0; d < f->n_devices; d++) {
                if (pinned[d])
                    open -= f->target[k][d];
                else
                    weight += f->shares[k][d];
            }
            for (int d = 0; d < f->n_devices; d++)
                if (!pinned[d])
                    f->target[k][d] = weight > 0 ? open * f->shares[k][d] / weight : 0;
        }
        for (int d = 0; d < f->n_devices; d++) {
            double sum = 0;
            for (int k = 0; k < f->n_classes; k++)
                sum += f->target[k][d];
            if (pinned[d] || sum <= fit_room(f, d) + 1e-6)
                continue;
            pinned[d] = true;
            for (int k = 0; k < f->n_classes; k++)
                f->target[k][d] *= fit_room(f, d) / sum;
        }
    }
}

static bool fits_rooms(const small_fit *f, const int64_t count[][FIT_DEVICES])
{
    for (int d = 0; d < f->n_devices; d++) {
        size_t bytes = f->rooms[d].fixed_bytes;
        bool used = false;
        for (int k = 0; k < f->n_classes; k++) {
            bytes += (size_t)count[k][d] * f->classes[k].granule_bytes;
            used = used || f->shares[k][d] > 0;
        }
        if (used && bytes > f->rooms[d].capacity_bytes)
            return false;
    }
    return true;
}

static double largest_deviation(const small_fit *f, const int64_t count[][FIT_DEVICES])
{
    double worst = 0;
    for (int k = 0; k < f->n_classes; k++)
        for (int d = 0; d < f->n_devices; d++)
            worst = fmax(worst,
                         fabs((double)count[k][d] * (double)f->classes[k].granule_bytes - f->target[k][d]));
    return worst;
}

static void enumerate_fit(small_fit *f, int k, int d, int64_t left)
{
    if (d == f->n_devices) {
        if (left > 0)
            return;
        if (k + 1 < f->n_classes) {
            enumerate_fit(f, k + 1, 0, f->classes[k + 1].n_granules);
            return;
        }
        double deviation = largest_deviation(f, f->count);
        if (fits_rooms(f, f->count) && (f->best < 0 || deviation < f->best))
            f->best = deviation;
        return;
    }
    for (int64_t count = 0; count <= (f->shares[k][d] > 0 ? left : 0); count++) {
        f->count[k][d] = count;
        enumerate_fit(f, k, d + 1, left - count);
    }
}

static void random_fit(uint64_t *seed, small_fit *f)
{
    bool same_shares = random_below(seed, 2);
    size_t needed = 0;

    *f = (small_fit){.best = -1};
    f->n_classes = 1 + (int)random_below(seed, FIT_CLASSES);
    f->n_devices = 1 + (int)random_below(seed, FIT_DEVICES);
    for (int k = 0; k < f->n_classes; k++) {
        double sum = 0;
        for (int d = 0; d < f->n_devices; d++) {
            f->shares[k][d] = same_shares && k ? f->shares[0][d] : (double)random_below(seed, 5);
            sum += f->shares[k][d];
        }
        if (sum == 0)
            f->shares[k][0] = 1;
        f->classes[k] = (tsr_split_class){"class", random_below(seed, 6),
                                          (size_t)(1 + random_below(seed, 40)), f->shares[k]};
        needed += (size_t)f->classes[k].n_granules * f->classes[k].granule_bytes;
    }
    for (int d = 0; d < f->n_devices; d++) {
        f->rooms[d].fixed_bytes = (size_t)random_below(seed, 10);
        f->rooms[d].capacity_bytes = f->rooms[d].fixed_bytes +
                                     (size_t)random_below(seed, (int64_t)needed * 3 / (f->n_devices + 1) + 5);
        if (random_below(seed, 8) == 0)
            f->rooms[d].capacity_bytes = SIZE_MAX;
    }
}

static void fit_finds_the_nearest_assignment_that_fits(void **state)
{
    (void)state;
    uint64_t seed = 4;
    int outcomes[3] = {0}; /* nothing fits, plain rounding fits, searched */

    for (int round = 0; round < 6000; round++) {
        small_fit f;
        int64_t flat[FIT_CLASSES * FIT_DEVICES], got[FIT_CLASSES][FIT_DEVICES],
            plain[FIT_CLASSES][FIT_DEVICES];
        random_fit(&seed, &f);
        compute_targets(&f);
        enumerate_fit(&f, 0, 0, f.classes[0].n_granules);

        tsr_status status = tsr_split_fit(f.classes, f.n_classes, f.rooms, f.n_devices, flat);
        if (f.best < 0) {
            assert_int_equal(status, TSR_ERR_MEMORY);
            assert_message_has("device ");
            assert_message_has(" short");
            outcomes[0]++;
            continue;
        }
        assert_int_equal(status, TSR_OK);
        memset(got, 0, sizeof got);
        memset(plain, 0, sizeof plain);
        for (int k = 0; k < f.n_classes; k++) {
            memcpy(got[k], flat + k * f.n_devices, (size_t)f.n_devices * sizeof *flat);
            assert_int_equal(sum_of(got[k], f.n_devices), f.classes[k].n_granules);
            assert_int_equal(
                tsr_split_round(f.shares[k], f.n_devices, f.classes[k].n_granules, NULL, plain[k]), TSR_OK);
            for (int d = 0; d < f.n_devices; d++)
                assert_true(got[k][d] >= 0 && (f.shares[k][d] > 0 || got[k][d] == 0));
        }
        assert_true(fits_rooms(&f, got));
        if (fits_rooms(&f, plain)) {
            assert_memory_equal(got, plain, sizeof got);
            outcomes[1]++;
            continue;
        }
        /* The library counts targets in whole bytes. */
        if (largest_deviation(&f, got) > f.best + 4)
            fail_msg("round %d: %.3f bytes from the targets, %.3f are possible", round,
                     largest_deviation(&f, got), f.best);
        outcomes[2]++;
    }
    for (int i = 0; i < 3; i++)
        assert_true(outcomes[i] > 300);
}

/* A Llama-3-8B in F16 with 8 KV heads, 112 FFN granules and 128256 rows over four unequal cards. */
static void fit_balances_a_real_model(void **state)
{
    (void)state;
    const size_t MIB = 1 << 20;
    double shares[] = {4, 2, 1, 1};
    tsr_split_class classes[] = {{"attention", 8, 448 * MIB, shares},
                                 {"ffn", 112, 96 * MIB, shares},
                                 {"output", 128256, 8192, shares}};
    tsr_split_room rooms[] = {
        {6144 * MIB, 512 * MIB}, {8192 * MIB, 512 * MIB}, {8192 * MIB, 512 * MIB}, {0, 0}};
    int64_t counts[12];
    shares[3] = 0;

    assert_int_equal(tsr_split_fit(classes, 3, rooms, 4, counts), TSR_OK);
    for (int d = 0; d < 3; d++) {
        size_t bytes = rooms[d].fixed_bytes;
        for (int k = 0; k < 3; k++)
            bytes += (size_t)counts[k * 4 + d] * classes[k].granule_bytes;
        assert_true(bytes <= rooms[d].capacity_bytes);
        /* The card with half of the shares is the full one. */
        if (d == 0)
            assert_true(bytes > rooms[d].capacity_bytes - 200 * MIB);
    }
    for (int k = 0; k < 3; k++) {
        assert_int_equal(sum_of(counts + 4 * k, 4), classes[k].n_granules);
        assert_int_equal(counts[4 * k + 3], 0);
        assert_true(counts[4 * k + 1] >= counts[4 * k + 2]);
    }

    rooms[0].capacity_bytes = 1024 * MIB;
    rooms[1].capacity_bytes = 1024 * MIB;
    assert_int_equal(tsr_split_fit(classes, 3, rooms, 4, counts), TSR_ERR_MEMORY);
    assert_message_has("device 0, which may hold 1073741824 bytes, is ");
    rooms[1].fixed_bytes = 1024 * MIB + 5;
    assert_int_equal(tsr_split_fit(classes, 3, rooms, 4, counts), TSR_ERR_MEMORY);
    assert_message_has("device 1 may hold 1073741824 bytes, but 1073741829 are needed there");
    assert_message_has(": 5 bytes are missing");
}

static void fit_ignores_classes_without_bytes(void **state)
{
    (void)state;
    double shares[] = {1, 1};
    tsr_split_class classes[] = {{"free", 4, 0, shares}, {"paid", 4, 10, shares}, {"none", 0, 10, shares}};
    tsr_split_room rooms[] = {{10, 0}, {30, 0}};
    int64_t counts[6], expected[] = {2, 2, 1, 3, 0, 0};

    assert_int_equal(tsr_split_fit(classes, 3, rooms, 2, counts), TSR_OK);
    assert_memory_equal(counts, expected, sizeof expected);
}

static void fit_refuses_what_it_cannot_count(void **state)
{
    (void)state;
    double shares[] = {1, 1};
    tsr_split_class huge = {"huge", TSR_SPLIT_MAX_GRANULES, SIZE_MAX / 8, shares};
    tsr_split_class no_shares = {"bare", 1, 1, NULL};
    tsr_split_room rooms[] = {{SIZE_MAX, 0}, {SIZE_MAX, 0}};
    int64_t counts[2];

    assert_int_equal(tsr_split_fit(&huge, 1, rooms, 2, counts), TSR_ERR_INVALID);
    assert_message_has("class huge");
    assert_int_equal(tsr_split_fit(&no_shares, 1, rooms, 2, counts), TSR_ERR_INVALID);
    assert_int_equal(tsr_split_fit(&huge, TSR_SPLIT_MAX_CLASSES + 1, rooms, 2, counts), TSR_ERR_INVALID);
    assert_int_equal(tsr_split_fit(NULL, 1, rooms, 2, counts), TSR_ERR_INVALID);
}

static void fit_survives_any_failing_allocation(void **state)
{
    (void)state;
    double shares[] = {3, 1, 1};
    tsr_split_class classes[] = {{"a", 8, 100, shares}, {"b", 30, 20, shares}, {"c", 100, 1, shares}};
    tsr_split_room rooms[] = {{500, 0}, {600, 0}, {600, 0}};
    int64_t failures = 0, counts[9] = {-1};

    for (int n = 1;; n++) {
        int64_t blocks = failing_alloc_live();
        failing_alloc_set(n);
        tsr_status status = tsr_split_fit(classes, 3, rooms, 3, counts);
        bool fired = failing_alloc_fired();
        failing_alloc_set(0);
        assert_int_equal(failing_alloc_live(), blocks);
        if (!fired) {
            assert_int_equal(status, TSR_OK);
            break;
        }
        assert_int_equal(status, TSR_ERR_MEMORY);
        assert_int_equal(counts[0], -1);
        failures++;
    }
    assert_true(failures > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fit_finds_the_nearest_assignment_that_fits),
        cmocka_unit_test(fit_balances_a_real_model),
        cmocka_unit_test(fit_ignores_classes_without_bytes),
        cmocka_unit_test(fit_refuses_what_it_cannot_count),
        cmocka_unit_test(fit_survives_any_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

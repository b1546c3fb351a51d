/* States of recurrent layers in the KV region: which slots a step reads and writes, going back, sharing, and
 * what moves to another split, to a file and together. Slots are told apart by numbers written to them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "alloc/kv/kv.h"
#include "core/mem.h"
#include "support/failing_alloc.h"
#include "support/fake_device.h"
#include "support/kv_case.h"

enum { KEYS = 10, VALUES = 20, KEY_FLOATS = 3, VALUE_FLOATS = 7, WHOLE_FLOATS = 11, N_PARTS = 3 };

/* Layer 1 is recurrent, with a state of VALUES * VALUE_FLOATS and KEYS * KEY_FLOATS floats, and WHOLE_FLOATS
 * that every device has. */
typedef struct fixture {
    kv_fixture f;
    tsr_shard_map values, keys;
} fixture;

static void describe(fixture *s, const int64_t counts[N_DEVICES])
{
    kv_fixture *f = &s->f;
    kv_describe(f, TSR_TYPE_F16, TSR_TYPE_F16);
    assert_int_equal(tsr_shard_map_init(VALUES, VALUES / 5, N_DEVICES, counts, &s->values), TSR_OK);
    assert_int_equal(tsr_shard_map_init(KEYS, KEYS / 5, N_DEVICES, counts, &s->keys), TSR_OK);
    f->layers[1].kv_heads = NULL;
    f->layers[1].devices = 7;
    f->layers[1].state[0] = (tsr_kv_state_part){&s->values, VALUE_FLOATS * sizeof(float), false};
    f->layers[1].state[1] = (tsr_kv_state_part){&s->keys, KEY_FLOATS * sizeof(float), false};
    f->layers[1].state[2] = (tsr_kv_state_part){&s->values, WHOLE_FLOATS * sizeof(float), true};
}

static void open_with(fixture *s, const int64_t counts[N_DEVICES])
{
    memset(s, 0, sizeof *s);
    fake_runtime_open(&s->f.fake, N_DEVICES, NULL);
    describe(s, counts);
    assert_int_equal(tsr_kv_create_spec(&s->f.fake.rt, &s->f.spec, &s->f.kv), TSR_OK);
}

static const int64_t thirds[N_DEVICES] = {2, 2, 1}, alone[N_DEVICES] = {0, 5, 0};

/* The floats of a part of a device's slot. */
static float *floats_of(const fixture *s, int device, int part, int32_t slot, int64_t *n_out)
{
    tsr_state_view view;
    tsr_kv_state_view_of(s->f.kv, device, 1, part, &view);
    *n_out = part == 2 ? WHOLE_FLOATS
                       : tsr_shard_map_count(part ? &s->keys : &s->values, device) *
                             (part ? KEY_FLOATS : VALUE_FLOATS);
    return view.base + slot * view.slot_elems;
}

/* Do what a step of n tokens does: the state becomes (what it was) * 10 + `mark`. */
static void step(fixture *s, int seq, int n, float mark)
{
    assert_int_equal(tsr_kv_append(s->f.kv, seq, n), TSR_OK);
    tsr_state_row row = tsr_kv_state_row(s->f.kv, seq);
    assert_true(row.write >= 0 && row.write != row.read);
    for (int d = 0; d < N_DEVICES; d++)
        for (int part = 0; part < N_PARTS; part++) {
            int64_t k;
            const float *from = row.read >= 0 ? floats_of(s, d, part, row.read, &k) : NULL;
            float *to = floats_of(s, d, part, row.write, &k);
            for (int64_t i = 0; i < k; i++)
                to[i] = (from ? 10 * from[i] : 0) + mark;
        }
}

/* A call of one step. */
static void call(fixture *s, int seq, int n, float mark)
{
    tsr_kv_begin_call(s->f.kv);
    step(s, seq, n, mark);
    tsr_kv_finish_step(s->f.kv);
}

static void check_state(const fixture *s, int seq, float expected)
{
    tsr_state_row row = tsr_kv_state_row(s->f.kv, seq);
    assert_true(row.read >= 0);
    for (int d = 0; d < N_DEVICES; d++)
        for (int part = 0; part < N_PARTS; part++) {
            int64_t n;
            const float *x = floats_of(s, d, part, row.read, &n);
            for (int64_t i = 0; i < n; i++)
                assert_true(x[i] == expected);
        }
}

static void close_all(fixture *s)
{
    kv_close(&s->f);
}

static void a_failed_step_or_call_is_taken_back(void **state)
{
    (void)state;
    fixture s;
    open_with(&s, thirds);
    call(&s, 0, 5, 1);
    tsr_kv_begin_call(s.f.kv);
    step(&s, 0, 3, 2);
    tsr_kv_finish_step(s.f.kv);
    step(&s, 0, 2, 9);
    assert_int_equal(tsr_kv_trim(s.f.kv, 0, 8), TSR_OK); /* the step that did not finish */
    check_state(&s, 0, 12);
    step(&s, 0, 2, 3);
    assert_int_equal(tsr_kv_trim(s.f.kv, 0, 5), TSR_OK); /* the whole call */
    check_state(&s, 0, 1);
    step(&s, 1, 1, 4);
    assert_int_equal(tsr_kv_trim(s.f.kv, 1, 0), TSR_OK); /* the first step of a sequence */
    assert_int_equal(tsr_kv_state_row(s.f.kv, 1).read, -1);
    close_all(&s);
}

static void only_known_lengths_can_be_cut_to(void **state)
{
    (void)state;
    fixture s;
    open_with(&s, thirds);
    call(&s, 0, 5, 1);
    call(&s, 0, 6, 2);
    call(&s, 1, 4, 7); /* of another sequence */
    assert_int_equal(tsr_kv_min_length(s.f.kv, 0), 5);
    assert_int_equal(tsr_kv_trim(s.f.kv, 0, 7), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "behind 5 tokens"));
    assert_int_equal(tsr_kv_trim(s.f.kv, 0, 4), TSR_ERR_INVALID);
    assert_false(tsr_kv_can_trim(s.f.kv, 0, 10));
    assert_int_equal(tsr_kv_trim(s.f.kv, 0, 11), TSR_OK);
    check_state(&s, 0, 12);
    assert_int_equal(tsr_kv_trim(s.f.kv, 0, 5), TSR_OK);
    check_state(&s, 0, 1);
    assert_int_equal(tsr_kv_remove(s.f.kv, 0), TSR_OK);
    assert_int_equal(tsr_kv_state_row(s.f.kv, 0).read, -1);
    check_state(&s, 1, 7);
    close_all(&s);
}

static void forks_share_states_until_they_differ(void **state)
{
    (void)state;
    fixture s;
    open_with(&s, thirds);
    call(&s, 0, 5, 1);
    size_t committed = tsr_kv_committed_bytes(s.f.kv, 0);
    assert_int_equal(tsr_kv_fork(s.f.kv, 0, 1), TSR_OK);
    assert_int_equal(tsr_kv_committed_bytes(s.f.kv, 0), committed);
    assert_int_equal(tsr_kv_state_row(s.f.kv, 0).read, tsr_kv_state_row(s.f.kv, 1).read);
    call(&s, 1, 1, 2);
    call(&s, 0, 2, 3);
    check_state(&s, 0, 13);
    check_state(&s, 1, 12);
    assert_int_equal(tsr_kv_remove(s.f.kv, 0), TSR_OK);
    assert_int_equal(tsr_kv_trim(s.f.kv, 1, 5), TSR_OK);
    check_state(&s, 1, 1);
    close_all(&s);
}

/* Slots suffice for all sequences with three states each, and are used again. */
static void there_are_slots_for_all_sequences(void **state)
{
    (void)state;
    fixture s;
    open_with(&s, thirds);
    for (int round = 0; round < 5; round++)
        for (int q = 0; q < N_SEQ; q++)
            call(&s, q, 1, 1);
    tsr_kv_begin_call(s.f.kv);
    for (int k = 0; k < 2; k++) { /* the second step is not finished */
        tsr_kv_finish_step(s.f.kv);
        for (int q = 0; q < N_SEQ; q++)
            step(&s, q, 1, 2);
    }
    for (int q = 0; q < N_SEQ; q++)
        check_state(&s, q, 111112);
    for (int d = 0; d < N_DEVICES; d++) {
        assert_int_equal(s.f.fake.devices[d]->used[TSR_MEMORY_KV], tsr_kv_reserved_bytes(s.f.kv, d));
        assert_true(tsr_kv_committed_bytes(s.f.kv, d) <= tsr_kv_reserved_bytes(s.f.kv, d));
    }
    close_all(&s);
}

static void compaction_keeps_states(void **state)
{
    (void)state;
    fixture s;
    open_with(&s, thirds);
    for (int q = 0; q < N_SEQ; q++)
        call(&s, q, 1, (float)(q + 1));
    for (int q = 0; q < N_SEQ - 1; q++)
        assert_int_equal(tsr_kv_remove(s.f.kv, q), TSR_OK);
    assert_int_equal(tsr_kv_compact(s.f.kv), TSR_OK);
    assert_int_equal(tsr_kv_state_row(s.f.kv, N_SEQ - 1).read, 0);
    check_state(&s, N_SEQ - 1, N_SEQ);
    close_all(&s);
}

/* Distinct numbers for every element, in the order of a saved state. */
static unsigned char *numbered(const fixture *s)
{
    size_t bytes = tsr_kv_state_bytes(s->f.kv);
    assert_int_equal(bytes, (VALUES * VALUE_FLOATS + KEYS * KEY_FLOATS + WHOLE_FLOATS) * sizeof(float));
    float *x = malloc(bytes);
    for (size_t i = 0; i < bytes / sizeof *x; i++)
        x[i] = (float)i;
    return (unsigned char *)x;
}

static void states_do_not_depend_on_the_split(void **state)
{
    (void)state;
    fixture s, other;
    open_with(&s, thirds);
    other = s;
    unsigned char *bytes = numbered(&s), *again = calloc(1, tsr_kv_state_bytes(s.f.kv));
    tsr_kv_saved saved = {.length = 3, .parent = -1};
    assert_int_equal(tsr_kv_restore(s.f.kv, 2, &saved), TSR_OK);
    assert_int_equal(tsr_kv_state_put(s.f.kv, 2, bytes), TSR_OK);
    describe(&other, alone);
    size_t wanted[N_DEVICES];
    for (int d = 0; d < N_DEVICES; d++)
        wanted[d] = tsr_kv_adopt_bytes(s.f.kv, other.f.layers, s.f.fake.devices[d]);
    assert_int_equal(tsr_kv_create_spec(&s.f.fake.rt, &other.f.spec, &other.f.kv), TSR_OK);
    assert_int_equal(tsr_kv_adopt(other.f.kv, s.f.kv), TSR_OK);
    for (int d = 0; d < N_DEVICES; d++)
        assert_int_equal(tsr_kv_committed_bytes(other.f.kv, d), wanted[d]);
    assert_int_equal(tsr_kv_state_get(other.f.kv, 2, again), TSR_OK);
    assert_memory_equal(bytes, again, tsr_kv_state_bytes(s.f.kv));
    assert_int_equal(tsr_kv_min_length(other.f.kv, 2), 3);
    free(bytes);
    free(again);
    tsr_kv_destroy(other.f.kv);
    close_all(&s);
}

static void wrong_states_are_refused(void **state)
{
    (void)state;
    fixture s = {0};
    tsr_kv *kv;
    fake_runtime_open(&s.f.fake, N_DEVICES, NULL);
    describe(&s, thirds);
    s.f.layers[1].devices = 1; /* elements on other devices */
    assert_int_equal(tsr_kv_create_spec(&s.f.fake.rt, &s.f.spec, &kv), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "layer 1"));
    describe(&s, thirds);
    for (int l = 0; l < s.f.spec.n_layers; l++) /* neither keys nor states */
        s.f.layers[l] = (tsr_kv_layer){.devices = 7};
    assert_int_equal(tsr_kv_create_spec(&s.f.fake.rt, &s.f.spec, &kv), TSR_ERR_UNSUPPORTED);
    assert_non_null(strstr(tsr_last_error(), "no layer has KV heads or states"));
    fake_runtime_close(&s.f.fake);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_step_or_call_is_taken_back),
        cmocka_unit_test(only_known_lengths_can_be_cut_to),
        cmocka_unit_test(forks_share_states_until_they_differ),
        cmocka_unit_test(there_are_slots_for_all_sequences),
        cmocka_unit_test(compaction_keeps_states),
        cmocka_unit_test(states_do_not_depend_on_the_split),
        cmocka_unit_test(wrong_states_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

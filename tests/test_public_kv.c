/* What a KV region of the public headers holds is saved to files and loaded under other splits, and its size
 * is known before it is made. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <sys/resource.h>

#include <tsr/tsr.h>

#include "support/public_attention.h"
#include "support/directory.h"
#include "support/failing_alloc.h"
#include "support/runner.h"

enum { MODEL = 77, MAX_FILE = 1 << 17 };

static const int32_t turns[N_BATCH] = {1, 0, 0, 1, 1, 0, 1, 0, 1},
                     later[N_BATCH] = {2, 0, 2, 2, 1, 1, 2, 2, 0};

/* A region with three sequences, of which two share a page, and what they hold. */
static void begin(attention_model *m, const float *split, attention_history *h)
{
    static float out[5 * N_LAYERS * N_BATCH * N_OUT];
    float *end = out;
    attention_step s;
    memset(h, 0, sizeof *h);
    attention_open(m, split);
    attention_get(m->sinks, h->sinks);
    attention_build(m, N_BATCH, &s);
    for (int i = 0; i < 5; i++)
        attention_run(m, &s, i < 4 ? NULL : turns, 400 + (uint64_t)i, h, &end);
    attention_free(&s);
    runner_ok(tsr_kv_fork(m->kv, 0, 2), "fork");
    h->lengths[2] = h->lengths[0];
    for (int l = 0; l < N_LAYERS; l++) {
        memcpy(h->k[l][2], h->k[l][0], sizeof h->k[l][0]);
        memcpy(h->v[l][2], h->v[l][0], sizeof h->v[l][0]);
    }
}

/* One more step on a copy of the history. */
static void go_on(const attention_model *m, const attention_history *h, float *out)
{
    static attention_history copy;
    attention_step s;
    copy = *h;
    attention_build(m, N_BATCH, &s);
    attention_run(m, &s, later, 500, &copy, &out);
    attention_free(&s);
}

static size_t read_file(const char *name, unsigned char *bytes)
{
    FILE *file = fopen(directory_file(name), "rb");
    assert_non_null(file);
    const size_t n = fread(bytes, 1, MAX_FILE, file);
    assert_true(n < MAX_FILE);
    fclose(file);
    return n;
}

/* Saved under one split and loaded under the next: the files and what follows have the same bytes. */
static void saved_sequences_go_on_under_any_split(void **state)
{
    (void)state;
    static const float splits[][3] = {{1, 0, 0}, {1, 1, 1}, {2, 1, 0}, {1, 0, 2}};
    enum { N_SPLITS = 4 };
    static unsigned char first[MAX_FILE], other[MAX_FILE];
    static float expected[N_LAYERS * N_BATCH * N_OUT], out[N_LAYERS * N_BATCH * N_OUT];
    static attention_history h;
    size_t n = 0;
    for (int i = 0; i < N_SPLITS; i++) {
        attention_model m;
        begin(&m, splits[i], &h);
        runner_ok(tsr_kv_save(m.kv, NULL, 0, MODEL, directory_file("all")), "save");
        go_on(&m, &h, i ? out : expected);
        attention_close(&m);
        assert_true(i == 0 || memcmp(expected, out, sizeof out) == 0);
        const size_t bytes = read_file("all", i ? other : first);
        n = i ? n : bytes;
        assert_int_equal(bytes, n);
        assert_true(i == 0 || memcmp(first, other, n) == 0);

        attention_open(&m, splits[(i + 1) % N_SPLITS]);
        runner_ok(tsr_kv_load(m.kv, NULL, 0, MODEL, directory_file("all")), "load");
        for (int seq = 0; seq < N_SEQ; seq++)
            assert_int_equal(tsr_kv_length(m.kv, seq), h.lengths[seq]);
        go_on(&m, &h, out);
        attention_close(&m);
        assert_memory_equal(expected, out, sizeof out);
    }
}

static void refuse_load(const attention_model *m, uint64_t number, const char *name, tsr_status status,
                        const char *words)
{
    assert_int_equal(tsr_kv_load(m->kv, NULL, 0, number, directory_file(name)), status);
    if (!strstr(tsr_last_error(), words))
        fail_msg("'%s' is not in '%s'", words, tsr_last_error());
    for (int seq = 0; seq < N_SEQ; seq++)
        assert_int_equal(tsr_kv_length(m->kv, seq), 0);
}

/* The region of `m` with one thing changed. */
static void change_region(attention_model *m, tsr_type type_k, int64_t window, int n_seq_max)
{
    tsr_kv_layer_config layers[N_LAYERS];
    tsr_kv_config config = attention_kv_config(m, layers);
    tsr_kv_destroy(m->kv);
    config.type_k = type_k;
    config.n_seq_max = n_seq_max;
    layers[1].window = window;
    runner_ok(tsr_kv_create(m->rt, &config, &m->kv), "KV region");
}

static void files_of_others_are_refused(void **state)
{
    (void)state;
    static const char gguf[256] = "GGUF and so on, for more than the length of a header";
    static unsigned char bytes[MAX_FILE];
    static attention_history h;
    attention_model m;
    begin(&m, (const float[]){1, 1, 1}, &h);
    const char *path = directory_file("all");
    runner_ok(tsr_kv_save(m.kv, NULL, 0, MODEL, path), "save");
    assert_int_equal(tsr_kv_load(m.kv, NULL, 0, MODEL, path), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "is not empty"));
    assert_int_equal(tsr_kv_save(NULL, NULL, 0, MODEL, path), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_load(NULL, NULL, 0, MODEL, path), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_save(m.kv, NULL, 0, MODEL, NULL), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_load(m.kv, NULL, 0, MODEL, NULL), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_save(m.kv, (const int[]){N_SEQ}, 1, MODEL, path), TSR_ERR_INVALID);
    for (int seq = 0; seq < N_SEQ; seq++)
        runner_ok(tsr_kv_remove(m.kv, seq), "remove");
    refuse_load(&m, MODEL + 1, "all", TSR_ERR_INVALID, "another model");
    refuse_load(&m, MODEL, "none", TSR_ERR_NOT_FOUND, "No such file");
    size_t n = read_file("all", bytes);
    directory_write("cut", bytes, n - 1);
    refuse_load(&m, MODEL, "cut", TSR_ERR_FORMAT, "ends too early");
    bytes[n / 2] ^= 1;
    directory_write("damaged", bytes, n);
    refuse_load(&m, MODEL, "damaged", TSR_ERR_FORMAT, "the file is damaged");
    directory_write("foreign", gguf, sizeof gguf);
    refuse_load(&m, MODEL, "foreign", TSR_ERR_FORMAT, "pass a file of tsr_kv_save()");
    change_region(&m, TSR_TYPE_F16, WINDOW, N_SEQ);
    refuse_load(&m, MODEL, "all", TSR_ERR_INVALID, "the KV region F16 and F32; set type_k and type_v");
    change_region(&m, TSR_TYPE_F32, WINDOW + 1, N_SEQ);
    refuse_load(&m, MODEL, "all", TSR_ERR_FORMAT, "groups of layers; this KV region");
    change_region(&m, TSR_TYPE_F32, WINDOW, 1);
    refuse_load(&m, MODEL, "all", TSR_ERR_FULL, "set a larger n_seq_max");
    attention_close(&m);
}

/* Memory runs out at each allocation, and the disk at several places. */
static void failures_of_saving_and_loading_change_nothing(void **state)
{
    (void)state;
    static unsigned char before[MAX_FILE], after[MAX_FILE];
    static attention_history h;
    struct rlimit limit;
    attention_model m;
    bool fired = true;
    begin(&m, (const float[]){2, 0, 1}, &h);
    runner_ok(tsr_kv_save(m.kv, (const int[]){0}, 1, MODEL, directory_file("one")), "save");
    const size_t n = read_file("one", before);
    const int64_t blocks = failing_alloc_live();
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    for (rlim_t most = 0; most < n; most += n / 3) {
        const struct rlimit small = {most, limit.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        const tsr_status status = tsr_kv_save(m.kv, NULL, 0, MODEL, directory_file("one"));
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        assert_int_equal(status, TSR_ERR_IO);
    }
    for (int64_t i = 1; fired; i++) {
        failing_alloc_set(i);
        const tsr_status status = tsr_kv_save(m.kv, (const int[]){0}, 1, MODEL, directory_file("one"));
        fired = failing_alloc_fired();
        failing_alloc_set(0);
        assert_int_equal(status, fired ? TSR_ERR_MEMORY : TSR_OK);
        assert_int_equal(failing_alloc_live(), blocks);
        assert_int_equal(read_file("one", after), n);
        assert_memory_equal(before, after, n);
    }
    runner_ok(tsr_kv_remove(m.kv, 1), "remove");
    fired = true;
    for (int64_t i = 1; fired; i++) {
        failing_alloc_set(i);
        const tsr_status status = tsr_kv_load(m.kv, (const int[]){1}, 1, MODEL, directory_file("one"));
        fired = failing_alloc_fired();
        failing_alloc_set(0);
        assert_int_equal(status, fired ? TSR_ERR_MEMORY : TSR_OK);
        assert_int_equal(tsr_kv_length(m.kv, 1), fired ? 0 : h.lengths[0]);
        assert_int_equal(failing_alloc_live(), blocks);
    }
    attention_close(&m);
}

/* -- sizes -- */

/* What a region will need is known before it is made; with swa_full it needs more, and any cut is
 * possible. */
static void measured_bytes_are_reserved_bytes(void **state)
{
    (void)state;
    tsr_kv_layer_config layers[N_LAYERS];
    size_t bytes[2][3];
    attention_model m;
    attention_open(&m, (const float[]){2, 0, 1});
    tsr_kv_config config = attention_kv_config(&m, layers);
    config.n_ctx = 1 << 14;
    for (int full = 0; full < 2; full++) {
        tsr_device_memory memory;
        config.swa_full = full;
        tsr_kv_destroy(m.kv);
        runner_ok(tsr_kv_measure(m.rt, &config, bytes[full]), "measure");
        runner_ok(tsr_runtime_memory(m.rt, 0, &memory), "memory");
        assert_int_equal(memory.used[TSR_MEMORY_KV], 0);
        runner_ok(tsr_kv_create(m.rt, &config, &m.kv), "KV region");
        for (int d = 0; d < 3; d++)
            assert_int_equal(bytes[full][d], tsr_kv_reserved_bytes(m.kv, d));
        attention_step s;
        attention_build(&m, N_BATCH, &s);
        for (int i = 0; i < 8; i++)
            runner_ok(tsr_kv_inputs_append(s.inputs, NULL, NULL), "append");
        attention_free(&s);
        assert_int_equal(tsr_kv_min_length(m.kv, 0) > 0, !full);
        assert_int_equal(tsr_kv_trim(m.kv, 0, 1), full ? TSR_OK : TSR_ERR_INVALID);
        assert_true(full || strstr(tsr_last_error(), "set swa_full"));
    }
    assert_true(bytes[0][0] < bytes[1][0] && bytes[0][2] < bytes[1][2] && bytes[0][1] == 0);
    config.n_ctx = 0;
    assert_int_equal(tsr_kv_measure(m.rt, &config, bytes[0]), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_measure(NULL, &config, bytes[0]), TSR_ERR_INVALID);
    assert_int_equal(tsr_kv_measure(m.rt, &config, NULL), TSR_ERR_INVALID);
    attention_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saved_sequences_go_on_under_any_split),
        cmocka_unit_test(files_of_others_are_refused),
        cmocka_unit_test(failures_of_saving_and_loading_change_nothing),
        cmocka_unit_test(measured_bytes_are_reserved_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Saved sequences: whatever the split they were saved and are loaded under, they go on with the same bits;
 * what they shared they share again; a file that is damaged, cut off or of another model changes nothing, and
 * a save that fails leaves the file that was there. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include "support/directory.h"
#include "support/failing_alloc.h"
#include "support/random.h"
#include "support/session_check.h"
#include "support/synth_model.h"

enum { N_SEQ = 6, N_CTX = 600, MAX_BYTES = 1 << 20 };

static void open_on(runner *r, const char *devices, const char *split, const tsr_model_config *types)
{
    tsr_model_config config = session_config(N_CTX, N_SEQ, 64, 1);
    if (types) {
        config.session.type_k = types->session.type_k;
        config.session.type_v = types->session.type_v;
        config.prompt = types->prompt;
        config.prompt.n_tensor_split = split ? (int)strlen(split) / 2 + 1 : 1; /* entries of one digit */
    }
    runner_open(r, session_model_path, devices, split, &config);
}

static size_t read_file(const char *path, unsigned char *bytes)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(bytes, 1, MAX_BYTES, file);
    assert_true(n < MAX_BYTES);
    fclose(file);
    return n;
}

static int n_files(void)
{
    int n = 0;
    DIR *entries = opendir(directory_path());
    assert_non_null(entries);
    for (struct dirent *e; (e = readdir(entries)) != NULL;)
        n += e->d_name[0] != '.';
    closedir(entries);
    return n;
}

static void append(runner *r, int seq, const int32_t *tokens, int64_t n, float *logits)
{
    runner_ok(session_append(r->session, seq, tokens, n, logits), "append");
}

static tsr_status save(runner *r, int seq, const char *name)
{
    return tsr_session_save(r->session, &seq, 1, directory_file(name));
}

static tsr_status load(runner *r, int seq, const char *name)
{
    return tsr_session_load(r->session, &seq, 1, directory_file(name));
}

/* Two files of the same tokens are the same bytes, and either goes on under any other split. */
static void no_split_shows_in_a_file(void **state)
{
    (void)state;
    static const struct {
        const char *devices, *split;
        float prompts[3]; /* zeros: the same split */
    } ways[] = {{"host:1,threads=1", NULL, {0}},
                {"host:2,threads=1", "3,1", {0}},
                {"host:3,threads=1", "1,1,1", {0}},
                {"host:3,threads=1", "1,2,1", {0, 1, 3}}};
    enum { N = 45, MORE = 30, N_WAYS = 4 };
    static const tsr_type types[][2] = {{TSR_TYPE_F16, TSR_TYPE_F16}, {TSR_TYPE_Q8_0, TSR_TYPE_Q4_0}};
    static unsigned char first[MAX_BYTES], other[MAX_BYTES];
    for (int t = 0; t < 2; t++) {
        tsr_model_config config = {.session.type_k = types[t][0], .session.type_v = types[t][1]};
        config.prompt.n_tokens = 16;
        uint64_t seed = 3;
        int32_t tokens[N + MORE];
        float logits[SESSION_VOCAB];
        size_t bytes = 0;
        session_random_tokens(&seed, tokens, N + MORE);
        float *plain = session_plain_logits(&config, tokens, N + MORE);
        for (int from = 0; from < N_WAYS; from++) {
            runner r;
            const int to = (from + 1) % N_WAYS;
            config.prompt.tensor_split = ways[from].prompts;
            open_on(&r, ways[from].devices, ways[from].split, &config);
            append(&r, 1, tokens, N, logits);
            runner_ok(save(&r, 1, "one"), "save");
            runner_close(&r);
            size_t n = read_file(directory_file("one"), from ? other : first);
            bytes = from ? bytes : n;
            assert_int_equal(n, bytes);
            if (from)
                assert_memory_equal(first, other, bytes);
            config.prompt.tensor_split = ways[to].prompts;
            open_on(&r, ways[to].devices, ways[to].split, &config);
            runner_ok(load(&r, 4, "one"), "load");
            assert_int_equal(tsr_session_length(r.session, 4), N);
            append(&r, 4, tokens + N, 1, logits);
            session_assert_row(logits, plain, N);
            append(&r, 4, tokens + N + 1, MORE - 1, logits);
            session_assert_row(logits, plain, N + MORE - 1);
            runner_close(&r);
        }
        free(plain);
    }
}

/* A parent of 70 tokens, a fork that went on, a fork that was cut, an equal fork, and a stranger. */
static void make_family(runner *r, int32_t tokens[N_SEQ][100])
{
    float logits[SESSION_VOCAB];
    append(r, 0, tokens[0], 70, logits);
    for (int s = 1; s < 4; s++)
        runner_ok(tsr_session_fork(r->session, 0, s), "fork");
    append(r, 1, tokens[1] + 70, 10, logits);
    runner_ok(tsr_session_trim(r->session, 2, 40), "trim");
    append(r, 5, tokens[5], 33, logits);
}

static void what_sequences_share_they_share_again(void **state)
{
    (void)state;
    static const int64_t lengths[N_SEQ] = {70, 80, 40, 70, 0, 33};
    int32_t tokens[N_SEQ][100];
    float logits[SESSION_VOCAB];
    tsr_session_stats before, after;
    uint64_t seed = 4;
    runner r;
    for (int s = 0; s < N_SEQ; s++) {
        session_random_tokens(&seed, tokens[s], 100);
        if (s == 1 || s == 2 || s == 3)
            memcpy(tokens[s], tokens[0], 70 * sizeof **tokens);
    }
    open_on(&r, "host:2,threads=1", "1,3", NULL);
    make_family(&r, tokens);
    runner_ok(tsr_session_save(r.session, NULL, 0, directory_file("all")), "save");
    tsr_session_get_stats(r.session, &before);
    runner_close(&r);

    open_on(&r, "host:3,threads=1", "1,1,1", NULL);
    runner_ok(tsr_session_load(r.session, NULL, 0, directory_file("all")), "load");
    tsr_session_get_stats(r.session, &after);
    assert_int_equal(after.kv_pages_used, before.kv_pages_used);
    for (int s = 0; s < N_SEQ; s++) {
        assert_int_equal(tsr_session_length(r.session, s), lengths[s]);
        float *plain = session_plain_logits(NULL, tokens[s], 100);
        append(&r, s, tokens[s] + lengths[s], 100 - lengths[s], logits);
        session_assert_row(logits, plain, 99);
        free(plain);
    }
    runner_close(&r);

    open_on(&r, "host:1,threads=1", NULL, NULL); /* under other numbers */
    static const int places[] = {5, 4, 3, 2, 0};
    runner_ok(tsr_session_load(r.session, places, 5, directory_file("all")), "load elsewhere");
    for (int i = 0; i < 5; i++)
        assert_int_equal(tsr_session_length(r.session, places[i]), lengths[i == 4 ? 5 : i]);
    runner_close(&r);
}

static void write_damaged(const unsigned char *bytes, size_t n)
{
    directory_write("damaged", bytes, n);
}

static void assert_refused(runner *r, const char *name, tsr_status expected, const char *words)
{
    tsr_session_stats stats;
    assert_int_equal(tsr_session_load(r->session, NULL, 0, directory_file(name)), expected);
    if (!strstr(tsr_last_error(), words))
        fail_msg("'%s' is not in '%s'", words, tsr_last_error());
    tsr_session_get_stats(r->session, &stats);
    assert_int_equal(stats.kv_pages_used, 0);
}

/* Every byte counts: one changed, or the file cut there, is noticed, and nothing is loaded. */
static void damage_is_noticed(void **state)
{
    (void)state;
    static unsigned char bytes[MAX_BYTES];
    float logits[SESSION_VOCAB];
    int32_t tokens[40];
    uint64_t seed = 5;
    runner r;
    open_on(&r, "host:2,threads=1", NULL, NULL);
    session_random_tokens(&seed, tokens, 40);
    append(&r, 0, tokens, 40, logits);
    runner_ok(tsr_session_fork(r.session, 0, 2), "fork");
    runner_ok(tsr_session_save(r.session, NULL, 0, directory_file("good")), "save");
    runner_ok(tsr_session_trim(r.session, 0, 0), "empty");
    runner_ok(tsr_session_trim(r.session, 2, 0), "empty");
    size_t n = read_file(directory_file("good"), bytes);
    for (size_t i = 0; i < n; i += i < 256 ? 1 : 997) {
        unsigned char kept = bytes[i];
        tsr_session_stats stats;
        bytes[i] ^= (unsigned char)(1 + random_below(&seed, 255));
        write_damaged(bytes, n);
        tsr_status status = tsr_session_load(r.session, NULL, 0, directory_file("damaged"));
        if (status != TSR_ERR_FORMAT && status != TSR_ERR_INVALID && status != TSR_ERR_UNSUPPORTED &&
            status != TSR_ERR_FULL)
            fail_msg("byte %zu changed: %s", i, tsr_status_name(status));
        tsr_session_get_stats(r.session, &stats);
        assert_int_equal(stats.kv_pages_used, 0);
        bytes[i] = kept;
        write_damaged(bytes, i);
        assert_refused(&r, "damaged", TSR_ERR_FORMAT, "ends too early");
    }
    bytes[n] = 0;
    write_damaged(bytes, n + 1);
    assert_refused(&r, "damaged", TSR_ERR_FORMAT, "goes on behind");
    write_damaged((const unsigned char *)"GGUF and so on and so forth, for more than a header's length.....",
                  64);
    assert_refused(&r, "damaged", TSR_ERR_FORMAT, "no saved sequences");
    runner_ok(tsr_session_load(r.session, NULL, 0, directory_file("good")), "the whole one");
    runner_close(&r);
}

/* The disk is full in the middle of it: what was there is there, and nothing else. */
static void a_failed_save_leaves_the_old_file(void **state)
{
    (void)state;
    static unsigned char before[MAX_BYTES], after[MAX_BYTES];
    float logits[SESSION_VOCAB];
    int32_t tokens[80];
    uint64_t seed = 6;
    struct rlimit limit, small;
    runner r;
    open_on(&r, "host:2,threads=1", NULL, NULL);
    session_random_tokens(&seed, tokens, 80);
    append(&r, 0, tokens, 40, logits);
    runner_ok(save(&r, 0, "kept"), "save");
    size_t n = read_file(directory_file("kept"), before);
    int files = n_files();
    append(&r, 0, tokens + 40, 40, logits);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    for (rlim_t most = 0; most < n + 4096; most += n / 3) {
        small = (struct rlimit){most, limit.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        tsr_status status = save(&r, 0, "kept");
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        assert_int_equal(status, TSR_ERR_IO);
        assert_non_null(strstr(tsr_last_error(), "unchanged"));
        assert_int_equal(read_file(directory_file("kept"), after), n);
        assert_memory_equal(before, after, n);
        assert_int_equal(n_files(), files);
    }
    runner_ok(save(&r, 0, "kept"), "save");
    assert_true(read_file(directory_file("kept"), after) > n);
    assert_int_equal(save(&r, 0, "no/such/place"), TSR_ERR_IO);
    assert_non_null(strstr(tsr_last_error(), "No such file"));
    runner_close(&r);
}

static void assert_says(tsr_status status, tsr_status expected, const char *words)
{
    if (status != expected || !strstr(tsr_last_error(), words))
        fail_msg("%s and '%s', not '%s'", tsr_status_name(status), tsr_last_error(), words);
}

static void wrong_uses_are_told_apart(void **state)
{
    (void)state;
    static const int twice[] = {1, 1}, all[] = {0, 1, 2, 3, 4, 5, 0}, none = 6;
    float logits[SESSION_VOCAB];
    int32_t tokens[40];
    uint64_t seed = 7;
    tsr_model_config types = {.session.type_k = TSR_TYPE_F32, .session.type_v = TSR_TYPE_F32};
    runner r;
    open_on(&r, "host:2,threads=1", NULL, NULL);
    session_random_tokens(&seed, tokens, 40);
    append(&r, 0, tokens, 40, logits);
    runner_ok(tsr_session_fork(r.session, 0, 1), "fork");
    runner_ok(save(&r, 0, "one"), "save");
    runner_ok(tsr_session_save(r.session, NULL, 0, directory_file("two")), "save");
    const char *two = directory_file("two");
    assert_says(tsr_session_save(r.session, &none, 1, two), TSR_ERR_INVALID, "sequence 6 does not exist");
    assert_says(tsr_session_save(r.session, all, 0, two), TSR_ERR_INVALID, "at least one");
    assert_says(tsr_session_save(r.session, NULL, 0, NULL), TSR_ERR_INVALID, "must not be NULL");
    assert_says(tsr_session_load(NULL, NULL, 0, two), TSR_ERR_INVALID, "must not be NULL");
    assert_says(tsr_session_load(r.session, twice, 2, two), TSR_ERR_INVALID, "is not empty");
    runner_ok(tsr_session_trim(r.session, 1, 0), "empty");
    assert_says(tsr_session_load(r.session, twice, 2, two), TSR_ERR_INVALID, "named twice");
    assert_says(tsr_session_load(r.session, all, 3, two), TSR_ERR_INVALID, "holds 2 sequences");
    assert_says(tsr_session_load(r.session, &none, 1, directory_file("one")), TSR_ERR_INVALID, "0 to 5");
    assert_says(load(&r, 1, "nothing"), TSR_ERR_NOT_FOUND, "No such file");
    runner_close(&r);
    open_on(&r, "host:2,threads=1", NULL, &types);
    assert_says(load(&r, 1, "one"), TSR_ERR_INVALID, "F16 keys and F16 values, the KV region F32 and F32");
    runner_close(&r);
    tsr_model_config config = session_config(32, 1, 16, 1);
    runner_open(&r, session_model_path, "host:1,threads=1", NULL, &config);
    assert_says(load(&r, 0, "one"), TSR_ERR_FULL, "exceed the context of 32");
    assert_int_equal(tsr_session_length(r.session, 0), 0);
    assert_says(tsr_session_load(r.session, NULL, 0, directory_file("two")), TSR_ERR_FULL, "n_seq_max");
    runner_close(&r);
}

/* The same shape with other weights. */
static void another_model_is_refused(void **state)
{
    (void)state;
    struct synth_model_config shape = SYNTH_MODEL_CONFIG_INIT;
    char path[2][256];
    float logits[512];
    const int32_t tokens[3] = {1, 2, 3};
    tsr_model_config config = session_config(64, 1, 16, 1);
    runner r;
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/model%d.gguf", directory_path(), i);
        shape.seed = (uint64_t)i + 1;
        synth_model_write(&shape, path[i]);
    }
    runner_open(&r, path[0], "host:1,threads=1", NULL, &config);
    append(&r, 0, tokens, 3, logits);
    runner_ok(save(&r, 0, "one"), "save");
    runner_close(&r);
    runner_open(&r, path[1], "host:1,threads=1", NULL, &config);
    assert_says(load(&r, 0, "one"), TSR_ERR_INVALID, "another model");
    runner_close(&r);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    float logits[SESSION_VOCAB];
    int32_t tokens[40];
    uint64_t seed = 8;
    bool fired = true;
    runner r;
    open_on(&r, "host:2,threads=1", NULL, NULL);
    session_random_tokens(&seed, tokens, 40);
    append(&r, 0, tokens, 40, logits);
    int64_t blocks = failing_alloc_live();
    for (int64_t n = 1; fired; n++) {
        failing_alloc_set(n);
        tsr_status status = save(&r, 0, "one");
        fired = failing_alloc_fired();
        failing_alloc_set(0);
        assert_int_equal(status, fired ? TSR_ERR_MEMORY : TSR_OK);
        assert_int_equal(failing_alloc_live(), blocks);
    }
    fired = true;
    for (int64_t n = 1; fired; n++) {
        failing_alloc_set(n);
        tsr_status status = load(&r, 1, "one");
        fired = failing_alloc_fired();
        failing_alloc_set(0);
        assert_int_equal(status, fired ? TSR_ERR_MEMORY : TSR_OK);
        assert_int_equal(tsr_session_length(r.session, 1), fired ? 0 : 40);
        assert_int_equal(failing_alloc_live(), blocks);
    }
    runner_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_split_shows_in_a_file),  cmocka_unit_test(what_sequences_share_they_share_again),
        cmocka_unit_test(damage_is_noticed),         cmocka_unit_test(a_failed_save_leaves_the_old_file),
        cmocka_unit_test(wrong_uses_are_told_apart), cmocka_unit_test(another_model_is_refused),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests_name("saved sequences", tests, session_model_write, NULL);
}

/* Architectures against logits that another implementation recorded in double precision
 * (../shared/ref/hf/README.md): a folder for each tiny model, with prompts and the tokens that follow them.
 * Of every model the test compares
 *
 *   - the recorded logits, and the next tokens where their margin is larger than the error;
 *   - with memcmp, the logits of random splits, modes and chunks; those after a change of split, of a copied
 *     sequence, after saving and loading under another split, and after going back; and bytes against the
 *     plan's.
 *
 * `test_models_recorded qwen35` runs one folder. The program prints a line for each. With
 * TSR_TEST_ROUNDS=1875 each is run in 100 ways instead of 16. */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include <tsr/runtime.h>
#include <tsr/split.h>

#include "support/directory.h"
#include "support/failing_alloc.h"
#include "support/planned.h"
#include "support/program_json.h"
#include "support/random.h"
#include "support/reference.h"
#include "support/resplit_walk.h"
#include "support/runner.h"
#include "support/sanitized.h"
#include "support/ways.h"

#define FOLDERS "../shared/ref/hf"

enum {
    MAX_FOLDERS = 100,
    MAX_PROMPTS = 3,
    N_SHORT = 512, /* a longer prompt is run in few ways */
    MAX_CHUNK = 2048
};

/* F32 weights, keys and values leave the rounding of sums. The recorded logits' own folder allows 1e-5, and
 * 2e-5 for thousands of tokens. */
static const double error_bound = 2e-5;

/* The quantized experts of one folder: their activations are rounded to 16 bits. */
static const double quantized_error_bound = 1e-4;
static const char quantized_folder[] = "deepseek4";

/* A prompt, and behind it the recorded next tokens except the last. */
typedef struct text {
    int32_t *tokens; /* [n] */
    int64_t n, n_prompt;
    json_t *positions;             /* of the recorded rows */
    json_t *next_tokens, *margins; /* behind the prompt */
    float *recorded;               /* [positions][n_vocab] */
    float *plain;                  /* [n][n_vocab] of one device, all tokens at once */
} text;

typedef struct folder {
    const char *name;
    char model[DIRECTORY_PATH];
    char architecture[64];
    json_t *root;
    text texts[MAX_PROMPTS];
    int n_texts;
    int64_t n_vocab, n_longest;
    tsr_topology *machine;
    uint64_t seed;
} folder;

static const char *path_in(const folder *f, const char *file)
{
    static char path[DIRECTORY_PATH];
    snprintf(path, sizeof path, FOLDERS "/%s/%s", f->name, file);
    return path;
}

/* -- reading a folder -- */

static void *checked_malloc(size_t bytes)
{
    void *block = malloc(bytes);
    assert_non_null(block);
    return block;
}

static int64_t integer_at(const json_t *array, int64_t i)
{
    return json_integer_value(json_array_get(array, (size_t)i));
}

static void read_text(folder *f, int k)
{
    text *t = &f->texts[k];
    const json_t *prompt = json_array_get(json_object_get(f->root, "prompts"), (size_t)k);
    const json_t *greedy = json_array_get(json_object_get(f->root, "greedy"), (size_t)k);
    t->positions = json_array_get(json_object_get(f->root, "positions"), (size_t)k);
    t->next_tokens = json_object_get(greedy, "ids");
    t->margins = json_object_get(greedy, "margin");
    t->n_prompt = (int64_t)json_array_size(prompt);
    t->n = t->n_prompt + (int64_t)json_array_size(t->next_tokens) - 1;
    assert_true(json_array_size(t->positions) > 0 && t->n >= t->n_prompt);
    t->tokens = checked_malloc((size_t)t->n * sizeof *t->tokens);
    for (int64_t i = 0; i < t->n; i++)
        t->tokens[i] =
            (int32_t)(i < t->n_prompt ? integer_at(prompt, i) : integer_at(t->next_tokens, i - t->n_prompt));
    f->n_longest = t->n > f->n_longest ? t->n : f->n_longest;
}

static void read_logits(folder *f, int k)
{
    char name[32];
    size_t n = json_array_size(f->texts[k].positions) * (size_t)f->n_vocab;
    snprintf(name, sizeof name, "logits.p%d.f32", k);
    FILE *file = fopen(path_in(f, name), "rb");
    if (!file)
        fail_msg("%s is missing", path_in(f, name));
    f->texts[k].recorded = checked_malloc(n * sizeof(float));
    assert_int_equal(fread(f->texts[k].recorded, sizeof(float), n, file), n);
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
}

static void folder_read(folder *f)
{
    snprintf(f->model, sizeof f->model, "%s", path_in(f, "model.gguf"));
    f->root = program_json_file(path_in(f, "prompts.json"));
    f->n_texts = (int)json_array_size(json_object_get(f->root, "prompts"));
    assert_in_range(f->n_texts, 1, MAX_PROMPTS);
    for (int k = 0; k < f->n_texts; k++)
        read_text(f, k);
    f->seed = 1;
    runner_ok(tsr_topology_discover(NULL, &f->machine), "this machine");
}

static void folder_free(folder *f)
{
    for (int k = 0; k < f->n_texts; k++) {
        free(f->texts[k].tokens);
        free(f->texts[k].recorded);
        free(f->texts[k].plain);
    }
    json_decref(f->root);
    tsr_topology_destroy(f->machine);
}

/* -- one device, all tokens at once -- */

static void set_sizes(const folder *f, tsr_model_config *config)
{
    int64_t n_batch = f->n_longest < MAX_CHUNK ? f->n_longest : MAX_CHUNK;
    config->session.type_k = config->session.type_v = TSR_TYPE_F32;
    config->session.n_ctx = f->n_longest;
    config->session.n_batch = config->session.n_outputs_max = (int)n_batch;
}

static void run_plain(folder *f)
{
    tsr_model_config config = tsr_model_config_default();
    tsr_model_info info;
    runner r;
    set_sizes(f, &config);
    runner_open_on(&r, f->machine, f->model, "host:1,threads=1", NULL, NULL, &config);
    f->n_vocab = r.n_vocab;
    tsr_model_get_info(r.model, &info);
    snprintf(f->architecture, sizeof f->architecture, "%s", info.architecture);
    for (int k = 0; k < f->n_texts; k++) {
        text *t = &f->texts[k];
        read_logits(f, k);
        t->plain = checked_malloc((size_t)(t->n * f->n_vocab) * sizeof(float));
        runner_ok(tsr_session_trim(r.session, 0, 0), "trim");
        runner_decode(&r, t->tokens, t->n, 0, true, t->plain);
    }
    runner_close(&r);
}

/* The largest relative error of a recorded row. The next tokens must be equal where their margin exceeds what
 * two logits may be off by. */
static double compare(const folder *f, const text *t)
{
    double worst = 0, largest = 0;
    for (int64_t i = 0; i < (int64_t)json_array_size(t->positions); i++) {
        const float *mine = t->plain + integer_at(t->positions, i) * f->n_vocab;
        const float *exact = t->recorded + i * f->n_vocab;
        worst = fmax(worst, reference_relative_error(mine, exact, f->n_vocab));
        largest = fmax(largest, reference_largest_error(mine, exact, f->n_vocab));
    }
    for (int64_t i = 0; i < (int64_t)json_array_size(t->next_tokens); i++)
        if (json_number_value(json_array_get(t->margins, (size_t)i)) > 4 * largest)
            assert_int_equal(runner_argmax(t->plain + (t->n_prompt - 1 + i) * f->n_vocab, f->n_vocab),
                             integer_at(t->next_tokens, i));
    return worst;
}

/* -- other ways to the same bits -- */

static int few_devices(uint64_t *seed, way *w)
{
    int n_devices = 1 + (int)random_below(seed, 4);
    snprintf(w->devices, sizeof w->devices, "host:%d,threads=1", n_devices);
    return n_devices;
}

static int nine_devices(uint64_t *seed, way *w)
{
    (void)seed;
    snprintf(w->devices, sizeof w->devices, "host:9,threads=1");
    return 9;
}

static const way_family few = {.prepare = few_devices}, nine = {.prepare = nine_devices};

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The text, run this way, has the bits of one plain device. */
static void has_plain_bits(const folder *f, const text *t, const way *w)
{
    size_t bytes = (size_t)(t->n * f->n_vocab) * sizeof(float);
    float *logits = checked_malloc(bytes);
    memset(logits, 0xff, bytes);
    runner r;
    runner_open_on(&r, w->machine, f->model, w->devices, w->collectives, w->split, &w->config);
    runner_decode(&r, t->tokens, t->n, w->chunk, true, logits);
    walk_check_accounting(&(walk){.devices = w->devices, .rt = r.rt, .model = r.model});
    if (memcmp(logits, t->plain, bytes) != 0)
        ways_fail(f->name, w);
    runner_close(&r);
    free(logits);
}

/* Way i of n: with few tokens at a time only where the text is not the longest one. */
static void run_way(folder *f, int i, int n)
{
    static const int64_t chunks[] = {0, 13, 1};
    const text *t = &f->texts[i % 3 == 2 && f->n_texts > 1 ? 1 : f->n_texts - 1];
    way w = ways_draw(i == n - 1 ? &nine : &few, &f->seed);
    set_sizes(f, &w.config);
    w.machine = f->machine;
    w.chunk = f->n_longest > N_SHORT ? 0 : chunks[i % 3];
    w.config.session.n_batch = (int)min_i64(w.config.session.n_batch, i % 2 ? 512 : 40);
    w.config.session.n_outputs_max = i % 4 ? w.config.session.n_batch : 3;
    w.config.split.experts = i % 2 ? TSR_EXPERT_SPLIT_EXPERTS : TSR_EXPERT_SPLIT_COLUMNS;
    has_plain_bits(f, t, &w);
}

/* The last layers are divided, the others are on one device: some layers read KV that others wrote. */
static void run_offloaded(const folder *f)
{
    const text *t = &f->texts[0];
    for (int n = 1; n <= 4; n++) {
        way w = {.machine = f->machine,
                 .devices = "host:2,threads=1",
                 .split = "1,1",
                 .config = tsr_model_config_default()};
        set_sizes(f, &w.config);
        w.config.offload.device = "0";
        w.config.offload.n_gpu_layers = n;
        has_plain_bits(f, t, &w);
    }
}

/* Whole experts are divided, so that a device may have some without a part of the shared ones. */
static void run_whole_experts(const folder *f)
{
    static const char *const splits[] = {"1,1,2", "2,1,3", "3,1,2"};
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        way w = {.machine = f->machine, .devices = "host:3,threads=1", .config = tsr_model_config_default()};
        snprintf(w.split, sizeof w.split, "%s", splits[i]);
        set_sizes(f, &w.config);
        w.config.split.experts = TSR_EXPERT_SPLIT_EXPERTS;
        has_plain_bits(f, &f->texts[0], &w);
    }
}

/* Append tokens begin .. end - 1 of the text to a sequence, and compare the last row. */
static void append(const folder *f, tsr_session *session, int seq, int64_t begin, int64_t end,
                   const char *what)
{
    const text *t = &f->texts[f->n_texts - 1];
    size_t bytes = (size_t)f->n_vocab * sizeof(float);
    float *row = checked_malloc(bytes);
    int32_t *seqs = checked_malloc((size_t)(end - begin) * sizeof *seqs);
    for (int64_t i = 0; i < end - begin; i++)
        seqs[i] = seq;
    tsr_batch batch = {.n_tokens = end - begin, .tokens = t->tokens + begin, .seqs = seqs};
    runner_ok(tsr_session_decode(session, &batch, row), what);
    if (memcmp(row, t->plain + (end - 1) * f->n_vocab, bytes) != 0)
        fail_msg("%s: %s: other bits", f->name, what);
    free(row);
    free(seqs);
}

static void resplit(runner *r, const char *split)
{
    float proportions[TSR_MAX_DEVICES];
    int n;
    runner_ok(tsr_split_parse(split, proportions, TSR_MAX_DEVICES, &n), split);
    runner_ok(tsr_model_resplit(r->model, proportions, n), split);
}

/* Half a text; a copy of it; the same under another split; saved, and loaded by a model with a third. */
static void check_sequences(folder *f)
{
    char saved[DIRECTORY_PATH];
    const int64_t n = f->texts[f->n_texts - 1].n, half = n / 2;
    tsr_model_config config = tsr_model_config_default();
    runner r;
    set_sizes(f, &config);
    config.session.n_ctx = 2 * (n + 32);
    config.session.n_seq_max = 2;
    config.session.n_batch = 24;
    close(directory_new(saved));
    runner_open_on(&r, f->machine, f->model, "host:3,threads=1", NULL, "3,1,2", &config);
    append(f, r.session, 0, 0, half, "half a text");
    runner_ok(tsr_session_save(r.session, NULL, 0, saved), "save");
    runner_ok(tsr_session_fork(r.session, 0, 1), "fork");
    append(f, r.session, 1, half, half + 9, "a copied sequence");
    resplit(&r, "1,0,17");
    walk_check_accounting(&(walk){.devices = "host:3", .rt = r.rt, .model = r.model});
    append(f, r.session, 0, half, n, "after a change of split");
    append(f, r.session, 1, half + 9, half + 10, "a copied sequence after a change of split");
    runner_close(&r);
    runner_open_on(&r, f->machine, f->model, "host:2,threads=1", NULL, "1,1", &config);
    runner_ok(tsr_session_load(r.session, NULL, 0, saved), "load");
    append(f, r.session, 0, half, n, "loaded under another split");
    runner_close(&r);
    unlink(saved);
}

/* A call of two steps that fails anywhere leaves its sequence as it was, and a sequence can be cut to where
 * its last call began. */
static void check_taken_back(folder *f)
{
    enum { BEFORE = 3, STEP = 4, AFTER = BEFORE + STEP + 2 };
    const text *t = &f->texts[f->n_texts - 1];
    const tsr_batch batch = {.n_tokens = AFTER - BEFORE, .tokens = t->tokens + BEFORE};
    float *row = checked_malloc((size_t)f->n_vocab * sizeof *row);
    tsr_model_config config = tsr_model_config_default();
    runner r;
    bool failed = true;
    set_sizes(f, &config);
    config.session.n_batch = config.session.n_outputs_max = STEP;
    runner_open_on(&r, f->machine, f->model, "host:2,threads=1", NULL, "1,1", &config);
    append(f, r.session, 0, 0, BEFORE, "a few tokens");
    for (int64_t n = 1; failed; n += 1 + n / 4) {
        failing_alloc_set(n);
        tsr_status status = tsr_session_decode(r.session, &batch, row);
        failed = failing_alloc_fired();
        failing_alloc_set(0);
        assert_int_equal(status, failed ? TSR_ERR_MEMORY : TSR_OK);
        assert_int_equal(tsr_session_length(r.session, 0), failed ? BEFORE : AFTER);
    }
    assert_memory_equal(row, t->plain + (AFTER - 1) * f->n_vocab, (size_t)f->n_vocab * sizeof *row);
    runner_ok(tsr_session_trim(r.session, 0, BEFORE), "trim");
    append(f, r.session, 0, BEFORE, AFTER, "after going back");
    runner_close(&r);
    free(row);
}

/* -- the folders -- */

static void check_model(folder *f)
{
    double errors[MAX_PROMPTS];
    run_plain(f);
    for (int k = 0; k < f->n_texts; k++) {
        errors[k] = compare(f, &f->texts[k]);
        if (!(errors[k] <= (strcmp(f->name, quantized_folder) == 0 ? quantized_error_bound : error_bound)))
            fail_msg("%s: prompt %d: relative error %.2e", f->name, k, errors[k]);
    }
    const int n_ways = f->n_longest > N_SHORT ? 1 : TSR_TEST_SANITIZED ? 2 : planned_rounds(16);
    for (int i = 0; i < n_ways; i++)
        run_way(f, i, n_ways);
    run_offloaded(f);
    if (f->n_longest <= N_SHORT) {
        run_whole_experts(f);
        check_sequences(f);
        check_taken_back(f);
    }
    printf("%-22s %-16s %d splits of the same bits, errors", f->name, f->architecture, n_ways);
    for (int k = 0; k < f->n_texts; k++)
        printf(" %.1e", errors[k]);
    printf("\n");
}

static void check_folder(void **state)
{
    folder f = {.name = *state};
    if (access(path_in(&f, "model.gguf"), R_OK) != 0) {
        print_message("skipped: %s is missing\n", path_in(&f, "model.gguf"));
        skip();
    }
    folder_read(&f);
    if (TSR_TEST_SANITIZED && f.n_longest > N_SHORT) {
        folder_free(&f);
        print_message("skipped: %d tokens take too long under a sanitizer\n", (int)f.n_longest);
        skip();
    }
    check_model(&f);
    folder_free(&f);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct CMUnitTest *)a)->name, ((const struct CMUnitTest *)b)->name);
}

/* A test for each folder. Returns their number. */
static size_t list_folders(struct CMUnitTest tests[MAX_FOLDERS])
{
    size_t n = 0;
    const struct dirent *entry;
    DIR *directory = opendir(FOLDERS);
    while (directory && (entry = readdir(directory)) && n < MAX_FOLDERS) {
        char path[DIRECTORY_PATH + 256];
        snprintf(path, sizeof path, FOLDERS "/%s/prompts.json", entry->d_name);
        if (entry->d_name[0] == '.' || access(path, R_OK) != 0)
            continue;
        char *name = strdup(entry->d_name);
        tests[n++] = (struct CMUnitTest){.name = name, .test_func = check_folder, .initial_state = name};
    }
    if (directory)
        closedir(directory);
    qsort(tests, n, sizeof *tests, by_name);
    return n;
}

int main(int argc, char **argv)
{
    static struct CMUnitTest tests[MAX_FOLDERS];
    static char missing[] = "(no model)";
    size_t n = 0;
    if (argc > 1)
        tests[n++] =
            (struct CMUnitTest){.name = argv[1], .test_func = check_folder, .initial_state = argv[1]};
    else
        n = list_folders(tests);
    if (n == 0)
        tests[n++] =
            (struct CMUnitTest){.name = missing, .test_func = check_folder, .initial_state = missing};
    int failed = _cmocka_run_group_tests("models give the recorded logits", tests, n, NULL, NULL);
    for (size_t i = 0; argc < 2 && i < n && tests[i].initial_state != missing; i++)
        free(tests[i].initial_state);
    return failed;
}

/* A report written as JSON and read back. docs/bench.schema.json describes the document; numbers are
 * written unrounded, so a report that was read back prints the same. */
#include <string.h>

#include "bench/output.h"
#include "json_file.h"
#include "text.h"

enum { FORMAT_VERSION = 1 };

static const char *const class_keys[TSR_CLASS_COUNT] = {"attention", "ffn", "output"};

/* -- writing -- */

static json_t *environment_json(const bench_report *report)
{
    const bench_environment *e = &report->environment;
    json_t *model = json_pack(
        "{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I}", "path", e->model_path, "name", e->model_name,
        "architecture", e->architecture, "weight_type", e->weight_type, "n_params", (json_int_t)e->n_params,
        "weight_bytes", (json_int_t)e->weight_bytes, "n_layers", (json_int_t)e->n_layers, "layers_measured",
        (json_int_t)e->layers_measured, "layers_extrapolated", (json_int_t)e->layers_extrapolated);
    json_t *settings =
        json_pack("{s:s, s:s, s:s, s:i, s:s, s:I, s:i, s:s}", "type_k", e->type_k, "type_v", e->type_v,
                  "reduction", e->reduction, "activation_bits", e->activation_bits, "mode", e->mode, "n_ctx",
                  (json_int_t)e->n_ctx, "n_batch", e->n_batch, "collectives", e->collectives);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:f, s:o, s:o}", "version", e->version, "build",
                     e->build, "date", e->date, "machine", e->machine, "driver", e->driver, "n_cpus",
                     e->n_cpus, "load_average", e->load_average, "model", model, "settings", settings);
}

static json_t *cell_json(const bench_report *report, const bench_row *row, int t)
{
    const bench_test *test = &report->tests[t];
    const bench_cell *cell = &row->cells[t];
    bench_stat stat = bench_stat_of(test, cell);
    json_t *seconds = json_array(), *shares = json_array();
    for (int i = 0; i < cell->n; i++)
        json_array_append_new(seconds, json_real(cell->seconds[i]));
    for (int d = 0; d < report->n_devices; d++)
        json_array_append_new(shares,
                              json_pack("{s:f, s:f, s:f}", "compute", cell->shares[d].compute, "reduce",
                                        cell->shares[d].reduce, "wait", cell->shares[d].wait));
    return json_pack("{s:s, s:f, s:f, s:f, s:f, s:o, s:o}", "test", test->name, "tokens_per_s", stat.median,
                     "tokens_per_s_low", stat.low, "tokens_per_s_high", stat.high, "predicted_s",
                     cell->predicted_s, "seconds", seconds, "shares", shares);
}

static json_t *row_device_json(const bench_row_device *device)
{
    json_t *granules = json_object(), *bytes = json_object();
    for (int c = 0; c < TSR_CLASS_COUNT; c++)
        json_object_set_new(granules, class_keys[c], json_integer((json_int_t)device->granules[c]));
    for (int o = 0; o < TSR_MEMORY_COUNT; o++)
        json_object_set_new(bytes, tsr_memory_owner_name((tsr_memory_owner)o),
                            json_integer((json_int_t)device->bytes[o]));
    return json_pack("{s:o, s:o, s:I}", "granules", granules, "bytes", bytes, "capacity_bytes",
                     (json_int_t)device->capacity);
}

static json_t *row_json(const bench_report *report, const bench_row *row)
{
    json_t *split = json_array(), *devices = json_array(), *results = json_array();
    for (int d = 0; d < report->n_devices; d++) {
        json_array_append_new(split, json_real((double)row->split[d]));
        json_array_append_new(devices, row_device_json(&row->devices[d]));
    }
    for (int t = 0; t < report->n_tests; t++)
        json_array_append_new(results, cell_json(report, row, t));
    return json_pack("{s:s, s:s, s:o, s:o, s:o}", "kind", bench_row_kind_name(row->kind), "text", row->text,
                     "tensor_split", split, "devices", devices, "results", results);
}

json_t *bench_report_json(const bench_report *report)
{
    json_t *devices = json_array(), *tests = json_array(), *rows = json_array(), *notes = json_array();
    for (int d = 0; d < report->n_devices; d++)
        json_array_append_new(devices, json_pack("{s:s, s:s, s:s}", "name", report->devices[d].name, "kind",
                                                 report->devices[d].kind, "what", report->devices[d].what));
    for (int t = 0; t < report->n_tests; t++)
        json_array_append_new(tests, json_pack("{s:s, s:i, s:i, s:i}", "name", report->tests[t].name,
                                               "n_prompt", report->tests[t].n_prompt, "n_gen",
                                               report->tests[t].n_gen, "depth", report->tests[t].depth));
    for (int r = 0; r < report->n_rows; r++)
        json_array_append_new(rows, row_json(report, report->rows[r]));
    for (int n = 0; n < report->n_notes; n++)
        json_array_append_new(notes, json_string(report->notes[n]));
    const bench_row *best = report->best_row;
    return json_pack("{s:s, s:i, s:o, s:o, s:o, s:o, s:s?, s:b, s:o}", "format", "tsr-bench", "version",
                     FORMAT_VERSION, "environment", environment_json(report), "devices", devices, "tests",
                     tests, "rows", rows, "best", best ? best->text : NULL, "interrupted",
                     report->interrupted, "notes", notes);
}

/* -- reading -- */

/* Longer text is cut. */
static bool read_text(const json_t *object, const char *key, char *out, size_t capacity)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (text)
        tool_text_copy(out, capacity, text, strlen(text));
    return text != NULL;
}

static bool read_whole(const json_t *object, const char *key, int64_t *out)
{
    const json_t *value = json_object_get(object, key);
    *out = json_integer_value(value);
    return json_is_integer(value) && *out >= 0;
}

static bool read_small(const json_t *object, const char *key, int *out)
{
    int64_t value;
    bool good = read_whole(object, key, &value) && value <= INT32_MAX;
    *out = good ? (int)value : 0;
    return good;
}

static bool read_bytes(const json_t *object, const char *key, uint64_t *out)
{
    int64_t value;
    bool good = read_whole(object, key, &value);
    *out = good ? (uint64_t)value : 0;
    return good;
}

/* A non-negative number. */
static bool read_number(const json_t *object, const char *key, double *out)
{
    const json_t *value = json_object_get(object, key);
    *out = json_number_value(value);
    return json_is_number(value) && *out >= 0;
}

static bool read_model(const json_t *from, bench_environment *e)
{
    return read_text(from, "path", e->model_path, sizeof e->model_path) &&
           read_text(from, "name", e->model_name, sizeof e->model_name) &&
           read_text(from, "architecture", e->architecture, sizeof e->architecture) &&
           read_text(from, "weight_type", e->weight_type, sizeof e->weight_type) &&
           read_whole(from, "n_params", &e->n_params) && read_bytes(from, "weight_bytes", &e->weight_bytes) &&
           read_whole(from, "n_layers", &e->n_layers) &&
           read_whole(from, "layers_measured", &e->layers_measured) &&
           read_whole(from, "layers_extrapolated", &e->layers_extrapolated);
}

static bool read_settings(const json_t *from, bench_environment *e)
{
    e->activation_bits = 16; /* in reports of versions without the choice */
    return read_text(from, "type_k", e->type_k, sizeof e->type_k) &&
           read_text(from, "type_v", e->type_v, sizeof e->type_v) &&
           read_text(from, "reduction", e->reduction, sizeof e->reduction) &&
           (!json_object_get(from, "activation_bits") ||
            read_small(from, "activation_bits", &e->activation_bits)) &&
           read_text(from, "mode", e->mode, sizeof e->mode) && read_whole(from, "n_ctx", &e->n_ctx) &&
           read_small(from, "n_batch", &e->n_batch) &&
           read_text(from, "collectives", e->collectives, sizeof e->collectives);
}

static bool read_environment(const json_t *from, bench_environment *e)
{
    e->load_average = json_number_value(json_object_get(from, "load_average")); /* negative: unknown */
    read_text(from, "build", e->build, sizeof e->build); /* reports of earlier versions have none */
    return read_text(from, "version", e->version, sizeof e->version) &&
           read_text(from, "date", e->date, sizeof e->date) &&
           read_text(from, "machine", e->machine, sizeof e->machine) &&
           read_text(from, "driver", e->driver, sizeof e->driver) && read_small(from, "n_cpus", &e->n_cpus) &&
           read_model(json_object_get(from, "model"), e) &&
           read_settings(json_object_get(from, "settings"), e);
}

static bool read_row_device(const json_t *from, bench_row_device *device)
{
    const json_t *granules = json_object_get(from, "granules"), *bytes = json_object_get(from, "bytes");
    bool good = read_bytes(from, "capacity_bytes", &device->capacity);
    for (int c = 0; c < TSR_CLASS_COUNT && good; c++)
        good = read_whole(granules, class_keys[c], &device->granules[c]);
    for (int o = 0; o < TSR_MEMORY_COUNT && good; o++)
        good = read_bytes(bytes, tsr_memory_owner_name((tsr_memory_owner)o), &device->bytes[o]);
    return good;
}

static bool read_shares(const json_t *from, bench_shares *shares)
{
    return read_number(from, "compute", &shares->compute) && read_number(from, "reduce", &shares->reduce) &&
           read_number(from, "wait", &shares->wait);
}

static bool read_cell(const json_t *from, int n_devices, bench_cell *cell)
{
    const json_t *seconds = json_object_get(from, "seconds"), *shares = json_object_get(from, "shares");
    size_t n = json_array_size(seconds);
    bool good = json_is_array(seconds) && n <= BENCH_MAX_REPETITIONS &&
                json_array_size(shares) == (size_t)n_devices &&
                read_number(from, "predicted_s", &cell->predicted_s);
    for (size_t i = 0; i < n && good; i++) {
        double value = json_number_value(json_array_get(seconds, i));
        good = value > 0 && bench_cell_add(cell, value);
    }
    for (int d = 0; d < n_devices && good; d++)
        good = read_shares(json_array_get(shares, (size_t)d), &cell->shares[d]);
    return good;
}

static bool read_kind(const json_t *from, bench_row_kind *kind)
{
    char text[16];
    bool good = read_text(from, "kind", text, sizeof text);
    for (int k = 0; k <= BENCH_ROW_SEARCHED && good; k++) {
        *kind = (bench_row_kind)k;
        if (strcmp(text, bench_row_kind_name(*kind)) == 0)
            return true;
    }
    return false;
}

static bool read_row(const json_t *from, bench_report *report)
{
    const json_t *results = json_object_get(from, "results"), *split = json_object_get(from, "tensor_split");
    const json_t *devices = json_object_get(from, "devices");
    bench_row *row = bench_report_add_row(report);
    bool good = row && read_text(from, "text", row->text, sizeof row->text) && read_kind(from, &row->kind) &&
                json_array_size(results) == (size_t)report->n_tests &&
                json_array_size(devices) == (size_t)report->n_devices &&
                json_array_size(split) == (size_t)report->n_devices;
    for (int d = 0; d < report->n_devices && good; d++) {
        row->split[d] = (float)json_number_value(json_array_get(split, (size_t)d));
        good = row->split[d] >= 0 && read_row_device(json_array_get(devices, (size_t)d), &row->devices[d]);
    }
    for (int t = 0; t < report->n_tests && good; t++)
        good = read_cell(json_array_get(results, (size_t)t), report->n_devices, &row->cells[t]);
    return good;
}

static bool read_device(const json_t *from, bench_device *device)
{
    return read_text(from, "name", device->name, sizeof device->name) &&
           read_text(from, "kind", device->kind, sizeof device->kind) &&
           read_text(from, "what", device->what, sizeof device->what);
}

static bool read_test(const json_t *from, bench_test *test)
{
    bool good = read_small(from, "n_prompt", &test->n_prompt) && read_small(from, "n_gen", &test->n_gen) &&
                read_small(from, "depth", &test->depth) && (test->n_prompt > 0) != (test->n_gen > 0);
    bench_test_name(test);
    return good;
}

static bool read_head(const json_t *root, bench_report *report)
{
    int version = 0;
    char format[16] = "";
    return read_text(root, "format", format, sizeof format) && strcmp(format, "tsr-bench") == 0 &&
           read_small(root, "version", &version) && version == FORMAT_VERSION &&
           read_environment(json_object_get(root, "environment"), &report->environment);
}

static bool read_report(const json_t *root, bench_report *report)
{
    const json_t *devices = json_object_get(root, "devices"), *tests = json_object_get(root, "tests");
    const json_t *rows = json_object_get(root, "rows"), *notes = json_object_get(root, "notes");
    bool good = read_head(root, report) && json_array_size(devices) - 1 < TSR_MAX_DEVICES &&
                json_array_size(tests) - 1 < BENCH_MAX_TESTS && json_array_size(rows) > 0;
    report->interrupted = json_is_true(json_object_get(root, "interrupted"));
    for (size_t d = 0; good && d < json_array_size(devices); d++)
        good = read_device(json_array_get(devices, d), &report->devices[report->n_devices++]);
    for (size_t t = 0; good && t < json_array_size(tests); t++)
        good = read_test(json_array_get(tests, t), &report->tests[report->n_tests++]);
    for (size_t r = 0; good && r < json_array_size(rows); r++)
        good = read_row(json_array_get(rows, r), report);
    for (size_t n = 0; good && n < json_array_size(notes); n++) {
        const char *note = json_string_value(json_array_get(notes, n));
        bench_report_note(report, "%s", note ? note : "");
    }
    if (good)
        bench_report_judge(report);
    return good;
}

bool bench_report_load(const char *path, bench_report *report_out)
{
    *report_out = (bench_report){0};
    json_t *root = tool_json_load(path);
    bool good = root && read_report(root, report_out);
    if (!root)
        fprintf(stderr, "tsr bench: %s\n", tsr_last_error());
    else if (!good)
        fprintf(stderr, "tsr bench: %s is not a report of `tsr bench -o json` (version %d)\n", path,
                FORMAT_VERSION);
    json_decref(root);
    return good;
}

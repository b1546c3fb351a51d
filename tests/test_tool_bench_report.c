/* What tsr bench reports: one set of numbers in all forms, JSON as its schema says, pictures that are XML,
 * and a comparison that does not take noise for a difference. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <expat.h>

#include "support/directory.h"
#include "support/json_schema.h"
#include "support/program_json.h"

#define MODEL "examples/models/glossary-7m-Q8_0.gguf"

static char text[1 << 18];

static int set_up(void **state)
{
    char arguments[512];
    (void)state;
    if (setenv("XDG_CACHE_HOME", directory_path(), 1) != 0)
        return 1;
    snprintf(arguments, sizeof arguments,
             "bench -m " MODEL " --devices host:2,threads=1 --ratios '1,5;6,1' -p 8,16 -n 2 -d 0,40 -r 4 "
             "--save %s/a.json --plot %s/a.svg --html %s/a.html",
             directory_path(), directory_path(), directory_path());
    program_check(arguments, 0, "host1", text, sizeof text);
    return 0;
}

static void show(const char *options)
{
    char arguments[1024];
    snprintf(arguments, sizeof arguments, "bench --show %s/a.json %s", directory_path(), options);
    program_check(arguments, 0, "", text, sizeof text);
}

static void json_is_as_the_schema_says(void **state)
{
    (void)state;
    json_t *report = program_json_file(directory_file("a.json")),
           *schema = program_json_file("docs/bench.schema.json");
    char why[256] = "";
    if (!json_schema_holds(schema, report, why, sizeof why))
        fail_msg("%s", why);
    assert_int_equal(json_array_size(json_object_get(report, "rows")), 3);  /* the planner's, too */
    assert_int_equal(json_array_size(json_object_get(report, "tests")), 6); /* per depth 2 prompts, 1 tg */
    json_object_del(json_array_get(json_object_get(report, "rows"), 1), "tensor_split");
    assert_false(json_schema_holds(schema, report, why, sizeof why));
    assert_non_null(strstr(why, "tensor_split"));
    json_decref(schema);
    json_decref(report);
}

static void a_saved_report_is_shown_as_it_was(void **state)
{
    (void)state;
    json_t *saved = program_json_file(directory_file("a.json"));
    show("-o json");
    json_t *shown = json_loads(text, 0, NULL);
    assert_true(json_equal(saved, shown));
    json_decref(shown);
    json_decref(saved);
}

/* A report from before activations had a choice of bits is one of 16. */
static void an_older_report_is_of_16_bits(void **state)
{
    (void)state;
    char arguments[256];
    json_t *report = program_json_file(directory_file("a.json"));
    json_t *settings = json_object_get(json_object_get(report, "environment"), "settings");
    assert_int_equal(json_object_del(settings, "activation_bits"), 0);
    assert_int_equal(json_dump_file(report, directory_file("b.json"), 0), 0);
    json_decref(report);
    snprintf(arguments, sizeof arguments, "bench --show %s -o json", directory_file("b.json"));
    json_t *shown = program_json(arguments);
    settings = json_object_get(json_object_get(shown, "environment"), "settings");
    assert_int_equal(json_integer_value(json_object_get(settings, "activation_bits")), 16);
    json_decref(shown);
}

/* Every median, as the tables round it, is found in every form. */
static void all_forms_show_the_same_numbers(void **state)
{
    static const char *const forms[] = {"-o table", "-o md", "-o csv", "--html /dev/stderr -o csv"};
    (void)state;
    json_t *report = program_json_file(directory_file("a.json"));
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        show(forms[f]);
        size_t r, t;
        json_t *row, *result;
        json_array_foreach(json_object_get(report, "rows"), r, row)
        {
            json_array_foreach(json_object_get(row, "results"), t, result)
            {
                double rate = json_number_value(json_object_get(result, "tokens_per_s"));
                char number[32];
                snprintf(number, sizeof number, f == 2 ? "%.9g" : rate < 100 ? "%.2f" : "%.1f", rate);
                if (!strstr(text, number))
                    fail_msg("%s: no %s in:\n%s", forms[f], number, text);
            }
        }
    }
    json_decref(report);
}

/* By hand, of 8 tokens in 1, 2, 4 and 8 s: four repetitions are all within the spread. Of eight repetitions
 * the fastest and the slowest are not. */
static void medians_and_spreads_are_what_they_are_called(void **state)
{
    (void)state;
    json_t *report = program_json_file(directory_file("a.json"));
    json_t *result =
        json_array_get(json_object_get(json_array_get(json_object_get(report, "rows"), 1), "results"), 0);
    json_object_set_new(result, "seconds", json_pack("[f, f, f, f]", 4.0, 2.0, 1.0, 8.0));
    result =
        json_array_get(json_object_get(json_array_get(json_object_get(report, "rows"), 0), "results"), 0);
    json_object_set_new(result, "seconds",
                        json_pack("[f, f, f, f, f, f, f, f]", 4.0, 2.0, 1.0, 8.0, 1.6, 1.6, 1.6, 1.6));
    assert_int_equal(json_dump_file(report, directory_file("b.json"), 0), 0);
    json_decref(report);
    char arguments[256];
    snprintf(arguments, sizeof arguments, "bench --show %s -o json", directory_file("b.json"));
    json_t *shown = program_json(arguments);
    result = json_array_get(json_object_get(json_array_get(json_object_get(shown, "rows"), 1), "results"), 0);
    /* pp8: 8, 4, 2, 1 tokens/s */
    assert_float_equal(json_number_value(json_object_get(result, "tokens_per_s")), 3, 1e-9);
    assert_float_equal(json_number_value(json_object_get(result, "tokens_per_s_low")), 1, 1e-9);
    assert_float_equal(json_number_value(json_object_get(result, "tokens_per_s_high")), 8, 1e-9);
    result = json_array_get(json_object_get(json_array_get(json_object_get(shown, "rows"), 0), "results"), 0);
    assert_float_equal(json_number_value(json_object_get(result, "tokens_per_s")), 5, 1e-9);
    assert_float_equal(json_number_value(json_object_get(result, "tokens_per_s_low")), 2, 1e-9);
    assert_float_equal(json_number_value(json_object_get(result, "tokens_per_s_high")), 5, 1e-9);
    json_decref(shown);
}

/* The part of the text that compares: the report above it names this build and may advise a faster split. */
static const char *comparison(void)
{
    const char *found = strstr(text, "compared with");
    if (!found)
        fail_msg("no comparison in:\n%s", text);
    return found;
}

static void must_differ_in(const char *phrase)
{
    if (!strstr(comparison(), phrase))
        fail_msg("no \"%s\" in:\n%s", phrase, comparison());
}

/* Times one and a half of those before are a difference, and the same times are none. */
static void a_comparison_tells_noise_from_a_difference(void **state)
{
    (void)state;
    char options[600];
    json_t *report = program_json_file(directory_file("a.json")), *row, *result, *value;
    size_t r, t, i;
    snprintf(options, sizeof options, "--compare %s", directory_file("a.json"));
    show(options);
    assert_non_null(strstr(comparison(), "within noise"));
    assert_null(strstr(comparison(), "faster"));
    assert_null(strstr(comparison(), "slower"));
    json_array_foreach(json_object_get(report, "rows"), r, row)
    {
        json_array_foreach(json_object_get(row, "results"), t, result)
        {
            json_array_foreach(json_object_get(result, "seconds"), i, value)
                json_real_set(value, 1 + 0.01 * (double)i);
        }
    }
    assert_int_equal(json_dump_file(report, directory_file("b.json"), 0), 0);
    json_array_foreach(json_object_get(report, "rows"), r, row)
    {
        json_array_foreach(json_object_get(row, "results"), t, result)
        {
            json_array_foreach(json_object_get(result, "seconds"), i, value)
                json_real_set(value, 1.5 + 0.01 * (double)i);
        }
    }
    char before[128];
    snprintf(before, sizeof before, "%s", directory_file("b.json"));
    assert_int_equal(json_dump_file(report, directory_file("a2.json"), 0), 0);
    snprintf(options, sizeof options, "bench --show %s --compare %s", directory_file("a2.json"), before);
    program_check(options, 0, "slower", text, sizeof text);
    assert_null(strstr(comparison(), "within noise\n"));
    unlink(directory_file("a2.json"));
    json_decref(report);
}

/* Speeds of two models say nothing about a split, so there is no verdict. */
static void a_comparison_of_two_models_has_no_verdict(void **state)
{
    (void)state;
    char options[600], before[128];
    json_t *report = program_json_file(directory_file("a.json"));
    json_t *model = json_object_get(json_object_get(report, "environment"), "model");
    json_int_t bytes = program_json_integer(model, "weight_bytes");
    json_object_set_new(model, "weight_bytes", json_integer(2 * bytes));
    assert_int_equal(json_dump_file(report, directory_file("b.json"), 0), 0);
    snprintf(before, sizeof before, "%s", directory_file("b.json"));
    snprintf(options, sizeof options, "bench --show %s --compare %s", directory_file("a.json"), before);
    program_check(options, 0, "different models: now tsr-glossary-7m (Q8_0, 6.9 MiB); before", text,
                  sizeof text);
    assert_null(strstr(comparison(), "within noise"));
    json_decref(report);
}

/* Write b.json, a.json with another value at environment -> object -> key, all times doubled, and compare
 * a.json with it. */
static void compare_with(const char *object, const char *key, const char *value)
{
    char arguments[512];
    size_t r, t, i;
    json_t *report = program_json_file(directory_file("a.json")), *row, *result, *seconds;
    json_t *environment = json_object_get(report, "environment");
    json_object_set_new(object ? json_object_get(environment, object) : environment, key, json_string(value));
    json_array_foreach(json_object_get(report, "rows"), r, row)
    {
        json_array_foreach(json_object_get(row, "results"), t, result)
        {
            json_array_foreach(json_object_get(result, "seconds"), i, seconds)
                json_real_set(seconds, 100 + 0.01 * (double)i);
        }
    }
    assert_int_equal(json_dump_file(report, directory_file("b.json"), 0), 0);
    json_decref(report);
    snprintf(arguments, sizeof arguments, "bench --show %s/a.json --compare %s/b.json", directory_path(),
             directory_path());
    program_check(arguments, 0, "compared with", text, sizeof text);
}

static void results_of_two_models_are_not_faster_or_slower(void **state)
{
    (void)state;
    compare_with("model", "name", "another model");
    must_differ_in("different models: now tsr-glossary-7m (Q8_0, 6.9 MiB); before another model");
    assert_null(strstr(comparison(), "faster"));
    compare_with("model", "weight_type", "Q4_K");
    must_differ_in("before tsr-glossary-7m\n  (Q4_K, 6.9 MiB)\n");
    assert_null(strstr(comparison(), "faster"));
    compare_with("model", "path", "the same file in another folder");
    assert_null(strstr(comparison(), "different models"));
    must_differ_in("faster");
}

static void other_builds_machines_and_settings_are_named(void **state)
{
    static const char *const cases[][4] = {
        {NULL, "build", "0123456789ab", "before 0123456789ab\n"},
        {NULL, "machine", "a mainframe", "different machines: now "},
        {NULL, "version", "0.0.1", "different versions: now "},
        {"settings", "type_k", "Q4_0", "KV types of keys: now F16; before Q4_0"},
        {"settings", "reduction", "bf16", "reductions: now exact; before bf16"},
        {"settings", "mode", "layer", "split modes: now tensor; before layer"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        compare_with(cases[i][0], cases[i][1], cases[i][2]);
        must_differ_in(cases[i][3]);
        must_differ_in("faster");
    }
    compare_with(NULL, "date", "2026-01-01T00:00:00Z");
    assert_null(strstr(comparison(), "different"));
    must_differ_in("of 2026-01-01T00:00:00Z, tokens/s:");
}

static void check_xml(const char *path)
{
    char part[4096];
    size_t n;
    FILE *file = fopen(path, "r");
    XML_Parser parser = XML_ParserCreate("UTF-8");
    assert_non_null(file);
    assert_non_null(parser);
    do {
        n = fread(part, 1, sizeof part, file);
        if (XML_Parse(parser, part, (int)n, n < sizeof part) != XML_STATUS_OK)
            fail_msg("%s:%lu: %s", path, XML_GetCurrentLineNumber(parser),
                     XML_ErrorString(XML_GetErrorCode(parser)));
    } while (n == sizeof part);
    XML_ParserFree(parser);
    fclose(file);
}

static void pictures_are_xml_and_names_are_escaped(void **state)
{
    (void)state;
    json_t *report = program_json_file(directory_file("a.json"));
    json_t *model = json_object_get(json_object_get(report, "environment"), "model");
    check_xml(directory_file("a.svg"));
    json_object_set_new(model, "name", json_string("<script>&\"'"));
    json_object_set_new(json_array_get(json_object_get(report, "devices"), 0), "name", json_string("<a&b>"));
    assert_int_equal(json_dump_file(report, directory_file("b.json"), 0), 0);
    json_decref(report);
    char arguments[512];
    snprintf(arguments, sizeof arguments, "bench --show %s/b.json --plot %s/a.svg --html %s/a.html",
             directory_path(), directory_path(), directory_path());
    program_check(arguments, 0, "host1", text, sizeof text);
    check_xml(directory_file("a.svg"));
    FILE *html = fopen(directory_file("a.html"), "r");
    assert_non_null(html);
    text[fread(text, 1, sizeof text - 1, html)] = '\0';
    fclose(html);
    assert_null(strstr(text, "<script"));
    assert_non_null(strstr(text, "&lt;script&gt;&amp;"));
}

/* Cut anywhere, or with a value of another kind: refused in one line, never a crash. */
static void damaged_reports_are_refused(void **state)
{
    (void)state;
    char arguments[256], *document;
    json_t *report = program_json_file(directory_file("a.json"));
    static const char *const keys[] = {"format", "environment", "devices", "tests", "rows"};
    snprintf(arguments, sizeof arguments, "bench --show %s", directory_file("b.json"));
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        json_t *spoilt = json_deep_copy(report);
        json_object_set_new(spoilt, keys[k], json_integer(7));
        assert_int_equal(json_dump_file(spoilt, directory_file("b.json"), 0), 0);
        json_decref(spoilt);
        program_check(arguments, 1, "not a report", text, sizeof text);
    }
    document = json_dumps(report, 0);
    for (size_t length = strlen(document) / 2; length > 0; length /= 3) {
        FILE *file = fopen(directory_file("b.json"), "w");
        assert_non_null(file);
        fwrite(document, 1, length, file);
        fclose(file);
        program_check(arguments, 1, "b.json", text, sizeof text);
    }
    free(document);
    json_decref(report);
}

static char *contents(const char *path, size_t *bytes_out)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    size_t bytes = (size_t)ftell(file);
    char *data = malloc(bytes + 1);
    rewind(file);
    assert_int_equal(fread(data, 1, bytes, file), bytes);
    fclose(file);
    data[bytes] = '\0';
    *bytes_out = bytes;
    return data;
}

static int count_files(void)
{
    int n = 0;
    DIR *listing = opendir(directory_path());
    assert_non_null(listing);
    while (readdir(listing))
        n++;
    closedir(listing);
    return n;
}

/* Files may have 1000 bytes, as if the disk were full: every format fails, and the earlier files stay. */
static void a_failed_write_leaves_the_earlier_file(void **state)
{
    (void)state;
    static const char *const files[][2] = {{"--save", "a.json"}, {"--plot", "a.svg"}, {"--html", "a.html"}};
    int n_files = count_files();
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char arguments[512];
        size_t n_before, n_after;
        char *earlier = contents(directory_file(files[i][1]), &n_before);
        snprintf(arguments, sizeof arguments, "bench --show %s/a.json %s %s/%s", directory_path(),
                 files[i][0], directory_path(), files[i][1]);
        int code = program_run_limited(arguments, 1000, text, sizeof text);
        assert_int_equal(code, 1);
        assert_non_null(strstr(text, "cannot be written: File too large"));
        char *later = contents(directory_file(files[i][1]), &n_after);
        assert_int_equal(n_before, n_after);
        assert_memory_equal(earlier, later, n_before);
        free(later);
        free(earlier);
    }
    assert_int_equal(count_files(), n_files);
    show("--save /dev/stdout >/dev/null");
    program_check("bench --show /nope.json --save /dev/full", 1, "/nope.json", text, sizeof text);
    char arguments[256];
    snprintf(arguments, sizeof arguments, "bench --show %s/a.json --html /dev/full", directory_path());
    program_check(arguments, 1, "/dev/full cannot be written: No space left", text, sizeof text);
}

/* A link keeps its place, and the file that it names its permissions. */
static void links_and_permissions_stay(void **state)
{
    (void)state;
    char target[128], link[128], arguments[512];
    struct stat about;
    snprintf(target, sizeof target, "%s", directory_file("b.json"));
    snprintf(link, sizeof link, "%s", directory_file("link.json"));
    fclose(fopen(target, "w"));
    assert_int_equal(chmod(target, 0640), 0);
    assert_int_equal(symlink("b.json", link), 0);
    snprintf(arguments, sizeof arguments, "bench --show %s/a.json --save %s", directory_path(), link);
    program_check(arguments, 0, "", text, sizeof text);
    assert_int_equal(lstat(link, &about), 0);
    assert_true(S_ISLNK(about.st_mode));
    assert_int_equal(stat(target, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0640);
    assert_true(about.st_size > 1000);
    unlink(link);
}

/* A name in Latin-1, which JSON and XML cannot hold: the other letters stay. */
static void a_name_that_is_not_utf8_is_shown_with_replacements(void **state)
{
    (void)state;
    size_t bytes;
    char *model = contents(MODEL, &bytes), arguments[512], path[128];
    char *name = memmem(model, bytes, "tsr-glossary-7m", 15);
    assert_non_null(name);
    name[4] = '\xE9';
    snprintf(path, sizeof path, "%s", directory_file("latin1.gguf"));
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(model, 1, bytes, file), bytes);
    fclose(file);
    free(model);
    snprintf(arguments, sizeof arguments,
             "bench -m %s --devices host:1 -p 4 -n 0 -r 1 --save %s/b.json --plot %s/b.svg", path,
             directory_path(), directory_path());
    program_check(arguments, 0, "tsr-\xEF\xBF\xBDlossary-7m", text, sizeof text);
    unlink(path);
    json_t *report = program_json_file(directory_file("b.json"));
    json_t *environment = json_object_get(json_object_get(report, "environment"), "model");
    assert_string_equal(json_string_value(json_object_get(environment, "name")),
                        "tsr-\xEF\xBF\xBDlossary-7m");
    json_decref(report);
    check_xml(directory_file("b.svg"));
    unlink(directory_file("b.svg"));
}

/* A benchmark that would take minutes is interrupted once rows have results: they are printed. */
static void an_interrupted_run_prints_what_it_has(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const char *program = program_path();
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        if (!freopen("/dev/null", "w", stdout))
            _exit(3);
        execl(program, "tsr", "bench", "-m", MODEL, "--devices", "host:2,threads=1", "--keep-rates", "-r",
              "1000", "-p", "8", "-n", "8", "--budget", "0", "--save", directory_file("b.json"),
              (char *)NULL);
        _exit(3);
    }
    close(ends[1]);
    size_t n = 0;
    ssize_t got;
    while (n < sizeof text - 1 && (got = read(ends[0], text + n, sizeof text - 1 - n)) > 0) {
        n += (size_t)got;
        text[n] = '\0';
        if (strstr(text, "stored in")) /* the devices were measured: the model comes next */
            break;
    }
    usleep(300000);
    kill(child, SIGINT);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    close(ends[0]);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 130);
    json_t *report = program_json_file(directory_file("b.json"));
    assert_true(json_is_true(json_object_get(report, "interrupted")));
    json_decref(report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_is_as_the_schema_says),
        cmocka_unit_test(a_saved_report_is_shown_as_it_was),
        cmocka_unit_test(an_older_report_is_of_16_bits),
        cmocka_unit_test(all_forms_show_the_same_numbers),
        cmocka_unit_test(medians_and_spreads_are_what_they_are_called),
        cmocka_unit_test(a_comparison_tells_noise_from_a_difference),
        cmocka_unit_test(a_comparison_of_two_models_has_no_verdict),
        cmocka_unit_test(results_of_two_models_are_not_faster_or_slower),
        cmocka_unit_test(other_builds_machines_and_settings_are_named),
        cmocka_unit_test(damaged_reports_are_refused),
        cmocka_unit_test(a_failed_write_leaves_the_earlier_file),
        cmocka_unit_test(links_and_permissions_stay),
        cmocka_unit_test(a_name_that_is_not_utf8_is_shown_with_replacements),
        cmocka_unit_test(an_interrupted_run_prints_what_it_has),
        cmocka_unit_test(pictures_are_xml_and_names_are_escaped),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}

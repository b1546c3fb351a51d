/* The pictures and tables of tsr bench for any number of devices: nothing overlaps, is cut off or missing.
 * The reports are made from a measured one by giving it more devices and splits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <expat.h>

#include "support/directory.h"
#include "support/program_json.h"

#define MODEL "examples/models/glossary-7m-Q8_0.gguf"

static char text[1 << 20];
static json_t *measured;

static int set_up(void **state)
{
    char arguments[512];
    (void)state;
    if (setenv("XDG_CACHE_HOME", directory_path(), 1) != 0)
        return 1;
    snprintf(arguments, sizeof arguments,
             "bench -m " MODEL " --devices host:2,threads=1 --ratios 1,5 -p 8 -n 2 -r 3 --save %s",
             directory_file("a.json"));
    program_check(arguments, 0, "", text, sizeof text);
    measured = json_load_file(directory_file("a.json"), 0, NULL);
    return measured == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    json_decref(measured);
    return 0;
}

/* -- reports of any size -- */

typedef struct shape {
    int n_devices, n_rows;
    bool long_names, unequal;
} shape;

static void name_device(const shape *s, int d, char name[32])
{
    snprintf(name, 32, s->long_names ? "WWWWWWWWWWWWWWWWWWWWWWWWWWWWW%d" : "cuda%d", d);
}

static json_t *make_devices(const shape *s)
{
    json_t *devices = json_array();
    for (int d = 0; d < s->n_devices; d++) {
        char name[32], what[96];
        name_device(s, d, name);
        snprintf(what, sizeof what,
                 s->long_names ? "MMMMMMMM <M> & MMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMM %d" : "RTX %d",
                 s->unequal ? d : 1);
        json_array_append_new(devices,
                              json_pack("{s:s, s:s, s:s}", "name", name, "kind", "CUDA", "what", what));
    }
    return devices;
}

/* Row r has a device with more than the others. Rows get slower one by one, by 3 %; no two repetitions are
 * equal. */
static json_t *make_row(const shape *s, int r)
{
    json_t *row = json_deep_copy(json_array_get(json_object_get(measured, "rows"), r == 0 ? 0 : 1));
    json_t *split = json_array(), *devices = json_array(), *result;
    json_t *device = json_array_get(json_object_get(row, "devices"), 0);
    char all[1024];
    int used = 0;
    size_t t;
    for (int d = 0; d < s->n_devices; d++) {
        int share = d == r % s->n_devices ? 20 + r : 10;
        used += snprintf(all + used, sizeof all - (size_t)used, "%s%d", d ? "," : "", share);
        json_array_append_new(split, json_integer(share));
        json_array_append_new(devices, json_deep_copy(device));
        json_object_set_new(json_array_get(devices, (size_t)d), "capacity_bytes",
                            json_integer(s->unequal ? 30000000 + d : 30000000));
    }
    json_array_foreach(json_object_get(row, "results"), t, result)
    {
        json_t *shares = json_array(), *seconds = json_array();
        for (int d = 0; d < s->n_devices; d++)
            json_array_append_new(shares,
                                  json_pack("{s:f, s:f, s:f}", "compute", 0.5, "reduce", 0.25, "wait", 0.25));
        for (int i = 0; i < 5; i++)
            json_array_append_new(seconds, json_real(1 + 0.03 * r + 0.001 * i));
        json_object_set_new(result, "shares", shares);
        json_object_set_new(result, "seconds", seconds);
    }
    json_object_set_new(row, "tensor_split", split);
    json_object_set_new(row, "devices", devices);
    json_object_set_new(row, "text", json_string(all));
    return row;
}

/* Write the report, its pictures, and what the terminal shows to text[]. */
static void show(const shape *s)
{
    char arguments[512];
    json_t *report = json_deep_copy(measured), *rows = json_array();
    json_t *environment = json_object_get(report, "environment");
    for (int r = 0; r < s->n_rows; r++)
        json_array_append_new(rows, make_row(s, r));
    json_object_set_new(report, "rows", rows);
    json_object_set_new(report, "devices", make_devices(s));
    json_object_set_new(environment, "machine", json_string("2 packages, 128 CPUs, a \"machine\" <x>"));
    json_object_set_new(environment, "date", json_string("2026-01-02T03:04:05Z"));
    assert_int_equal(json_dump_file(report, directory_file("b.json"), 0), 0);
    json_decref(report);
    snprintf(arguments, sizeof arguments, "bench --show %s/b.json --plot %s/b.svg --html %s/b.html",
             directory_path(), directory_path(), directory_path());
    program_check(arguments, 0, "", text, sizeof text);
}

static void read_file(const char *name)
{
    FILE *file = fopen(directory_file(name), "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
}

static int count(const char *phrase)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, phrase)); at += strlen(phrase))
        n++;
    return n;
}

static void must_have(const char *phrase)
{
    if (!strstr(text, phrase))
        fail_msg("no \"%s\"", phrase);
}

/* -- geometry -- */

typedef struct box {
    double x, y, width, height;
} box;

typedef struct picture {
    int depth, n_boxes;
    box open[16], boxes[256]; /* elements around the current one; <svg> elements inside the outermost */
    double text_x, text_size;
    char anchor;
    bool in_text, in_title;
    int n_letters;
} picture;

static double number(const char **attributes, const char *name)
{
    for (; *attributes; attributes += 2)
        if (strcmp(attributes[0], name) == 0)
            return atof(attributes[1]);
    return 0;
}

static const char *word(const char **attributes, const char *name)
{
    for (; *attributes; attributes += 2)
        if (strcmp(attributes[0], name) == 0)
            return attributes[1];
    return "";
}

static void begin(void *user, const char *name, const char **attributes)
{
    picture *p = user;
    if (strcmp(name, "svg") == 0) {
        box b = {number(attributes, "x"), number(attributes, "y"), number(attributes, "width"),
                 number(attributes, "height")};
        if (p->depth == 1)
            p->boxes[p->n_boxes++] = b;
        assert_true(p->depth < 16 && p->n_boxes < 256);
        p->open[p->depth++] = b;
    }
    if (strcmp(name, "text") == 0) {
        p->in_text = true;
        p->n_letters = 0;
        p->text_x = number(attributes, "x");
        p->anchor = word(attributes, "text-anchor")[0];
        p->text_size = strcmp(word(attributes, "class"), "title") == 0 ? 14 : 11;
    }
    if (strcmp(name, "title") == 0)
        p->in_title = true;
}

static void letters(void *user, const char *data, int bytes)
{
    picture *p = user;
    for (int i = 0; i < bytes;
         i++) /* W and M are 0.86 and more of the font's size wide, in the usual fonts */
        p->n_letters += p->in_text && !p->in_title && (data[i] == 'W' || data[i] == 'M');
}

static void end(void *user, const char *name)
{
    picture *p = user;
    if (strcmp(name, "svg") == 0)
        p->depth--;
    if (strcmp(name, "title") == 0)
        p->in_title = false;
    if (strcmp(name, "text") == 0) {
        double width = 0.86 * p->n_letters * p->text_size, border = p->open[p->depth - 1].width;
        p->in_text = false;
        if ((p->anchor == 's' && p->text_x + width > border) || (p->anchor == 'e' && p->text_x - width < 0) ||
            (p->anchor == 'm' && (p->text_x - width / 2 < 0 || p->text_x + width / 2 > border)))
            fail_msg("a text with %d wide letters leaves its box", p->n_letters);
    }
}

static void check_picture(void)
{
    static picture p;
    p = (picture){0};
    XML_Parser parser = XML_ParserCreate("UTF-8");
    XML_SetUserData(parser, &p);
    XML_SetElementHandler(parser, begin, end);
    XML_SetCharacterDataHandler(parser, letters);
    if (XML_Parse(parser, text, (int)strlen(text), 1) != XML_STATUS_OK)
        fail_msg("line %lu: %s", XML_GetCurrentLineNumber(parser), XML_ErrorString(XML_GetErrorCode(parser)));
    XML_ParserFree(parser);
    assert_true(p.n_boxes > 3);
    for (int a = 0; a < p.n_boxes; a++) {
        const box *x = &p.boxes[a];
        if (x->x < 0 || x->y < 0 || x->x + x->width > p.open[0].width || x->y + x->height > p.open[0].height)
            fail_msg("box %d leaves the picture", a);
        for (int b = 0; b < a; b++) {
            const box *y = &p.boxes[b];
            if (x->x < y->x + y->width && y->x < x->x + x->width && x->y < y->y + y->height &&
                y->y < x->y + x->height)
                fail_msg("boxes %d and %d overlap", a, b);
        }
    }
}

static const int sizes[] = {1, 2, 3, 5, 8, 12, 64};

static void nothing_overlaps_or_leaves_its_box(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int kind = 0; kind < 4; kind++) {
            show(&(shape){sizes[i], 6, kind & 1, kind & 2});
            read_file("b.svg");
            check_picture();
            read_file("b.html");
            assert_null(strstr(text, "<M>"));
        }
}

/* -- content -- */

static void the_picture_alone_is_complete(void **state)
{
    static const char *const parts[] = {"tsr-glossary-7m on 3 devices",
                                        "Q8_0, ",
                                        "128 CPUs, a &quot;machine&quot; &lt;x&gt;",
                                        "2026-01-02T03:04:05Z",
                                        "Speed in pp8",
                                        "Speed in tg2",
                                        "tokens/s in % of the fastest",
                                        "memory, MiB",
                                        "% of the time",
                                        ">spread<",
                                        ">predicted<",
                                        ">measured<",
                                        ">KV<",
                                        "wait for others",
                                        "cuda2",
                                        "prefers-color-scheme:dark",
                                        "sans-serif",
                                        "<title>"};
    static const char *const none[] = {"<script", "<image", "<use", "href", "url(", "@import", "@font-face"};
    (void)state;
    show(&(shape){3, 6, false, true});
    read_file("b.svg");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        must_have(parts[i]);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (strstr(text, none[i]))
            fail_msg("%s in the picture", none[i]);
    for (const char *at = text; (at = strstr(at, "http")); at++) /* names of XML, which are not fetched */
        assert_memory_equal(at, "http://www.w3.org/2000/svg\"", 27);
}

/* A line between splits has a meaning along one share only. */
static void two_devices_have_a_curve_and_others_bars(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        show(&(shape){sizes[i], 6, false, true});
        read_file("b.svg");
        if (sizes[i] == 2) {
            assert_int_equal(count("<polyline"), 4); /* measured and predicted, in two tests */
            must_have("share of cuda0");
        } else {
            assert_int_equal(count("<polyline"), 0);
            assert_null(strstr(text, "share of"));
        }
    }
}

/* Of devices that differ each has a box, a bar of memory and a bar of time. */
static void every_device_is_shown(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        show(&(shape){sizes[i], sizes[i] == 1 ? 1 : 2, false, true});
        read_file("b.svg");
        for (int d = 0; d < sizes[i]; d++) {
            char phrase[64];
            snprintf(phrase, sizeof phrase, ">cuda%d</text>", d);
            assert_int_equal(count(phrase),
                             sizes[i] == 1 ? 5 : 3); /* one device names its bars of speed, too */
        }
    }
    show(&(shape){12, 2, false, false});
    read_file("b.svg");
    assert_int_equal(count(">cuda0 to cuda11</text>"), 3);
    assert_int_equal(count(">12 x RTX 1</text>"), 1);
    assert_int_equal(count(">each "), 2);
}

static void every_split_is_shown_or_counted(void **state)
{
    (void)state;
    show(&(shape){3, 40, false, true});
    read_file("b.svg");
    for (int r = 0; r < 40; r++) {
        char phrase[64];
        snprintf(phrase, sizeof phrase,
                 r % 3 == 0   ? ">%d,10,10"
                 : r % 3 == 1 ? ">10,%d,10"
                              : ">10,10,%d",
                 20 + r);
        if (count(phrase) < 2) /* in two tests */
            fail_msg("%s is shown %d times", phrase, count(phrase));
    }
    assert_null(strstr(text, "not drawn"));
    show(&(shape){3, 57, false, true});
    read_file("b.svg");
    assert_int_equal(count("17 slower splits are not drawn; the table has all"), 2);
}

/* The number beside a bar is that of the table. */
static void the_table_has_the_numbers_of_the_picture(void **state)
{
    (void)state;
    show(&(shape){3, 6, false, true});
    read_file("b.html");
    for (int r = 0; r < 6; r++) {
        char cell[64], note[64];
        double rate = 8 / (1 + 0.03 * r + 0.002);
        snprintf(cell, sizeof cell, "<td>%.2f</td>", rate);
        snprintf(note, sizeof note, ">%.2f tokens/s \302\261", rate);
        must_have(cell);
        must_have(note);
    }
    must_have("@media print");
}

/* Bars have room for the beginning of a long split only; the whole is in the picture, too. */
static void long_splits_are_written_out(void **state)
{
    (void)state;
    show(&(shape){12, 2, false, false});
    read_file("b.svg");
    must_have(">split 1: 20,10,10,10,10,10,10,10,10,10,10,10</text>");
    must_have(">split 2: 10,21,10,10,10,10,10,10,10,10,10,10</text>");
}

/* -- the terminal -- */

static void lines_have_80_columns(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int kind = 0; kind < 4; kind++) {
            char *rest;
            show(&(shape){sizes[i], 12, kind & 1, kind & 2});
            for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
                int columns = 0;
                for (const char *at = line; *at; at++)
                    columns += ((unsigned char)*at & 0xC0) != 0x80;
                if (columns > 80)
                    fail_msg("%d devices: %d columns: %s", sizes[i], columns, line);
            }
        }
}

static void equal_devices_have_one_line(void **state)
{
    (void)state;
    show(&(shape){8, 2, false, false});
    must_have("\ncuda0 to cuda7: 8 x RTX 1\n");
    must_have("\ncuda0 to cuda7  ");
    show(&(shape){8, 2, false, true});
    must_have("\ncuda7: RTX 7\n");
    must_have("\ncuda7   ");
}

/* The text of a long split can be typed over several lines. */
static void a_long_split_is_quoted_in_lines(void **state)
{
    (void)state;
    json_t *report, *rows;
    char arguments[512], split[1024] = "";
    show(&(shape){64, 3, false, false});
    report = json_load_file(directory_file("b.json"), 0, NULL);
    rows = json_object_get(report, "rows");
    json_t *first = json_deep_copy(json_array_get(rows, 0)); /* the planner's row is the slowest now */
    json_object_set(json_array_get(rows, 0), "results", json_object_get(json_array_get(rows, 2), "results"));
    json_object_set(json_array_get(rows, 1), "results", json_object_get(first, "results"));
    assert_int_equal(json_dump_file(report, directory_file("b.json"), 0), 0);
    json_decref(first);
    snprintf(arguments, sizeof arguments, "bench --show %s", directory_file("b.json"));
    program_check(arguments, 0, "Use -ts '10,21,10,", text, sizeof text);
    const char *at = strchr(strstr(text, "Use -ts '"), '\'') + 1;
    for (size_t n = 0; *at != '\''; at++)
        if (*at != '\n' && *at != ' ')
            split[n++] = *at;
    assert_string_equal(split, json_string_value(json_object_get(json_array_get(rows, 1), "text")));
    json_decref(report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_overlaps_or_leaves_its_box),
        cmocka_unit_test(the_picture_alone_is_complete),
        cmocka_unit_test(two_devices_have_a_curve_and_others_bars),
        cmocka_unit_test(every_device_is_shown),
        cmocka_unit_test(every_split_is_shown_or_counted),
        cmocka_unit_test(the_table_has_the_numbers_of_the_picture),
        cmocka_unit_test(long_splits_are_written_out),
        cmocka_unit_test(lines_have_80_columns),
        cmocka_unit_test(equal_devices_have_one_line),
        cmocka_unit_test(a_long_split_is_quoted_in_lines),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

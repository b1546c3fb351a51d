/* tsr show: the keys and tensors of a GGUF file. */
#include "tsr.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <tsr/bytes.h>
#include <tsr/gguf.h>

#include "format.h"
#include "json.h"
#include "json_gguf.h"
#include "options.h"
#include "text.h"

enum {
    SHOWN_ELEMENTS = 4, /* of an array, in the table of keys */
    SHOWN_BYTES = 60,   /* of a string, there */
    VALUE_BYTES = 256,  /* of a number or of a string that is cut, as text */
    MAX_TYPES = 64      /* more than the format has */
};

/* -- values -- */

static void print_integer_or_real(char *text, size_t bytes, double value)
{
    snprintf(text, bytes, value == nearbyint(value) && fabs(value) < 1e15 ? "%.0f" : "%.7g", value);
}

/* A string in quotes, cut to `most` bytes. */
static void print_string(char *text, size_t bytes, tsr_gguf_string string, size_t most)
{
    char copy[SHOWN_BYTES + 4];
    if (most >= sizeof copy)
        most = sizeof copy - 1;
    tool_text_copy(copy, most + 1, string.data, string.bytes);
    snprintf(text, bytes, "\"%s%s\"", copy, string.bytes > most ? "..." : "");
}

/* The value of a key that is no array. */
static void print_scalar(const tsr_gguf *gguf, const char *key, tsr_gguf_value_type type, char *text,
                         size_t bytes)
{
    tsr_gguf_string string;
    uint64_t integer;
    double real;
    bool flag;
    if (type == TSR_GGUF_STRING && tsr_gguf_get_string(gguf, key, &string) == TSR_OK)
        print_string(text, bytes, string, SHOWN_BYTES);
    else if (type == TSR_GGUF_BOOL && tsr_gguf_get_bool(gguf, key, &flag) == TSR_OK)
        snprintf(text, bytes, "%s", flag ? "true" : "false");
    else if (type == TSR_GGUF_U64 && tsr_gguf_get_u64(gguf, key, &integer) == TSR_OK)
        snprintf(text, bytes, "%" PRIu64, integer);
    else if (tsr_gguf_get_f64(gguf, key, &real) == TSR_OK)
        print_integer_or_real(text, bytes, real);
    else
        snprintf(text, bytes, "?");
}

static void print_element(const tsr_gguf *gguf, const char *key, tsr_gguf_value_type type, int64_t index,
                          char *text, size_t bytes)
{
    tsr_gguf_string string;
    double real;
    if (type == TSR_GGUF_STRING && tsr_gguf_array_string(gguf, key, index, &string) == TSR_OK)
        print_string(text, bytes, string, SHOWN_BYTES / SHOWN_ELEMENTS);
    else if (tsr_gguf_array_f64(gguf, key, index, &real) == TSR_OK)
        print_integer_or_real(text, bytes, real);
    else
        snprintf(text, bytes, "?");
}

/* The type, as "u32" or "string[32000]", and the value or its beginning. */
static void print_value(const tsr_gguf *gguf, const char *key, char *type_text, char *text, size_t bytes)
{
    tsr_gguf_value_type type = TSR_GGUF_U8;
    int64_t n = 0;
    text[0] = '\0';
    tsr_status status = tsr_gguf_get_type(gguf, key, &type);
    if (status == TSR_OK && type != TSR_GGUF_ARRAY) {
        snprintf(type_text, 64, "%s", tsr_gguf_value_type_name(type));
        print_scalar(gguf, key, type, text, bytes);
        return;
    }
    if (status == TSR_OK)
        status = tsr_gguf_get_array(gguf, key, &type, &n);
    snprintf(type_text, 64, "%s[%" PRId64 "]", status == TSR_OK ? tsr_gguf_value_type_name(type) : "?", n);
    for (int64_t i = 0; i < n && i < SHOWN_ELEMENTS; i++) {
        char element[2 * SHOWN_BYTES];
        size_t used = strlen(text);
        print_element(gguf, key, type, i, element, sizeof element);
        snprintf(text + used, bytes - used, "%s%s", i ? ", " : "", element);
    }
    if (n > SHOWN_ELEMENTS)
        snprintf(text + strlen(text), bytes - strlen(text), ", ...");
}

/* -- tensors -- */

static double n_elements(const tsr_gguf_tensor *tensor)
{
    return (double)tensor->ne[0] * (double)tensor->ne[1] * (double)tensor->ne[2] * (double)tensor->ne[3];
}

/* Tensors, parameters and bytes of a type. */
typedef struct type_sum {
    tsr_type type;
    int64_t n;
    double elements, bytes;
} type_sum;

static void add_tensor(type_sum *sum, const tsr_gguf_tensor *tensor)
{
    sum->type = tensor->type;
    sum->n++;
    sum->elements += n_elements(tensor);
    sum->bytes += (double)tensor->bytes;
}

/* The types in the order in which the file has them. Returns how many. */
static int sum_types(const tsr_gguf *gguf, type_sum sums[MAX_TYPES], type_sum *all)
{
    int n = 0;
    for (int64_t i = 0; i < tsr_gguf_n_tensors(gguf); i++) {
        const tsr_gguf_tensor *tensor = tsr_gguf_tensor_at(gguf, i);
        int at = 0;
        while (at < n && sums[at].type != tensor->type)
            at++;
        if (at == n && n < MAX_TYPES)
            sums[n++] = (type_sum){0};
        add_tensor(&sums[at < n ? at : n - 1], tensor);
        add_tensor(all, tensor);
    }
    return n;
}

static void type_row(tool_table *table, const char *name, const type_sum *sum)
{
    char bytes[TSR_BYTES_TEXT];
    tool_table_cell(table, "%s", name);
    tool_table_cell(table, "%" PRId64, sum->n);
    tool_table_cell(table, "%.0f", sum->elements);
    tool_table_cell(table, "%s", tsr_bytes_text((uint64_t)sum->bytes, bytes));
    tool_table_cell(table, "%.2f", sum->elements > 0 ? 8 * sum->bytes / sum->elements : 0);
}

static void show_types(const tsr_gguf *gguf)
{
    type_sum sums[MAX_TYPES], all = {0};
    tool_table table = {0};
    int n = sum_types(gguf, sums, &all);
    tool_table_header(&table, 5, (const char *[]){"type", "tensors", "parameters", "size", "bits each"});
    for (int i = 0; i < n; i++)
        type_row(&table, tsr_type_name(sums[i].type), &sums[i]);
    type_row(&table, "all", &all);
    tool_table_print(&table, stdout);
    tool_table_free(&table);
}

static void print_shape(const tsr_gguf_tensor *tensor, char *text, size_t bytes)
{
    text[0] = '\0';
    for (int i = 0; i < tensor->n_dims; i++) {
        size_t used = strlen(text);
        snprintf(text + used, bytes - used, "%s%" PRId64, i ? " x " : "", tensor->ne[i]);
    }
}

static void show_tensors(const tsr_gguf *gguf)
{
    tool_table table = {0};
    printf("\n");
    tool_table_header(&table, 4, (const char *[]){"tensor", "type", "shape", "size"});
    for (int64_t i = 0; i < tsr_gguf_n_tensors(gguf); i++) {
        const tsr_gguf_tensor *tensor = tsr_gguf_tensor_at(gguf, i);
        char shape[128], bytes[TSR_BYTES_TEXT];
        print_shape(tensor, shape, sizeof shape);
        tool_table_cell(&table, "%s", tensor->name);
        tool_table_cell(&table, "%s", tsr_type_name(tensor->type));
        tool_table_cell(&table, "%s", shape);
        tool_table_cell(&table, "%s", tsr_bytes_text(tensor->bytes, bytes));
    }
    tool_table_print(&table, stdout);
    tool_table_free(&table);
}

/* -- forms of output -- */

static void show_keys(const tsr_gguf *gguf)
{
    tool_table table = {0};
    tool_table_header(&table, 3, (const char *[]){"key", "type", "value"});
    for (int64_t i = 0; i < tsr_gguf_n_keys(gguf); i++) {
        const char *key = tsr_gguf_key_at(gguf, i);
        char type[64], text[1024];
        print_value(gguf, key, type, text, sizeof text);
        tool_table_cell(&table, "%s", key);
        tool_table_cell(&table, "%s", type);
        tool_table_cell(&table, "%s", text);
    }
    tool_table_print(&table, stdout);
    tool_table_free(&table);
    printf("\n");
}

static void show(const tsr_gguf *gguf, bool tensors)
{
    char bytes[TSR_BYTES_TEXT], path[1024];
    int n_files = tsr_gguf_n_files(gguf);
    snprintf(path, sizeof path, "%s", tsr_gguf_path(gguf));
    tsr_clean_text(path, strlen(path), "");
    printf("%s: GGUF version %d, %s in %d file%s, %" PRId64 " keys, %" PRId64 " tensors\n\n", path,
           tsr_gguf_version(gguf), tsr_bytes_text(tsr_gguf_file_bytes(gguf), bytes), n_files,
           tool_plural(n_files), tsr_gguf_n_keys(gguf), tsr_gguf_n_tensors(gguf));
    show_keys(gguf);
    show_types(gguf);
    if (tensors)
        show_tensors(gguf);
}

/* A whole string, as `keep` lets it pass (tsr_clean_text()), and a newline. */
static tsr_status print_whole(tsr_gguf_string string, const char *keep)
{
    char *copy = malloc(string.bytes + 1);
    if (!copy)
        return TSR_ERR_MEMORY;
    memcpy(copy, string.data, string.bytes);
    copy[string.bytes] = '\0';
    tsr_clean_text(copy, string.bytes, keep);
    fwrite(copy, 1, string.bytes, stdout);
    putchar('\n');
    free(copy);
    return TSR_OK;
}

/* The whole value of a key: a string as it is, of an array an element in each line. */
static tsr_status show_key(const tsr_gguf *gguf, const char *key)
{
    tsr_gguf_value_type type = TSR_GGUF_U8;
    tsr_gguf_string string;
    char text[VALUE_BYTES];
    int64_t n = 0;
    tsr_status status = tsr_gguf_get_type(gguf, key, &type);
    if (status != TSR_OK)
        return status;
    if (type == TSR_GGUF_STRING) {
        status = tsr_gguf_get_string(gguf, key, &string);
        return status == TSR_OK ? print_whole(string, "\n\t") : status;
    }
    if (type != TSR_GGUF_ARRAY) {
        print_scalar(gguf, key, type, text, sizeof text);
        printf("%s\n", text);
        return TSR_OK;
    }
    status = tsr_gguf_get_array(gguf, key, &type, &n);
    for (int64_t i = 0; i < n && status == TSR_OK; i++) {
        if (type == TSR_GGUF_STRING) {
            status = tsr_gguf_array_string(gguf, key, i, &string);
            status = status == TSR_OK ? print_whole(string, "") : status;
        } else {
            print_element(gguf, key, type, i, text, sizeof text);
            printf("%s\n", text);
        }
    }
    return status;
}

int tsr_cmd_show(int argc, char **argv)
{
    const char *path = NULL, *key = NULL;
    bool tensors = false, as_json = false;
    const tool_option options[] = {
        {"-m", "--model", TOOL_STRING, &path, "FILE",
         "GGUF file; of a model in several files, the first file", 0, 0},
        {"-k", "--key", TOOL_STRING, &key, "KEY", "print the whole value of this key and nothing else", 0, 0},
        {NULL, "--tensors", TOOL_FLAG, &tensors, NULL, "list every tensor, too", 0, 0},
        {NULL, "--json", TOOL_FLAG, &as_json, NULL, "print JSON: all values, all tensors", 0, 0},
    };
    const tool_command command = {
        .name = "show",
        .summary = TOOL_SHOW_SUMMARY,
        .options = options,
        .n_options = TOOL_COUNT(options),
        .operand = "--model",
        .description =
            "`-m` may be left out: `tsr show FILE`. A file that ends behind its header, as after a download "
            "that was cut off, is enough. Tokens and merges are shown by their first elements; `--key` "
            "prints "
            "all.",
        .examples = "tsr show model.gguf\n"
                    "tsr show model.gguf --tensors\n"
                    "tsr show model.gguf --key tokenizer.chat_template",
        .pages = "json"};
    int code = tool_options_parse(&command, argc, argv, stdout, stderr);
    if (code != TOOL_GO_ON)
        return code;
    if (!path) {
        fprintf(stderr, "tsr show: no file given; use tsr show FILE\n");
        return TOOL_EXIT_USAGE;
    }
    tsr_gguf *gguf = NULL;
    tsr_gguf_config config = tsr_gguf_config_default();
    config.header_only = true;
    tsr_status status = tsr_gguf_open(path, &config, &gguf);
    if (status == TSR_OK && key)
        status = show_key(gguf, key);
    else if (status == TSR_OK && as_json)
        code = tool_json_print("show", tool_json_gguf(gguf));
    else if (status == TSR_OK)
        show(gguf, tensors);
    tsr_gguf_close(gguf);
    if (status != TSR_OK)
        return tool_fail("show", status);
    return code == TOOL_GO_ON ? TOOL_EXIT_OK : code;
}

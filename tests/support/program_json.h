/* The tsr command's JSON, for the tests that are linked with jansson (hence a header alone). */
#ifndef TSR_TESTS_PROGRAM_JSON_H
#define TSR_TESTS_PROGRAM_JSON_H

#include <stdio.h>

#include <jansson.h>

#include "support/program.h"

/* What `tsr ARGUMENTS` prints on standard output, with exit code 0 and no key twice; json_decref() it. */
static inline json_t *program_json(const char *arguments)
{
    static char line[2048], text[1 << 20];
    json_error_t error;
    snprintf(line, sizeof line, "%s 2>/dev/null", arguments);
    int code = program_run(line, text, sizeof text);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (code != 0 || !root)
        fail_msg("tsr %s: exit code %d, %s at line %d", line, code, error.text, error.line);
    return root;
}

/* What a file of the command says, with no key twice; json_decref() it. */
static inline json_t *program_json_file(const char *path)
{
    json_error_t error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        fail_msg("%s: %s at line %d", path, error.text, error.line);
    return root;
}

static inline json_int_t program_json_integer(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value))
        fail_msg("%s is no integer", key);
    return json_integer_value(value);
}

#endif

/* The part of JSON Schema (draft 7) that the project's own schemas use: type, enum, minimum,
 * exclusiveMinimum, required, properties, additionalProperties, items, minItems. A keyword that is none of
 * these and no description fails, so a schema cannot say more than is checked. A header alone, as only some
 * tests are linked with jansson. */
#ifndef TSR_TESTS_JSON_SCHEMA_H
#define TSR_TESTS_JSON_SCHEMA_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

static inline bool json_schema_is_of_type(const json_t *value, const char *type)
{
    return (strcmp(type, "object") == 0 && json_is_object(value)) ||
           (strcmp(type, "array") == 0 && json_is_array(value)) ||
           (strcmp(type, "string") == 0 && json_is_string(value)) ||
           (strcmp(type, "integer") == 0 && json_is_integer(value)) ||
           (strcmp(type, "number") == 0 && json_is_number(value)) ||
           (strcmp(type, "boolean") == 0 && json_is_boolean(value)) ||
           (strcmp(type, "null") == 0 && json_is_null(value));
}

static inline bool json_schema_holds(const json_t *schema, const json_t *value, char *why, size_t bytes);

static inline bool json_schema_type_holds(const json_t *types, const json_t *value)
{
    if (json_is_string(types))
        return json_schema_is_of_type(value, json_string_value(types));
    for (size_t i = 0; i < json_array_size(types); i++)
        if (json_schema_is_of_type(value, json_string_value(json_array_get(types, i))))
            return true;
    return false;
}

static inline bool json_schema_required_holds(const json_t *names, const json_t *value, char *why,
                                              size_t bytes)
{
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        if (!json_object_get(value, name)) {
            snprintf(why, bytes, "%s is missing", name);
            return false;
        }
    }
    return true;
}

/* Every member by its property's schema, or by the one for all others; false as that: no others. */
static inline bool json_schema_members_hold(const json_t *schema, const json_t *value, char *why,
                                            size_t bytes)
{
    const json_t *others = json_object_get(schema, "additionalProperties");
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)value, key, member)
    {
        const json_t *rule = json_object_get(json_object_get(schema, "properties"), key);
        if (!rule)
            rule = others;
        if (json_is_false(rule)) {
            snprintf(why, bytes, "%s is not known", key);
            return false;
        }
        if (json_is_object(rule) && !json_schema_holds(rule, member, why, bytes)) {
            size_t used = strlen(why);
            snprintf(why + used, bytes - used, " in %s", key);
            return false;
        }
    }
    return true;
}

static inline bool json_schema_keyword_holds(const json_t *schema, const char *keyword, const json_t *rule,
                                             const json_t *value, char *why, size_t bytes)
{
    double number = json_number_value(value), limit = json_number_value(rule);
    snprintf(why, bytes, "%s does not hold", keyword);
    if (strcmp(keyword, "type") == 0)
        return json_schema_type_holds(rule, value);
    if (strcmp(keyword, "minimum") == 0)
        return number >= limit;
    if (strcmp(keyword, "exclusiveMinimum") == 0)
        return number > limit;
    if (strcmp(keyword, "minItems") == 0)
        return (double)json_array_size(value) >= limit;
    if (strcmp(keyword, "required") == 0)
        return json_schema_required_holds(rule, value, why, bytes);
    if (strcmp(keyword, "additionalProperties") == 0)
        return json_schema_members_hold(schema, value, why, bytes);
    if (strcmp(keyword, "enum") == 0) {
        for (size_t i = 0; i < json_array_size(rule); i++)
            if (json_equal(json_array_get(rule, i), value))
                return true;
        return false;
    }
    if (strcmp(keyword, "items") == 0) {
        for (size_t i = 0; i < json_array_size(value); i++)
            if (!json_schema_holds(rule, json_array_get(value, i), why, bytes))
                return false;
        return true;
    }
    return strcmp(keyword, "$schema") == 0 || strcmp(keyword, "title") == 0 ||
           strcmp(keyword, "description") == 0 || strcmp(keyword, "properties") == 0;
}

/* False: why[bytes] says what does not hold and where, innermost first. */
static inline bool json_schema_holds(const json_t *schema, const json_t *value, char *why, size_t bytes)
{
    const char *keyword;
    json_t *rule;
    json_object_foreach((json_t *)schema, keyword, rule)
    {
        if (!json_schema_keyword_holds(schema, keyword, rule, value, why, bytes))
            return false;
    }
    return true;
}

#endif

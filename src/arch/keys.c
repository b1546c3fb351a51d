/* Reading the keys of an architecture, and refusing those that were not read. */
#include "arch/keys.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "core/status.h"

static bool was_read(const tsr_keys *keys, const char *suffix)
{
    for (int i = 0; i < keys->n_read; i++)
        if (strcmp(keys->read[i], suffix) == 0)
            return true;
    return false;
}

void tsr_keys_ignore(tsr_keys *keys, const char *suffix)
{
    if (was_read(keys, suffix))
        return;
    assert(keys->n_read < TSR_MAX_KEYS_READ);
    keys->read[keys->n_read++] = suffix;
}

static const char *full_name(tsr_keys *keys, const char *suffix)
{
    snprintf(keys->name, sizeof keys->name, "%s.%s", keys->architecture, suffix);
    return keys->name;
}

bool tsr_keys_have(tsr_keys *keys, const char *suffix)
{
    return tsr_gguf_has_key(keys->gguf, full_name(keys, suffix));
}

/* Whether there is something to read; *status_out is the result where there is not. */
static bool find(tsr_keys *keys, const char *suffix, bool required, tsr_status *status_out)
{
    tsr_keys_ignore(keys, suffix);
    *status_out = TSR_OK;
    if (tsr_keys_have(keys, suffix))
        return true;
    if (required)
        *status_out =
            tsr_fail(TSR_ERR_FORMAT, "%s: key %s is missing", tsr_gguf_path(keys->gguf), keys->name);
    return false;
}

/* Some files give one number per layer where others give one for all; equal numbers are one number. */
static tsr_status uniform(const tsr_keys *keys, int64_t n, int64_t *value_out)
{
    int64_t first, value;
    tsr_status status = TSR_OK;
    TSR_TRY(tsr_gguf_array_i64(keys->gguf, keys->name, 0, &first));
    for (int64_t i = 1; i < n; i++) {
        TSR_TRY(tsr_gguf_array_i64(keys->gguf, keys->name, i, &value));
        if (value != first)
            return tsr_fail(TSR_ERR_UNSUPPORTED, "%s: %s differs between layers (%lld and %lld)",
                            tsr_gguf_path(keys->gguf), keys->name, (long long)first, (long long)value);
    }
    *value_out = first;
out:
    return status;
}

static tsr_status largest(const tsr_keys *keys, int64_t n, int64_t *value_out)
{
    tsr_status status = TSR_OK;
    int64_t value, most = INT64_MIN;
    for (int64_t i = 0; i < n; i++) {
        TSR_TRY(tsr_gguf_array_i64(keys->gguf, keys->name, i, &value));
        most = TSR_MAX(most, value);
    }
    *value_out = most;
out:
    return status;
}

static tsr_status no_entry(const tsr_keys *keys, int64_t n, int64_t layer)
{
    return tsr_fail(TSR_ERR_FORMAT, "%s: %s has %lld entries, none for layer %lld", tsr_gguf_path(keys->gguf),
                    keys->name, (long long)n, (long long)layer);
}

static tsr_status element(const tsr_keys *keys, int64_t n, int64_t layer, int64_t *value_out)
{
    if (n < 1)
        return tsr_fail(TSR_ERR_FORMAT, "%s: %s is an empty array", tsr_gguf_path(keys->gguf), keys->name);
    if (layer == TSR_ALL_LAYERS)
        return uniform(keys, n, value_out);
    if (layer == TSR_LARGEST_LAYER)
        return largest(keys, n, value_out);
    return layer < n ? tsr_gguf_array_i64(keys->gguf, keys->name, layer, value_out)
                     : no_entry(keys, n, layer);
}

tsr_status tsr_keys_int(tsr_keys *keys, const char *suffix, int64_t layer, bool required, int64_t low,
                        int64_t high, int64_t *value)
{
    tsr_gguf_value_type type;
    int64_t n, number = 0;
    uint64_t scalar;
    tsr_status status = TSR_OK;
    if (!find(keys, suffix, required, &status))
        return status;
    if (tsr_gguf_get_array(keys->gguf, keys->name, &type, &n) == TSR_OK) {
        TSR_TRY(element(keys, n, layer, &number));
    } else {
        tsr_fail_clear();
        TSR_TRY(tsr_gguf_get_u64(keys->gguf, keys->name, &scalar));
        number = scalar > INT64_MAX ? INT64_MAX : (int64_t)scalar;
    }
    if (number < low || number > high)
        return tsr_fail(TSR_ERR_FORMAT, "%s: %s is %lld; it must be in [%lld, %lld]",
                        tsr_gguf_path(keys->gguf), keys->name, (long long)number, (long long)low,
                        (long long)high);
    *value = number;
out:
    return status;
}

static tsr_status check_real(const tsr_keys *keys, double number, double low, double high)
{
    if (number >= low && number <= high)
        return TSR_OK;
    return tsr_fail(TSR_ERR_FORMAT, "%s: %s is %g; it must be in [%g, %g]", tsr_gguf_path(keys->gguf),
                    keys->name, number, low, high);
}

tsr_status tsr_keys_real(tsr_keys *keys, const char *suffix, bool required, double low, double high,
                         double *value)
{
    double number;
    tsr_status status = TSR_OK;
    if (!find(keys, suffix, required, &status))
        return status;
    TSR_TRY(tsr_gguf_get_f64(keys->gguf, keys->name, &number));
    TSR_TRY(check_real(keys, number, low, high));
    *value = number;
out:
    return status;
}

tsr_status tsr_keys_layer_real(tsr_keys *keys, const char *suffix, int64_t layer, double low, double high,
                               double *value)
{
    tsr_gguf_value_type type;
    double number;
    int64_t n;
    tsr_status status = TSR_OK;
    if (!find(keys, suffix, false, &status))
        return status;
    if (tsr_gguf_get_array(keys->gguf, keys->name, &type, &n) != TSR_OK) {
        tsr_fail_clear();
        return tsr_keys_real(keys, suffix, false, low, high, value);
    }
    if (layer >= n)
        return no_entry(keys, n, layer);
    TSR_TRY(tsr_gguf_array_f64(keys->gguf, keys->name, layer, &number));
    TSR_TRY(check_real(keys, number, low, high));
    *value = number;
out:
    return status;
}

tsr_status tsr_keys_bool(tsr_keys *keys, const char *suffix, bool *value)
{
    tsr_status status;
    return find(keys, suffix, false, &status) ? tsr_gguf_get_bool(keys->gguf, keys->name, value) : status;
}

tsr_status tsr_keys_string(tsr_keys *keys, const char *suffix, tsr_gguf_string *value)
{
    tsr_status status;
    return find(keys, suffix, false, &status) ? tsr_gguf_get_string(keys->gguf, keys->name, value) : status;
}

/* -- keys that may stay unread -- */

/* Keys that change no result, whatever their values: those of `any`; and those whose value stands for "none"
 * (`none`, or `other`, which programs write for the same). Sources: llama.cpp's gguf-py/gguf/constants.py
 * (class Keys), and what its src/llama-model.cpp and src/models do with the keys. */
static const struct {
    const char *suffix;
    bool any;
    double none, other;
} harmless[] = {
    {"vocab_size", .any = true},         /* the rows of the embedding say so */
    {"tensor_data_layout", .any = true}, /* how a converter permuted Q and K for this architecture */
    {"pooling_type", .any = true},       /* embeddings of whole texts */
    {"rope.scaling.finetuned", .any = true},
    {"expert_group_used_count", .any = true},          /* of one group */
    {"attention.layer_norm_epsilon", .any = true},     /* of the kind of norm that the model lacks */
    {"attention.layer_norm_rms_epsilon", .any = true}, /* as the key above */
    {"attention.causal", .none = 1, .other = 1},
    {"attention.clamp_kqv", .none = 0},
    {"attention.max_alibi_bias", .none = 0},
    {"attention.sliding_window", .none = 0},
    {"attention.scale", .none = 0},
    {"attention.temperature_scale", .none = 0},
    {"attn_logit_softcapping", .none = 0},
    {"final_logit_softcapping", .none = 0},
    {"router_logit_softcapping", .none = 0},
    {"residual_scale", .other = 1},
    {"embedding_scale", .other = 1},
    {"logit_scale", .other = 1},
    {"rope.scaling.alpha", .none = 0},
    {"rope.scaling.yarn_ext_factor", .none = 1, .other = -1},
};

static bool is_about_experts(const char *suffix)
{
    return strncmp(suffix, "expert_", strlen("expert_")) == 0 ||
           strcmp(suffix, "leading_dense_block_count") == 0 ||
           strcmp(suffix, "interleave_moe_layer_step") == 0;
}

/* The key's value as a number; false: it is something else. */
static bool get_number(const tsr_gguf *gguf, const char *key, double *number_out)
{
    bool flag;
    bool found = tsr_gguf_get_f64(gguf, key, number_out) == TSR_OK;
    if (!found && tsr_gguf_get_bool(gguf, key, &flag) == TSR_OK) {
        *number_out = flag;
        found = true;
    }
    tsr_fail_clear();
    return found;
}

static bool is_harmless(const tsr_gguf *gguf, const char *key, const char *suffix)
{
    double number;
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (strcmp(suffix, harmless[i].suffix) == 0)
            return harmless[i].any || (get_number(gguf, key, &number) &&
                                       (number == harmless[i].none || number == harmless[i].other));
    return false;
}

/* " = 3", or nothing for strings and arrays. */
static void print_number(const tsr_gguf *gguf, const char *key, char *text, size_t size)
{
    double number;
    text[0] = '\0';
    if (get_number(gguf, key, &number))
        snprintf(text, size, " = %g", number);
}

tsr_status tsr_keys_refuse_unread(const tsr_keys *keys, bool dense)
{
    size_t prefix = strlen(keys->architecture);
    char value[32];
    for (int64_t i = 0; i < tsr_gguf_n_keys(keys->gguf); i++) {
        const char *key = tsr_gguf_key_at(keys->gguf, i);
        if (strncmp(key, keys->architecture, prefix) != 0 || key[prefix] != '.')
            continue;
        const char *suffix = key + prefix + 1;
        if (was_read(keys, suffix) || (dense && is_about_experts(suffix)) ||
            is_harmless(keys->gguf, key, suffix))
            continue;
        print_number(keys->gguf, key, value, sizeof value);
        return tsr_fail(TSR_ERR_UNSUPPORTED,
                        "%s: key %.80s%s is unknown to architecture %s and may change the result; if it does "
                        "not, remove it with gguf-new-metadata",
                        tsr_gguf_path(keys->gguf), key, value, keys->architecture);
    }
    return TSR_OK;
}

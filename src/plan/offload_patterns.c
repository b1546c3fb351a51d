/* Overrides: patterns of tensor names, each with a device, as llama.cpp's -ot has them. The first pattern
 * that is found in a name decides.
 *
 * A rule moves a block (attention or FFN of a layer, the embedding, the output), since the activations of a
 * block stay on its devices. All matrices of a block must therefore go to one device. Norms and biases follow
 * the matrices. The whole FFN of a mixture follows its experts, so that the usual "exps=CPU" is enough. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/mem.h"
#include "plan/offload.h"

enum { UNNAMED = -1, MAX_LABEL = 160 };

/* A pattern, ready to search. */
typedef struct searcher {
    const char *pattern;
    int device;
    pcre2_code *code;
    bool found; /* in any name */
} searcher;

typedef struct overrider {
    pcre2_general_context *memory;
    pcre2_match_data *match;
    searcher *searchers; /* [n] */
    int n;
    int *which; /* [weights->n] index of the searcher that decides, UNNAMED */
} overrider;

static void *pcre_alloc(size_t bytes, void *user)
{
    (void)user;
    return tsr_mem_realloc(NULL, bytes, 1);
}

static void pcre_free(void *block, void *user)
{
    (void)user;
    tsr_mem_free(block);
}

static tsr_status out_of_memory(void)
{
    return tsr_fail(TSR_ERR_MEMORY, "out of host memory for the patterns of offload rules");
}

static tsr_status compile(overrider *o, const char *pattern, searcher *s)
{
    int error;
    PCRE2_SIZE offset;
    PCRE2_UCHAR reason[128];
    pcre2_compile_context *context = pcre2_compile_context_create(o->memory);
    if (!context)
        return out_of_memory();
    s->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, 0, &error, &offset, context);
    pcre2_compile_context_free(context);
    if (s->code)
        return TSR_OK;
    if (error == PCRE2_ERROR_HEAP_FAILED)
        return out_of_memory();
    pcre2_get_error_message(error, reason, sizeof reason);
    return tsr_fail(TSR_ERR_INVALID, "rule '%s': %s at character %zu of the pattern", pattern,
                    (const char *)reason, (size_t)offset + 1);
}

/* llama.cpp calls host memory "CPU". */
static tsr_status find_target(const tsr_planner *planner, const tsr_offload_rule *rule, int offload_device,
                              int *device_out)
{
    char what[MAX_LABEL];
    snprintf(what, sizeof what, "rule '%s'", rule->pattern);
    if (strcasecmp(rule->device, "CPU") != 0)
        return tsr_offload_find_device(planner, rule->device, what, device_out);
    if (offload_device < 0)
        return tsr_fail(TSR_ERR_INVALID,
                        "%s: there is no host device; add one to the devices (-dev cuda,host:1)", what);
    *device_out = offload_device;
    return TSR_OK;
}

static tsr_status search(const overrider *o, searcher *s, const char *name, bool *found_out)
{
    int rc = pcre2_match(s->code, (PCRE2_SPTR)name, strlen(name), 0, 0, o->match, NULL);
    if (rc == PCRE2_ERROR_NOMEMORY || rc == PCRE2_ERROR_HEAPLIMIT)
        return out_of_memory();
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
        return tsr_fail(TSR_ERR_INVALID, "rule '%s': too complex to search in %s (PCRE2 error %d)",
                        s->pattern, name, rc);
    *found_out = rc >= 0;
    return TSR_OK;
}

static tsr_status overrider_init(overrider *o, const tsr_planner *planner, int offload_device)
{
    tsr_status status = TSR_OK;
    const tsr_model_config *config = &planner->config;
    TSR_TRY(
        tsr_mem_array((size_t)config->offload.n_rules, sizeof *o->searchers, "offload rules", &o->searchers));
    TSR_TRY(tsr_mem_array((size_t)planner->weights.n, sizeof *o->which, "offload rules", &o->which));
    o->memory = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    o->match = o->memory ? pcre2_match_data_create(1, o->memory) : NULL;
    if (!o->match)
        TSR_TRY(out_of_memory());
    for (o->n = 0; o->n < config->offload.n_rules; o->n++) {
        const tsr_offload_rule *rule = &config->offload.rules[o->n];
        searcher *s = &o->searchers[o->n];
        if (!rule->pattern || !rule->device)
            TSR_TRY(tsr_fail(TSR_ERR_INVALID, "rule %d lacks a pattern or a device", o->n));
        s->pattern = rule->pattern;
        TSR_TRY(find_target(planner, rule, offload_device, &s->device));
        TSR_TRY(compile(o, rule->pattern, s));
    }
out:
    return status;
}

static void overrider_free(overrider *o, int n_offload_rules)
{
    for (int i = 0; o->searchers && i < n_offload_rules; i++)
        pcre2_code_free(o->searchers[i].code);
    pcre2_match_data_free(o->match);
    pcre2_general_context_free(o->memory);
    tsr_mem_free(o->searchers);
    tsr_mem_free(o->which);
}

/* Nemotron-H calls the norm before any block attn_norm: this name does not say where an FFN is. */
static bool is_misnamed(const tsr_weight *weight)
{
    return tsr_weight_block(weight) == TSR_BLOCK_FFN && strstr(weight->tensor.name, ".attn_norm.");
}

static tsr_status match_names(overrider *o, const tsr_weights *weights)
{
    tsr_status status = TSR_OK;
    for (int i = 0; i < weights->n; i++) {
        bool found = false;
        o->which[i] = UNNAMED;
        for (int s = 0; s < o->n && !found && !is_misnamed(weights->list[i]); s++) {
            TSR_TRY(search(o, &o->searchers[s], weights->list[i]->tensor.name, &found));
            if (found)
                o->which[i] = s;
            o->searchers[s].found |= found;
        }
    }
    for (int s = 0; s < o->n; s++)
        if (!o->searchers[s].found)
            TSR_TRY(tsr_fail(TSR_ERR_INVALID,
                             "rule '%s': no tensor is left for it; names are like blk.0.attn_q.weight, "
                             "and an earlier pattern that is found in a name comes first",
                             o->searchers[s].pattern));
out:
    return status;
}

/* Whether the tensor is a matrix; norms and biases are not. */
static bool is_matrix(const tsr_weight *weight)
{
    return weight->tensor.ne[1] > 1 && !weight->vectors;
}

static const char *block_name(const tsr_weight *weight, char text[MAX_LABEL])
{
    tsr_block block = tsr_weight_block(weight);
    if (block == TSR_BLOCK_EMBEDDING || block == TSR_BLOCK_OUTPUT)
        return block == TSR_BLOCK_OUTPUT ? "the output" : "the embedding";
    snprintf(text, MAX_LABEL, "the %s of layer %d", block == TSR_BLOCK_FFN ? "FFN" : "attention",
             weight->layer);
    return text;
}

/* Whether `other` follows `moved` of the same block although no pattern names it. */
static bool follows(const tsr_weight *other, const tsr_weight *moved)
{
    return !is_matrix(other) || (moved->expert && !other->expert);
}

/* `tensor` is in the block that `first` moved: the first of its tensors that any pattern is found in, an
 * expert's if there is one. */
static tsr_status check_together(const overrider *o, const tsr_weights *weights, int first, int tensor)
{
    char text[MAX_LABEL];
    const tsr_weight *moved = weights->list[first], *other = weights->list[tensor];
    const searcher *s = &o->searchers[o->which[first]];
    if (o->which[tensor] == UNNAMED && !follows(other, moved))
        return tsr_fail(TSR_ERR_INVALID,
                        "rule '%s' moves %s and leaves %s behind, but %s stays together; let the pattern "
                        "be found in both names",
                        s->pattern, moved->tensor.name, other->tensor.name, block_name(moved, text));
    if (o->which[tensor] != UNNAMED && o->searchers[o->which[tensor]].device != s->device)
        return tsr_fail(
            TSR_ERR_INVALID,
            "offload rules '%s' and '%s' send %s and %s to different devices, but %s stays together",
            s->pattern, o->searchers[o->which[tensor]].pattern, moved->tensor.name, other->tensor.name,
            block_name(moved, text));
    return TSR_OK;
}

/* first[block of weight i]: see check_together(); UNNAMED: its block stays. */
static int *first_of(int *first, const tsr_weights *weights, int i)
{
    const tsr_weight *weight = weights->list[i];
    tsr_block block = tsr_weight_block(weight);
    if (block == TSR_BLOCK_EMBEDDING || block == TSR_BLOCK_OUTPUT)
        return &first[block == TSR_BLOCK_OUTPUT];
    return &first[2 + 2 * weight->layer + (block == TSR_BLOCK_FFN)];
}

static tsr_status move_blocks(const overrider *o, const tsr_weights *weights, tsr_offload_map *map)
{
    tsr_status status = TSR_OK;
    size_t n_blocks = 2 + 2 * (size_t)weights->n_layers;
    int *first = NULL;
    TSR_TRY(tsr_mem_array(n_blocks, sizeof *first, "offload rules", &first));
    for (size_t b = 0; b < n_blocks; b++)
        first[b] = UNNAMED;
    for (int i = 0; i < weights->n; i++) {
        const tsr_weight *weight = weights->list[i];
        int *block = first_of(first, weights, i);
        bool decided = *block != UNNAMED && (weights->list[*block]->expert || !weight->expert);
        if (o->which[i] == UNNAMED || decided)
            continue;
        *block = i;
        *tsr_offload_at(map, tsr_weight_block(weight), weight->layer) = o->searchers[o->which[i]].device;
    }
    for (int i = 0; i < weights->n; i++)
        if (*first_of(first, weights, i) != UNNAMED)
            TSR_TRY(check_together(o, weights, *first_of(first, weights, i), i));
out:
    tsr_mem_free(first);
    return status;
}

tsr_status tsr_offload_rules_apply(const tsr_planner *planner, int offload_device, tsr_offload_map *map)
{
    tsr_status status = TSR_OK;
    overrider o = {0};
    if (planner->config.offload.n_rules == 0)
        return TSR_OK;
    TSR_TRY(overrider_init(&o, planner, offload_device));
    TSR_TRY(match_names(&o, &planner->weights));
    TSR_TRY(move_blocks(&o, &planner->weights, map));
out:
    overrider_free(&o, planner->config.offload.n_rules);
    return status;
}

/* Costs of the three classes from the tensors of a file.
 *
 * The time of a matrix is the longer of reading it and multiplying by it, and what every product takes. Of a
 * mixture of experts only the experts count that the tokens of the step use. Attention also reads the keys
 * and values of half the context, or of those of its positions that an index selects; a recurrent layer reads
 * and writes its states. Norms, rotations and the like are small and counted as ops. */
#include "plan/cost/step.h"

#include <math.h>
#include <string.h>

#include "core/comm.h"
#include "core/mem.h"
#include "core/op.h"
#include "graph/graph.h"
#include "plan/cost/experts.h"
#include "split/search/transfer.h"
#include "topo/links/links.h"

/* The time of a granule without work: the search needs times above 0. */
#define LEAST_NS 1e-6

/* The part of the experts that a step reads, if every expert is equally likely: for one token the experts
 * that it uses, for a prompt almost all. */
static double experts_read(const tsr_hparams *hp, int64_t n_tokens)
{
    return 1 - pow(1 - (double)hp->n_expert_used / (double)hp->n_expert, (double)n_tokens);
}

/* A type that is not measured gets the rate of a measured type with similar unpacking. */
static int rate_index(tsr_type type)
{
    switch (type) {
    case TSR_TYPE_Q4_1:
    case TSR_TYPE_Q5_0:
    case TSR_TYPE_Q5_1:
    case TSR_TYPE_IQ4_NL:
    case TSR_TYPE_MXFP4:
        return tsr_rate_index(TSR_TYPE_Q4_0);
    case TSR_TYPE_IQ1_S:
    case TSR_TYPE_IQ1_M:
    case TSR_TYPE_IQ2_XXS:
    case TSR_TYPE_IQ2_S:
    case TSR_TYPE_IQ3_XXS:
    case TSR_TYPE_IQ3_S:
    case TSR_TYPE_TQ1_0:
    case TSR_TYPE_TQ2_0:
    case TSR_TYPE_NVFP4:
        return tsr_rate_index(TSR_TYPE_IQ2_XS);
    default:
        return tsr_rate_index(tsr_rate_index(type) >= 0 ? type : TSR_TYPE_Q4_K);
    }
}

static bool is_known(tsr_type type, const tsr_device_rates *rates)
{
    int i = rate_index(type);
    return i >= 0 && rates->read_bytes_per_s[i] > 0 && rates->flops_per_s[i] > 0;
}

static bool is_expert(const tsr_weight *weight, const tsr_hparams *hp)
{
    return weight->expert && hp->n_expert > 0;
}

/* What the settings say of products. */
typedef struct precision {
    bool exact; /* sums of the exact reduction */
    bool bytes; /* activations of 8 bits */
} precision;

/* The first rate, unless it is not known. */
static double rate_or(double rate, double other)
{
    return rate > 0 ? rate : other;
}

/* Operations per second of products of many tokens with a matrix. */
static double flops_of(const tsr_weight *weight, const tsr_hparams *hp, const tsr_device_rates *rates,
                       precision of)
{
    const int type = rate_index(weight->source->type);
    const double plain = rates->flops_per_s[type];
    const double gain = of.bytes ? rate_or(rates->byte_flops_per_s[type], plain) / plain : 1;
    if (is_expert(weight, hp))
        return gain * rate_or(rates->expert_flops_per_s[type], plain);
    if (of.exact && (weight->role == TSR_WEIGHT_Q_COLUMNS || weight->role == TSR_WEIGHT_FFN_COLUMNS))
        return gain * rate_or(rates->partial_flops_per_s[type], plain);
    return gain * plain;
}

/* Nanoseconds for a whole matrix on a device; 0 for a type whose rates are not known. The rate of reading was
 * measured with one token, whose product is part of that time; the rate of products was measured with many,
 * and says nothing about one. */
static double matrix_ns(const tsr_weight *weight, const tsr_hparams *hp, const tsr_device_rates *rates,
                        precision of, int64_t n_tokens)
{
    const tsr_gguf_tensor *w = weight->source;
    const int type = rate_index(w->type);
    if (!is_known(w->type, rates))
        return 0;
    double read_rate = rates->read_bytes_per_s[type];
    if (is_expert(weight, hp))
        read_rate = rate_or(rates->expert_bytes_per_s[type], read_rate);
    double read = (double)w->bytes / read_rate;
    double n_elems = (double)w->ne[0] * (double)w->ne[1] * (double)w->ne[2];
    double work = 2.0 * n_elems * (double)n_tokens / flops_of(weight, hp, rates, of);
    if (is_expert(weight, hp)) {
        read *= experts_read(hp, n_tokens);
        work *= (double)hp->n_expert_used / (double)hp->n_expert;
    }
    return (n_tokens == 1 ? read : TSR_MAX(read, work)) * 1e9;
}

/* What a product takes whatever its size, at least a small op. The rates of experts include it; otherwise one
 * op multiplies by all experts' matrices, also where a file has a tensor for each. */
static double product_ns(const tsr_weight *weight, const tsr_hparams *hp, const tsr_device_rates *rates)
{
    const int type = rate_index(weight->source->type);
    const double ns = TSR_MAX(rates->product_ns[type], rates->op_ns);
    if (!is_expert(weight, hp))
        return ns;
    return rates->expert_bytes_per_s[type] > 0 ? 0
                                               : ns * (double)weight->source->ne[2] / (double)hp->n_expert;
}

static double elem_bytes(tsr_type type)
{
    int64_t block = tsr_type_block_elems(type);
    return (double)tsr_type_row_bytes(type, block) / (double)block;
}

/* What the mixer of a layer reads besides weights, and computes with it. The index that selects positions is
 * whole on every device. */
typedef struct mixer_work {
    double bytes, flops;
    double index_bytes, index_flops;
} mixer_work;

/* Of attention in layers of a kind, for one sequence. Every token of a step selects positions of its own. */
static mixer_work attention_work(const tsr_hparams *hp, const tsr_layer_kind *k,
                                 const tsr_model_config *config, double positions, double n_tokens)
{
    const double k_bytes = elem_bytes(config->session.type_k), v_bytes = elem_bytes(config->session.type_v);
    const double rank = (double)hp->latent.kv_rank, row = rank + (double)hp->latent.n_rot;
    const double dim = (double)k->head_dim, index = (double)k->index_dim;
    const bool latent = k->mixer == TSR_MIXER_LATENT;
    if (k->window > 0)
        positions = TSR_MIN(positions, (double)k->window);
    double seen = positions; /* by a token */
    if (k->n_selected > 0)
        seen = TSR_MIN(seen, (double)(k->n_selected * hp->indexer.block));
    return (mixer_work){.bytes = TSR_MIN(seen * n_tokens, positions) *
                                 (latent ? row * k_bytes : (double)k->n_head_kv * dim * (k_bytes + v_bytes)),
                        .flops = 2 * (double)k->n_head * (latent ? row + rank : 2 * dim) * seen * n_tokens,
                        .index_bytes = positions * index * k_bytes,
                        .index_flops = 2 * (double)hp->indexer.n_heads * index * positions * n_tokens};
}

/* Of attention to a window and to compressed positions. */
static mixer_work compressed_work(const tsr_hparams *hp, const tsr_layer_kind *k,
                                  const tsr_model_config *config, double positions, double n_tokens)
{
    const double k_bytes = elem_bytes(config->session.type_k), dim = (double)k->head_dim;
    const double window = TSR_MIN(positions, (double)k->window);
    const double rows = k->ratio > 0 ? positions / (double)k->ratio : 0, index = (double)k->index_dim;
    const double chosen = k->n_selected > 0 ? TSR_MIN(rows, (double)k->n_selected) : rows;
    return (mixer_work){.bytes = (window + TSR_MIN(chosen * n_tokens, rows)) * dim * k_bytes,
                        .flops = 4 * (double)k->n_head * dim * (window + chosen) * n_tokens,
                        .index_bytes = rows * index * k_bytes,
                        .index_flops = 2 * (double)hp->indexer.n_heads * index * rows * n_tokens};
}

/* Of states in layers of a kind, for one sequence. Mamba-2 has keys per group, however heads are divided. */
static mixer_work recurrent_work(const tsr_layer_kind *k, double n_tokens)
{
    const int64_t n_keys = k->mixer == TSR_MIXER_MAMBA ? k->n_groups : k->n_head_kv;
    const double values = (double)(k->n_head * k->head_dim), matrices = values * (double)k->key_dim;
    const double inputs = values + 2 * (double)(n_keys * k->key_dim);
    return (mixer_work){.bytes = 2 * (matrices + (double)(k->conv_kernel - 1) * inputs) * sizeof(float),
                        .flops = 8 * matrices * n_tokens}; /* decay, two products and a sum */
}

static void add_work(mixer_work *sum, mixer_work work, double times)
{
    sum->bytes += times * work.bytes;
    sum->flops += times * work.flops;
    sum->index_bytes += times * work.index_bytes;
    sum->index_flops += times * work.index_flops;
}

/* Of layers of a kind, for one sequence. `positions` stand before the step. */
static mixer_work work_of_kind(const tsr_hparams *hp, const tsr_layer_kind *k, const tsr_model_config *config,
                               double positions, double n_tokens)
{
    mixer_work work = {0};
    if (k->mixer == TSR_MIXER_ATTENTION || k->mixer == TSR_MIXER_LATENT)
        work = attention_work(hp, k, config, positions, n_tokens);
    else if (k->mixer == TSR_MIXER_COMPRESSED)
        work = compressed_work(hp, k, config, positions, n_tokens);
    else if (tsr_mixer_is_recurrent(k->mixer))
        work = recurrent_work(k, n_tokens);
    if (k->beside)
        add_work(&work, work_of_kind(hp, &hp->kinds[k->beside - 1], config, positions, n_tokens), 1);
    return work;
}

/* The mean over the layers, for one of the sequences that have filled half of the context. Of a model that
 * does not run, from the means of its keys and values. */
static mixer_work work_of_layer(const tsr_planner *planner, double n_tokens)
{
    const tsr_hparams *hp = &planner->shape.hparams;
    const tsr_model_config *config = &planner->config;
    double positions = (double)config->session.n_ctx / 2 / config->workload.n_seq;
    mixer_work sum = {0};
    for (int64_t l = 0; l < tsr_hparams_n_step_layers(hp); l++)
        add_work(&sum, work_of_kind(hp, tsr_hparams_layer(hp, l), config, positions, n_tokens),
                 1 / (double)hp->n_layers);
    if (!planner->shape.arch->header_only || hp->kv.k_elems + hp->kv.v_elems == 0)
        return sum;
    positions += hp->kv.windowed * (TSR_MIN(positions, (double)hp->kv.window) - positions);
    return (mixer_work){.bytes = positions * (hp->kv.k_elems * elem_bytes(config->session.type_k) +
                                              hp->kv.v_elems * elem_bytes(config->session.type_v)),
                        .flops = 2.0 * (double)(hp->n_head * 2 * hp->head_dim) * positions * n_tokens};
}

/* Time to read the keys and values, or the states, of one layer, all heads, once for every sequence in the
 * step, and to multiply them; and to use its index. */
typedef struct attention_times {
    double read_ns, work_ns, index_ns;
} attention_times;

static attention_times attention_times_of(const tsr_planner *planner, const tsr_device_rates *rates,
                                          int64_t n_tokens, int64_t n_seq)
{
    mixer_work work = {0};
    add_work(&work, work_of_layer(planner, (double)n_tokens / (double)n_seq), (double)n_seq);
    double read_rate = 0, flop_rate = 0;
    for (int i = 0; i < TSR_RATE_TYPES; i++) { /* plain floats are the fastest to read */
        read_rate = TSR_MAX(read_rate, rates->read_bytes_per_s[i]);
        flop_rate = TSR_MAX(flop_rate, rates->flops_per_s[i]);
    }
    if (!(read_rate > 0))
        return (attention_times){0};
    return (attention_times){work.bytes / read_rate * 1e9, work.flops / flop_rate * 1e9,
                             TSR_MAX(work.index_bytes / read_rate, work.index_flops / flop_rate) * 1e9};
}

/* Add one layer's attention on device d. Rows that are whole on every device are read by each, whatever its
 * heads. */
static void add_attention(const tsr_hparams *hp, attention_times times, int d, tsr_cost_class *attention)
{
    const double ns = TSR_MAX(times.read_ns, times.work_ns);
    attention->fixed_ns[d] += times.index_ns;
    if (hp->kv.whole && times.read_ns >= times.work_ns)
        attention->fixed_ns[d] += ns;
    else
        attention->granule_ns[d] += ns / (double)attention->n_granules;
}

/* All-reduces among fewer devices take less time: latency and bytes grow with the number of other devices. */
static double sync_by_rates(const tsr_model_cost *cost, tsr_device_set devices, uint64_t bytes)
{
    int n = tsr_device_set_count(devices), all = cost->problem.n_devices;
    double ns = 0;
    for (int d = 0; d < all; d++) {
        const tsr_device_rates *r = &cost->rates[d];
        if (tsr_device_set_has(devices, d) && r->sync_bytes_per_s > 0)
            ns = TSR_MAX(ns, r->sync_ns + (double)bytes / r->sync_bytes_per_s * 1e9);
    }
    return ns * (n - 1) / (all - 1);
}

/* The best known time for this set: its own measured time; otherwise the measured time of all devices
 * together; otherwise the prediction of the link model. */
static double barrier_ns(const tsr_model_cost *cost, tsr_device_set devices, tsr_sum_bytes bytes)
{
    tsr_all_reduce_cost cost_by_links = {.algorithm = TSR_ALL_REDUCE_NONE};
    if (cost->links)
        tsr_links_all_reduce_bytes(cost->links, devices, bytes, &cost_by_links);
    bool use_links = cost_by_links.algorithm == TSR_ALL_REDUCE_MEASURED || !cost->rates[0].measured;
    return cost->links && use_links ? cost_by_links.ns : sync_by_rates(cost, devices, bytes.part);
}

/* Of one device's part, which is partial sums or its columns of a value that is gathered. Almost all exact
 * sums fit a low word (core/quant/wire.h). Between processes they are words and the flags of blocks, and a
 * gather is a sum of whole rows (docs/exact-reduction.md, docs/design/processes.md). */
static tsr_sum_bytes bytes_of(const tsr_model_cost *cost, const tsr_step_collective *one, int n_devices)
{
    const uint64_t n = (uint64_t)one->n_elems * (uint64_t)cost->n_tokens;
    const uint64_t part = one->gathers ? n * sizeof(float) / (uint64_t)n_devices : n * cost->sum_bytes;
    const bool is_narrow = !one->gathers && n >= TSR_NARROW_FROM;
    tsr_sum_bytes bytes = {.part = part,
                           .narrow = is_narrow ? TSR_MIN(part, n * sizeof(uint32_t)) : part,
                           .between = one->gathers ? n * sizeof(float) : part,
                           .n_messages = 1};
    if (is_narrow && cost->sum_bytes == sizeof(int64_t)) {
        bytes.between = (n + (n + TSR_NARROW_BLOCK - 1) / TSR_NARROW_BLOCK) * sizeof(uint32_t);
        bytes.n_messages = (int)((n + TSR_NARROW_MOST - 1) / TSR_NARROW_MOST);
    }
    return bytes;
}

/* The time of the collectives of one walk of a class. Times are remembered, since the search needs those of
 * the same sets again and again. */
static double sync_ns(void *user, tsr_device_set devices, int class_index)
{
    tsr_model_cost *cost = user;
    const tsr_step_profile *profile = cost->profile;
    const int n_devices = tsr_device_set_count(devices);
    double *remembered = devices < sizeof cost->set_sync_ns[0] / sizeof cost->set_sync_ns[0][0]
                             ? &cost->set_sync_ns[class_index][devices]
                             : NULL;
    double ns = 0;
    if (n_devices < 2 || (cost->sums_beside && class_index != TSR_CLASS_OUTPUT))
        return 0;
    if (remembered && *remembered > 0)
        return *remembered;
    for (int i = 0; i < profile->n_collectives; i++) {
        const tsr_step_collective *one = &profile->collectives[i];
        if (one->class_id == (tsr_split_class_id)class_index)
            ns += one->n / cost->classes[class_index].repeats *
                  barrier_ns(cost, devices, bytes_of(cost, one, n_devices));
    }
    if (remembered)
        *remembered = ns;
    return ns;
}

static double walk_ns(void *user, int class_index, const int64_t *counts)
{
    const tsr_model_cost *cost = user;
    if (class_index != TSR_CLASS_FFN || cost->n_touched == 0)
        return -1;
    return tsr_experts_walk_ns(&cost->classes[TSR_CLASS_FFN], cost->problem.n_devices, counts,
                               cost->n_touched);
}

/* Whether the links have a better time for a transfer than the rates. */
static bool by_links(const tsr_model_cost *cost, int from, int to)
{
    tsr_link link;
    return cost->links && tsr_links_pair(cost->links, from, to, &link) == TSR_OK &&
           (link.measured || !cost->rates[0].measured);
}

/* Bytes that are copied from device to device. */
typedef struct copies {
    const tsr_model_cost *cost;
    uint64_t bytes;
} copies;

static double copy_ns(const void *user, int from, int to)
{
    const copies *c = user;
    const tsr_device_rates *r = &c->cost->rates[to];
    if (by_links(c->cost, from, to))
        return tsr_links_copy_ns(c->cost->links, from, to, c->bytes);
    if (!(r->sync_bytes_per_s > 0))
        return 0;
    return (r->sync_ns + (double)c->bytes / r->sync_bytes_per_s * 1e9) /
           (c->cost->problem.n_devices - 1); /* as an all-reduce of two */
}

static double transfer_ns(void *user, tsr_device_set from, tsr_device_set to, bool outputs)
{
    const tsr_model_cost *cost = user;
    const copies c = {cost, cost->row_bytes * (uint64_t)(outputs ? cost->n_outputs : cost->n_tokens)};
    return tsr_transfer_ns(cost->links ? cost->links->machine : NULL, from, to, copy_ns, &c);
}

/* Whether a weight counts in the times. Norms and biases are small, and only a few rows of an embedding are
 * read. */
static bool takes_time(const tsr_weight *weight)
{
    return weight->source->ne[1] > 1 &&
           !(weight->layer == TSR_LAYER_EMBEDDING && weight->role == TSR_WEIGHT_VOCAB_ROWS);
}

/* Whether no step reads a weight: it is of predictions, or the output matrix where embeddings are wanted. */
static bool is_no_part(const tsr_planner *planner, const tsr_weight *weight)
{
    const bool is_output = weight->layer == TSR_LAYER_OUTPUT && weight->role == TSR_WEIGHT_VOCAB_ROWS;
    return (is_output && planner->config.output.embeddings) ||
           weight->layer >= tsr_hparams_n_step_layers(&planner->shape.hparams) ||
           &weight->tensor == planner->weights.prediction.output;
}

/* A matrix that is whole on every device: a router, a compression. */
static bool is_whole(const tsr_weight *weight)
{
    return tsr_weight_class(weight) == TSR_CLASS_COUNT;
}

/* The first divided weight whose rate on some device is not known, and that device; NULL: all are. */
static const tsr_gguf_tensor *find_unknown(const tsr_planner *planner, int *device_out)
{
    const tsr_weights *weights = &planner->weights;
    for (int i = 0; i < weights->n; i++)
        for (int d = 0; takes_time(weights->list[i]) && !is_whole(weights->list[i]) && d < planner->n_devices;
             d++) {
            *device_out = d;
            if (!is_known(weights->list[i]->source->type, &planner->config.plan.rates[d]))
                return weights->list[i]->source;
        }
    return NULL;
}

bool tsr_model_cost_known(const tsr_planner *planner)
{
    int device;
    return !find_unknown(planner, &device);
}

static tsr_status check_known(const tsr_planner *planner)
{
    int device;
    const tsr_gguf_tensor *w = find_unknown(planner, &device);
    if (w)
        return tsr_fail(TSR_ERR_INVALID,
                        "the rate of device %d with %s weights (%s) is not known; measure "
                        "or describe it, or give a tensor_split",
                        device, tsr_type_name(w->type), w->name);
    return TSR_OK;
}

/* The class in whose walks a weight is read. */
static tsr_split_class_id class_of(const tsr_weight *weight)
{
    switch (tsr_weight_block(weight)) {
    case TSR_BLOCK_ATTENTION:
        return TSR_CLASS_ATTENTION;
    case TSR_BLOCK_FFN:
        return TSR_CLASS_FFN;
    default:
        return TSR_CLASS_OUTPUT;
    }
}

/* A matrix that is whole on every device takes its time on each, however few granules the device has. */
static void add_weight(const tsr_weight *weight, const tsr_model_shape *shape, precision of, int64_t n_tokens,
                       int64_t n_outputs, tsr_model_cost *cost)
{
    const tsr_split_class_id c = class_of(weight);
    if (!takes_time(weight))
        return;
    tsr_cost_class *k = &cost->classes[c];
    if (weight->layer == TSR_LAYER_OUTPUT ||
        (c == TSR_CLASS_FFN && !shape->hparams.predicts && weight->layer + 1 == shape->hparams.n_layers))
        n_tokens = n_outputs; /* tsr_block_outputs() */
    for (int d = 0; d < cost->problem.n_devices; d++) {
        double ns = matrix_ns(weight, &shape->hparams, &cost->rates[d], of, n_tokens) / k->repeats;
        if (is_whole(weight))
            k->fixed_ns[d] += ns;
        else
            k->granule_ns[d] += ns / (double)shape->granules.n[c];
        k->fixed_ns[d] += product_ns(weight, &shape->hparams, &cost->rates[d]) / k->repeats;
    }
}

/* Residual streams are sent twice: as they are, and divided by their rms (blocks/streams.c). */
static uint64_t sent_bytes(const tsr_hparams *hp)
{
    return (uint64_t)(hp->n_embd * TSR_MAX(2 * hp->n_streams, 1)) * sizeof(float);
}

tsr_status tsr_model_cost_init(const tsr_planner *planner, int64_t n_tokens, int64_t n_seq,
                               tsr_model_cost *cost)
{
    tsr_status status = TSR_OK;
    const tsr_model_shape *shape = &planner->shape;
    const tsr_weights *weights = &planner->weights;
    const tsr_model_config *config = &planner->config;
    const tsr_device_rates *rates = config->plan.rates;
    const int n_devices = planner->n_devices;
    const precision of = {.exact = tsr_reduce_type_of(config->compute.reduction) == TSR_REDUCE_EXACT,
                          .bytes = tsr_op_takes_bytes(config->compute.activation_bits)};
    TSR_TRY(check_known(planner));
    memset(cost, 0, sizeof *cost);
    cost->rates = rates;
    cost->links = config->plan.links;
    cost->n_tokens = n_tokens;
    cost->n_outputs = TSR_MIN(n_tokens, (int64_t)config->session.n_outputs_max);
    cost->row_bytes = sent_bytes(&shape->hparams);
    cost->sum_bytes = tsr_reduce_bytes(tsr_reduce_type_of(config->compute.reduction));
    cost->profile = &planner->profile;
    if (shape->hparams.by_expert)
        cost->n_touched = llround(experts_read(&shape->hparams, n_tokens) * (double)shape->hparams.n_expert);
    cost->problem = (tsr_cost_problem){.n_devices = n_devices,
                                       .n_classes = TSR_CLASS_COUNT,
                                       .classes = cost->classes,
                                       .rooms = cost->rooms,
                                       .allowed = tsr_device_set_all(TSR_MAX_DEVICES),
                                       .sync_ns = sync_ns,
                                       .walk_ns = cost->n_touched ? walk_ns : NULL,
                                       .user = cost};
    cost->transfer_ns = transfer_ns;
    for (int c = 0; c < TSR_CLASS_COUNT; c++) {
        size_t n = (size_t)TSR_MAX(shape->granules.n[c], 1);
        cost->classes[c] =
            (tsr_cost_class){.name = tsr_split_class_name(c),
                             .n_granules = shape->granules.n[c],
                             .granule_bytes = TSR_MAX((tsr_weights_class_bytes(weights, c) + n - 1) / n, 1),
                             .repeats = c == TSR_CLASS_OUTPUT ? 1 : (double)shape->hparams.n_layers};
    }
    for (int i = 0; i < weights->n; i++)
        if (!is_no_part(planner, weights->list[i]))
            add_weight(weights->list[i], shape, of, n_tokens, cost->n_outputs, cost);
    for (int d = 0; d < n_devices; d++) {
        cost->rooms[d].capacity_bytes = SIZE_MAX;
        tsr_cost_class *attention = &cost->classes[TSR_CLASS_ATTENTION];
        attention_times times = attention_times_of(planner, &rates[d], n_tokens, n_seq);
        for (int c = 0; c < TSR_CLASS_COUNT; c++) {
            cost->classes[c].fixed_ns[d] +=
                planner->profile.n_ops[c] / cost->classes[c].repeats * rates[d].op_ns;
            cost->classes[c].granule_ns[d] = TSR_MAX(cost->classes[c].granule_ns[d], LEAST_NS);
        }
        add_attention(&shape->hparams, times, d, attention);
    }
out:
    return status;
}

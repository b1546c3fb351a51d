/* The input of a plan for a model that does not run: every tensor of the file with its role and granule, and
 * the hyper-parameters of a graph whose arena replaces the real one. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "core/op.h"
#include "plan/header_only/names.h"
#include "plan/header_only/header.h"

/* -- tensors -- */

static int64_t expected_extent(const tsr_header *p, const tsr_header_layer *l, tsr_extent extent)
{
    switch (extent) {
    case TSR_EXTENT_NONE:
        break;
    case TSR_EXTENT_Q:
        return l->n_head * l->key_length;
    case TSR_EXTENT_K:
        return l->n_head_kv * l->key_length;
    case TSR_EXTENT_V:
        return l->n_head_kv * l->value_length;
    case TSR_EXTENT_QKV:
        return (l->n_head + l->n_head_kv) * l->key_length + l->n_head_kv * l->value_length;
    case TSR_EXTENT_O:
        return l->n_head * l->value_length;
    case TSR_EXTENT_KV_B:
        return l->n_head * (l->key_length - p->n_rot + l->value_length);
    case TSR_EXTENT_HEADS:
        return l->n_head;
    case TSR_EXTENT_FF:
        return l->n_ff;
    case TSR_EXTENT_FF_EXPERT:
        return p->n_ff_expert;
    case TSR_EXTENT_FF_SHARED:
        return p->n_ff_shared;
    case TSR_EXTENT_VOCAB:
        return p->n_vocab;
    }
    return 0;
}

/* The divided axis: 0 for columns and for the elements of a bias, 2 where every head has a matrix of its own,
 * otherwise 1. */
static int axis_of(const tsr_gguf_tensor *source, const tsr_tensor_row *row)
{
    if (row->role == TSR_WEIGHT_Q_COLUMNS || row->role == TSR_WEIGHT_FFN_COLUMNS || source->n_dims == 1)
        return 0;
    return row->extent == TSR_EXTENT_HEADS ? 2 : 1;
}

static tsr_status check_tensor(const tsr_header *p, const tsr_gguf_tensor *source, const tsr_tensor_row *row,
                               int axis, int64_t expected)
{
    int64_t extent = source->ne[axis];
    bool twice = row->flags & TSR_TENSOR_TWICE && extent == 2 * expected;
    bool experts = row->flags & TSR_TENSOR_EXPERT && source->n_dims == 3;
    if (extent != expected && !twice)
        return tsr_fail(
            TSR_ERR_FORMAT,
            "%s: tensor %s is [%lld, %lld, %lld, %lld]; the keys say that axis %d has %lld elements",
            tsr_gguf_path(p->gguf), source->name, (long long)source->ne[0], (long long)source->ne[1],
            (long long)source->ne[2], (long long)source->ne[3], axis, (long long)expected);
    if (experts && source->ne[2] != p->n_expert)
        return tsr_fail(TSR_ERR_FORMAT, "%s: tensor %s holds %lld experts; %s.expert_count is %lld",
                        tsr_gguf_path(p->gguf), source->name, (long long)source->ne[2], p->architecture,
                        (long long)p->n_expert);
    return TSR_OK;
}

/* Make the tensor a matrix whose rows or columns are divided. All other axes, experts included, become the
 * undivided axis. */
static void flatten(tsr_weight *weight, int axis)
{
    const int64_t *ne = weight->source->ne;
    int64_t outer = ne[2] * ne[3];
    if (axis == 1 && weight->source->n_dims > 1) {
        weight->tensor.ne[0] = ne[0] * outer;
        weight->tensor.ne[1] = ne[1];
    } else if (axis == 2) {
        weight->tensor.ne[0] = ne[0] * ne[1] * ne[3];
        weight->tensor.ne[1] = ne[2];
    }
}

/* Whether the role is that of a divided tensor of attention. */
static bool is_attention(tsr_weight_role role)
{
    return role == TSR_WEIGHT_Q_ROWS || role == TSR_WEIGHT_KV_ROWS || role == TSR_WEIGHT_Q_COLUMNS;
}

static bool is_ffn(tsr_weight_role role)
{
    return role == TSR_WEIGHT_FFN_ROWS || role == TSR_WEIGHT_FFN_COLUMNS;
}

/* `l` has the facts of the layer; NULL outside of layers. In FFN tensors `granule` is the number of elements
 * of the axis per FFN column, until find_granules() writes the granule. */
static tsr_status append_tensor(tsr_weights *w, const tsr_header *p, const tsr_header_layer *l, int layer,
                                const tsr_gguf_tensor *source, const tsr_tensor_row *row)
{
    tsr_status status = TSR_OK;
    tsr_weight *weight;
    const tsr_header_layer outside = {0};
    tsr_weight_role role = row ? row->role : layer >= 0 ? TSR_WEIGHT_FFN_WHOLE : TSR_WEIGHT_OUTPUT_WHOLE;
    TSR_TRY(tsr_weights_append(w, source, role, layer, &weight));
    if (row && row->extent != TSR_EXTENT_NONE) {
        int axis = axis_of(source, row);
        int64_t expected = expected_extent(p, l ? l : &outside, row->extent);
        TSR_TRY(check_tensor(p, source, row, axis, expected));
        flatten(weight, axis);
        weight->expert = row->flags & TSR_TENSOR_EXPERT;
        if (is_ffn(role))
            weight->granule = source->ne[axis] / expected;
    }
    if (strcmp(source->name, "token_embd.weight") == 0)
        w->embedding = &weight->tensor;
    if (strcmp(source->name, "output.weight") == 0)
        w->output = &weight->tensor;
out:
    return status;
}

static int layer_of(const char *name, int64_t layer)
{
    if (layer >= 0)
        return (int)layer;
    return strncmp(name, "token_embd", 10) == 0 ? TSR_LAYER_EMBEDDING : TSR_LAYER_OUTPUT;
}

/* -- granules -- */

/* A whole number of quantization blocks of every matrix whose FFN columns have `extent` elements. */
static int64_t ffn_block(const tsr_weights *w, int64_t extent)
{
    int64_t block = 1;
    for (int i = 0; i < w->n; i++)
        if (w->list[i]->role == TSR_WEIGHT_FFN_COLUMNS && w->list[i]->tensor.ne[0] == extent)
            block = TSR_MAX(block, tsr_type_block_elems(w->list[i]->source->type)); /* powers of 2 */
    return block;
}

static tsr_status ffn_granule(const tsr_header *p, const tsr_weights *w, int64_t extent, int64_t *granule_out)
{
    tsr_status status = tsr_granule_ffn(extent, ffn_block(w, extent), granule_out);
    return status == TSR_OK ? status
                            : tsr_fail(TSR_ERR_FORMAT, "%s: FFN columns of %s: %lld are no whole blocks",
                                       tsr_gguf_path(p->gguf), p->architecture, (long long)extent);
}

/* Length of the divided axis: FFN columns, or elements of all heads. */
static int64_t axis_extent(const tsr_weight *weight)
{
    bool columns = weight->role == TSR_WEIGHT_Q_COLUMNS || weight->role == TSR_WEIGHT_FFN_COLUMNS;
    return weight->tensor.ne[columns || weight->tensor.ne[1] == 1 ? 0 : 1];
}

/* A granule of attention is a whole number of heads. A granule of FFN columns is that of tsr_granule_ffn(),
 * the same in all tensors with as many columns. */
static tsr_status find_granules(tsr_weights *w, const tsr_header *p)
{
    tsr_status status = TSR_OK;
    int64_t block = tsr_weights_block(w, TSR_WEIGHT_Q_COLUMNS), last_layer = -1, n = 1;
    int64_t last_extent = 0, columns = 0;
    tsr_header_layer l = {0};
    for (int i = 0; i < w->n; i++) {
        tsr_weight *weight = w->list[i];
        if (is_attention(weight->role)) {
            if (weight->layer != last_layer)
                TSR_TRY(tsr_header_layer_read(p, weight->layer, &l));
            last_layer = weight->layer;
            TSR_TRY(tsr_header_attention_granules(p, &l, block, &n));
            weight->granule = axis_extent(weight) / n;
        } else if (is_ffn(weight->role)) {
            int64_t extent = axis_extent(weight) / weight->granule;
            if (extent != last_extent)
                TSR_TRY(ffn_granule(p, w, extent, &columns));
            last_extent = extent;
            weight->granule *= columns;
        }
    }
out:
    return status;
}

static tsr_status declare(tsr_weights *w, const tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    tsr_header p;
    tsr_header_layer l = {0};
    int64_t last_layer = -1;
    (void)hp;
    TSR_TRY(tsr_header_read(w->gguf, &p));
    for (int64_t i = 0; i < tsr_gguf_n_tensors(w->gguf); i++) {
        const tsr_gguf_tensor *source = tsr_gguf_tensor_at(w->gguf, i);
        const tsr_tensor_row *row = tsr_arch_table_find(source->name);
        const int64_t layer = tsr_weight_name_layer(source->name);
        if ((row && row->flags & TSR_TENSOR_CALLER) || layer >= p.n_layers)
            continue;
        if (layer >= 0 && layer != last_layer)
            TSR_TRY(tsr_header_layer_read(&p, layer, &l));
        last_layer = layer >= 0 ? layer : last_layer;
        TSR_TRY(append_tensor(w, &p, layer >= 0 ? &l : NULL, layer_of(source->name, layer), source, row));
    }
    TSR_TRY(find_granules(w, &p));
    if (!w->output)
        TSR_TRY(tsr_weights_tie_output(w));
out:
    return status;
}

const tsr_arch tsr_arch_header_only = {.name = "header only", .header_only = true, .declare = declare};

/* For unknown names: matrices of layers are divided by rows; the experts of a layer are one matrix with the
 * rows of all. */
static tsr_status declare_by_size(tsr_weights *w, const tsr_hparams *hp)
{
    tsr_status status = TSR_OK;
    (void)hp;
    for (int64_t i = 0; i < tsr_gguf_n_tensors(w->gguf); i++) {
        const tsr_gguf_tensor *source = tsr_gguf_tensor_at(w->gguf, i);
        int64_t layer = tsr_weight_name_layer(source->name);
        bool embedding = strcmp(source->name, "token_embd.weight") == 0;
        bool output = strcmp(source->name, "output.weight") == 0 && source->ne[1] == hp->n_vocab;
        bool matrix = layer >= 0 && source->n_dims > 1 && source->ne[1] > 1;
        tsr_weight *weight;
        TSR_TRY(tsr_weights_append(w, source,
                                   embedding || output ? TSR_WEIGHT_VOCAB_ROWS
                                   : matrix            ? TSR_WEIGHT_FFN_ROWS
                                   : layer >= 0        ? TSR_WEIGHT_FFN_WHOLE
                                                       : TSR_WEIGHT_OUTPUT_WHOLE,
                                   layer_of(source->name, layer), &weight));
        weight->granule = matrix;
        w->embedding = embedding ? &weight->tensor : w->embedding;
        w->output = output ? &weight->tensor : w->output;
    }
    if (!w->output && w->embedding)
        TSR_TRY(tsr_weights_tie_output(w));
out:
    return status;
}

const tsr_arch tsr_arch_by_size = {.name = "by size", .header_only = true, .declare = declare_by_size};

/* -- the shape -- */

static void remark(tsr_model_shape *shape, const char *format, ...) TSR_PRINTF(2, 3);

static void remark(tsr_model_shape *shape, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(shape->remarks[shape->n_remarks++], sizeof shape->remarks[0], format, args);
    va_end(args);
}

static void add_kv(const tsr_header *p, const tsr_header_layer *l, tsr_kv_shape *kv)
{
    double part = 1 / (double)p->n_layers;
    kv->whole = p->kv_lora_rank > 0;
    kv->k_elems += part * (double)(kv->whole ? p->kv_lora_rank + p->n_rot : l->n_head_kv * l->key_length);
    kv->v_elems += part * (double)(kv->whole ? 0 : l->n_head_kv * l->value_length);
    kv->windowed += part * l->windowed;
    kv->window = p->window;
}

/* The graph's attention is as wide as the widest layer, and has as many granules as the layer with the
 * fewest. */
static tsr_status find_attention(const tsr_header *p, const tsr_weights *w, tsr_model_shape *shape)
{
    tsr_status status = TSR_OK;
    tsr_hparams *hp = &shape->hparams;
    int64_t block = tsr_weights_block(w, TSR_WEIGHT_Q_COLUMNS), fewest = INT64_MAX, n, n_head = 1;
    tsr_header_layer l, smallest = {0};
    for (int64_t i = 0; i < p->n_layers; i++) {
        TSR_TRY(tsr_header_layer_read(p, i, &l));
        TSR_TRY(tsr_header_attention_granules(p, &l, block, &n));
        if (l.n_head > 0 && n < fewest) {
            fewest = n;
            smallest = l;
        }
        add_kv(p, &l, &hp->kv);
        n_head = TSR_MAX(n_head, l.n_head);
        hp->head_dim = TSR_MAX(hp->head_dim, TSR_MAX(l.key_length, l.value_length));
    }
    if (fewest == INT64_MAX)
        fewest = smallest.n_head_kv = 1;
    if (p->kv_lora_rank > 0) /* queries are as wide as the compressed row */
        hp->head_dim = p->kv_lora_rank + p->n_rot;
    hp->n_head_kv = smallest.n_head_kv;
    hp->n_head = (n_head + hp->n_head_kv - 1) / hp->n_head_kv * hp->n_head_kv;
    hp->head_dim = TSR_MIN(TSR_MAX(hp->head_dim, 2), TSR_MAX_HEAD_DIM) & ~INT64_C(1);
    hp->rope[TSR_ROPE_MAIN].n_rot = hp->head_dim;
    shape->granules.n[TSR_CLASS_ATTENTION] = fewest;
    shape->granules.kv_heads = (hp->n_head_kv + fewest - 1) / fewest;
    shape->granules.size[TSR_CLASS_ATTENTION] = shape->granules.kv_heads;
out:
    return status;
}

/* The granules are those of the experts' columns, or of the shortest dense FFN. The graph's FFN has as many
 * granules, and is as wide as the widest dense FFN, or as all experts that a token uses. */
static tsr_status find_ffn(const tsr_header *p, const tsr_weights *w, tsr_model_shape *shape)
{
    tsr_status status = TSR_OK;
    tsr_header_layer l;
    tsr_model_granules *g = &shape->granules;
    int64_t widest = p->n_expert_used * p->n_ff_expert + p->n_ff_shared, shortest = INT64_MAX;
    for (int64_t i = 0; i < p->n_layers; i++) {
        TSR_TRY(tsr_header_layer_read(p, i, &l));
        widest = TSR_MAX(widest, l.n_ff);
        if (l.n_ff > 0)
            shortest = TSR_MIN(shortest, l.n_ff);
    }
    if (p->n_expert > 0 && p->n_ff_expert > 0)
        shortest = p->n_ff_expert;
    if (shortest == INT64_MAX)
        return tsr_fail(TSR_ERR_FORMAT, "%s: %s.feed_forward_length is 0 or missing", tsr_gguf_path(p->gguf),
                        p->architecture);
    TSR_TRY(ffn_granule(p, w, shortest, &g->size[TSR_CLASS_FFN]));
    g->n[TSR_CLASS_FFN] = (shortest + g->size[TSR_CLASS_FFN] - 1) / g->size[TSR_CLASS_FFN];
    g->ffn_columns = (widest + g->n[TSR_CLASS_FFN] - 1) / g->n[TSR_CLASS_FFN];
    shape->hparams.n_ff = g->ffn_columns * g->n[TSR_CLASS_FFN];
out:
    return status;
}

/* As many granules as the shortest matrix has rows, up to a number that is fine enough for any split. */
static tsr_status find_rows(const tsr_header *p, const tsr_weights *w, tsr_model_shape *shape)
{
    enum { FINE = 1024 };
    tsr_model_granules *g = &shape->granules;
    tsr_status status = find_attention(p, w, shape);
    if (status != TSR_OK)
        return status;
    g->n[TSR_CLASS_FFN] = FINE;
    for (int i = 0; i < w->n; i++)
        if (w->list[i]->role == TSR_WEIGHT_FFN_ROWS)
            g->n[TSR_CLASS_FFN] = TSR_MIN(g->n[TSR_CLASS_FFN], w->list[i]->tensor.ne[1]);
    g->ffn_columns = g->size[TSR_CLASS_FFN] = 1;
    shape->hparams.n_ff = g->n[TSR_CLASS_FFN];
    if (shape->hparams.kv.k_elems == 0) { /* no KV heads to divide: attention is divided as the rows are */
        g->n[TSR_CLASS_ATTENTION] = g->n[TSR_CLASS_FFN];
        shape->hparams.n_head = shape->hparams.n_head_kv = g->n[TSR_CLASS_FFN];
    }
    return TSR_OK;
}

static void fill_hparams(const tsr_header *p, tsr_hparams *hp)
{
    tsr_gguf_string name;
    *hp = (tsr_hparams){.n_layers = p->n_layers,
                        .n_embd = p->n_embd,
                        .n_vocab = p->n_vocab,
                        .n_ctx_train = TSR_MAX(p->n_ctx_train, 1),
                        .n_expert = p->n_expert,
                        .n_expert_used = p->n_expert_used,
                        .norm_eps = 1e-5f,
                        .rope_interleaved = true,
                        .rope[TSR_ROPE_MAIN] = {.base = 10000, .factor = 1, .attn_factor = 1}};
    snprintf(hp->architecture, sizeof hp->architecture, "%s", p->architecture);
    if (tsr_gguf_get_string(p->gguf, "general.name", &name) == TSR_OK)
        snprintf(hp->name, sizeof hp->name, "%.*s", (int)TSR_MIN(name.bytes, sizeof hp->name - 1), name.data);
    tsr_fail_clear();
}

/* All layers of the graph are of one kind. */
static void make_layers_alike(tsr_model_shape *shape)
{
    tsr_hparams *hp = &shape->hparams;
    hp->n_kinds = 1;
    hp->kinds[0] = (tsr_layer_kind){.n_head = hp->n_head,
                                    .n_head_kv = hp->n_head_kv,
                                    .head_dim = hp->head_dim,
                                    .n_ff = hp->n_ff,
                                    .rope_q = TSR_ROPE_MAIN,
                                    .rope_k = TSR_ROPE_MAIN};
    shape->granules.kind_heads[0] = shape->granules.kv_heads;
}

/* Tensors that the table lacks are whole on every device. One remark names the first of them. */
static void remark_unknown_tensors(tsr_model_shape *shape)
{
    const char *first = NULL;
    int64_t n = 0;
    for (int64_t i = 0; i < tsr_gguf_n_tensors(shape->gguf); i++) {
        const char *name = tsr_gguf_tensor_at(shape->gguf, i)->name;
        if (tsr_arch_table_find(name) || tsr_weight_name_layer(name) >= shape->hparams.n_layers)
            continue;
        first = first ? first : name;
        n++;
    }
    if (n > 0)
        remark(shape, "%lld tensor%s of unknown names (%.48s) counted whole on every device", (long long)n,
               n == 1 ? " is" : "s are", first);
}

/* Windows of models whose files do not say which layers have one. */
static void remark_window(const tsr_header *p, tsr_model_shape *shape)
{
    char key[96];
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", p->architecture);
    if (p->window > 0 && !tsr_gguf_has_key(p->gguf, key))
        remark(shape,
               "KV counts every layer with the whole context: the file has a sliding window of %lld tokens, "
               "but does not say of which layers",
               (long long)p->window);
}

static void write_remarks(const tsr_header *p, const char *reason, tsr_model_shape *shape)
{
    if (p->by_size) {
        remark(shape,
               "architecture \"%s\" is not known: planned by size only; matrices are divided by rows, "
               "activations are not counted, %s",
               p->architecture,
               shape->hparams.kv.k_elems > 0 ? "KV is that of ordinary attention" : "nor is KV");
        return;
    }
    remark(shape, "arena estimated: architecture %s is planned, not run%s%.160s", p->architecture,
           reason[0] ? ": " : "", reason);
    remark_unknown_tensors(shape);
    remark_window(p, shape);
}

/* The reason why an architecture that runs does not run this file: the error's sentence without the path at
 * its beginning. Of an architecture that does not run, the name is the reason. */
static void copy_reason(const tsr_gguf *gguf, char *reason, size_t capacity)
{
    const char *text = tsr_last_error(), *path = tsr_gguf_path(gguf);
    const tsr_arch *arch;
    size_t n = strlen(path);
    if (strncmp(text, path, n) == 0 && strncmp(text + n, ": ", 2) == 0)
        text += n + 2;
    snprintf(reason, capacity, "%s", text);
    if (tsr_arch_find(gguf, &arch) != TSR_OK)
        reason[0] = '\0';
    tsr_fail_clear();
}

tsr_status tsr_plan_shape_read(const tsr_gguf *gguf, bool prediction, tsr_model_shape *shape_out)
{
    tsr_header p;
    tsr_weights weights = {0};
    tsr_model_shape shape = {.gguf = gguf};
    char reason[256];
    tsr_status status = tsr_model_shape_read(gguf, prediction, shape_out);
    if (status != TSR_ERR_UNSUPPORTED)
        return status;
    copy_reason(gguf, reason, sizeof reason);
    if (prediction)
        return tsr_fail(
            TSR_ERR_UNSUPPORTED,
            "%s: the model can be planned, but not run, and without a prediction layer; leave out "
            "--prediction (config.prediction.load)",
            tsr_gguf_path(gguf));
    TSR_TRY(tsr_header_read(gguf, &p));
    fill_hparams(&p, &shape.hparams);
    shape.arch = p.by_size ? &tsr_arch_by_size : &tsr_arch_header_only;
    TSR_TRY(tsr_weights_init(&weights, gguf, p.n_layers));
    TSR_TRY(tsr_arch_declare(shape.arch, &weights, &shape.hparams, NULL));
    if (p.by_size) {
        TSR_TRY(find_rows(&p, &weights, &shape));
    } else {
        TSR_TRY(find_attention(&p, &weights, &shape));
        TSR_TRY(find_ffn(&p, &weights, &shape));
    }
    make_layers_alike(&shape);
    shape.granules.n[TSR_CLASS_OUTPUT] = p.n_vocab;
    shape.granules.size[TSR_CLASS_OUTPUT] = TSR_GRANULE_ROWS;
    write_remarks(&p, reason, &shape);
    *shape_out = shape;
out:
    tsr_weights_free(&weights);
    return status;
}

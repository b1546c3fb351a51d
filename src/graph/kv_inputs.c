/* Making and filling the inputs of a step. The tokens of a step may be of any sequences; a sequence of the
 * step has a row of each page table. */
#include "graph/kv_inputs.h"

#include <string.h>

#include "core/mem.h"

/* -- creation -- */

static void free_inputs(tsr_kv_inputs *inputs)
{
    if (!inputs)
        return;
    tsr_mem_free(inputs->row_of_seq);
    tsr_mem_free(inputs->row_seqs);
    tsr_mem_free(inputs->seq_rows);
    tsr_mem_free(inputs->state_rows);
    tsr_mem_free(inputs);
}

void tsr_kv_inputs_free_all(tsr_kv_inputs *first)
{
    while (first) {
        tsr_kv_inputs *next = first->next;
        free_inputs(first);
        first = next;
    }
}

static tsr_status alloc_arrays(tsr_kv_inputs *inputs)
{
    tsr_status status = TSR_OK;
    const size_t n_tokens = (size_t)inputs->n_tokens, n_rows = (size_t)inputs->max_rows;
    const size_t n_seqs = (size_t)tsr_kv_n_seqs(inputs->kv);
    TSR_TRY(tsr_mem_array(n_seqs, sizeof(int32_t), "step inputs", &inputs->row_of_seq));
    TSR_TRY(tsr_mem_array(n_rows, 3 * sizeof(int32_t), "step inputs", &inputs->row_seqs));
    TSR_TRY(tsr_mem_array(n_tokens, 3 * sizeof(int32_t), "step inputs", &inputs->seq_rows));
    TSR_TRY(tsr_mem_array(n_rows, sizeof(tsr_state_row), "step inputs", &inputs->state_rows));
    inputs->row_tokens = inputs->row_seqs + n_rows;
    inputs->row_lengths = inputs->row_tokens + n_rows;
    inputs->positions = inputs->seq_rows + n_tokens;
    inputs->next_in_seq = inputs->positions + n_tokens;
    memset(inputs->row_of_seq, -1, n_seqs * sizeof(int32_t));
out:
    return status;
}

static void add_tensors(tsr_kv_inputs *in)
{
    tsr_graph *graph = in->graph;
    in->seq_row = tsr_graph_input(graph, TSR_TYPE_I32, in->n_tokens, 1, "seq_row");
    in->position = tsr_graph_input(graph, TSR_TYPE_I32, in->n_tokens, 1, "position");
    for (int g = 0; g < tsr_kv_n_groups(in->kv); g++)
        in->page_tables[g] =
            tsr_graph_input(graph, TSR_TYPE_I32, tsr_kv_max_pages(in->kv, g), in->max_rows, "page_table");
    if (tsr_kv_has_states(in->kv)) {
        in->states.rows = tsr_graph_input(graph, TSR_TYPE_I32, 3, in->max_rows, "state_rows");
        in->states.next = tsr_graph_input(graph, TSR_TYPE_I32, in->n_tokens, 1, "next_token");
    }
}

/* Layers with a window keep what a token sees and what a step of n_batch tokens adds. */
static tsr_status check_step(const tsr_graph *graph, const tsr_kv *kv, int64_t n_tokens)
{
    if (!kv)
        return tsr_fail(TSR_ERR_INVALID, "tsr_graph_kv_inputs: the KV region is NULL");
    const int64_t most = tsr_kv_max_step(kv);
    if (tsr_kv_runtime(kv) != graph->rt)
        return tsr_fail(TSR_ERR_INVALID, "tsr_graph_kv_inputs: the KV region is of another runtime than the "
                                         "graph; create it on the graph's");
    if (n_tokens < 1 || n_tokens > most)
        return tsr_fail(TSR_ERR_INVALID,
                        "tsr_graph_kv_inputs: a step of %lld tokens; 1 to %lld are possible in this KV "
                        "region; with windows, create it with a larger n_batch",
                        (long long)n_tokens, (long long)most);
    return TSR_OK;
}

static tsr_status create(tsr_graph *graph, tsr_kv *kv, int64_t n_tokens, tsr_kv_inputs **inputs_out)
{
    tsr_status status = TSR_OK;
    tsr_kv_inputs *inputs = NULL;
    TSR_TRY(check_step(graph, kv, n_tokens));
    TSR_TRY(TSR_NEW(&inputs, "step inputs"));
    inputs->graph = graph;
    inputs->kv = kv;
    inputs->n_tokens = n_tokens;
    inputs->max_rows = TSR_MIN(n_tokens, (int64_t)tsr_kv_n_seqs(kv)); /* each has at least a token */
    TSR_TRY(alloc_arrays(inputs));
    add_tensors(inputs);
    TSR_TRY(graph->status);
    *inputs_out = inputs;
    inputs = NULL;
out:
    free_inputs(inputs);
    return status;
}

tsr_kv_inputs *tsr_graph_kv_inputs(tsr_graph *graph, tsr_kv *kv, int64_t n_tokens)
{
    tsr_kv_inputs *inputs = NULL;
    if (graph->status != TSR_OK)
        return NULL;
    const tsr_status status = create(graph, kv, n_tokens, &inputs);
    if (status != TSR_OK)
        return tsr_graph_fail(graph, status);
    inputs->next = graph->kv_inputs;
    graph->kv_inputs = inputs;
    return inputs;
}

static bool are_of(tsr_graph *graph, const char *op, const tsr_kv_inputs *inputs, const tsr_tensor *x)
{
    if (inputs && inputs->graph == graph)
        return true;
    if (inputs || graph->status == TSR_OK)
        tsr_graph_refuse(graph, op, x, "the KV inputs must be a tsr_graph_kv_inputs() of the same graph");
    return false;
}

bool tsr_kv_inputs_check(tsr_graph *graph, const char *op, const tsr_kv_inputs *inputs, int layer,
                         const tsr_tensor *x)
{
    if (!are_of(graph, op, inputs, x))
        return false;
    if (tsr_kv_group_of(inputs->kv, layer) < 0)
        tsr_graph_refuse(graph, op, x, "there is no such KV layer");
    else if (x->ne[1] != inputs->n_tokens)
        tsr_graph_refuse(graph, op, x, "it must have a row for each token of the KV inputs");
    else
        return true;
    return false;
}

bool tsr_kv_inputs_check_states(tsr_graph *graph, const char *op, const tsr_kv_inputs *inputs, int layer,
                                int state, int n, const tsr_tensor *x)
{
    if (!are_of(graph, op, inputs, x))
        return false;
    if (state >= 0 && state <= tsr_kv_n_states(inputs->kv, layer) - n)
        return true;
    tsr_graph_fail(graph,
                   tsr_fail(TSR_ERR_INVALID,
                            "%s: layer %d of the KV region has %d states, and %d from number %d on are "
                            "used; list them in its tsr_kv_layer_config.states",
                            op, layer, tsr_kv_n_states(inputs->kv, layer), n, state));
    return false;
}

/* -- filling -- */

static tsr_status set_if_read(tsr_tensor *input, const void *data, size_t offset, size_t bytes)
{
    const bool is_read = input->placement.sharding != TSR_SHARDING_NONE;
    return is_read && bytes > 0 ? tsr_tensor_set(input, data, offset, bytes) : TSR_OK;
}

/* Entries without a page are never read. */
static tsr_status set_page_table(const tsr_kv_inputs *in, int group)
{
    tsr_status status = TSR_OK;
    const size_t row_bytes = (size_t)tsr_kv_max_pages(in->kv, group) * sizeof(int32_t);
    for (int r = 0; r < in->n_rows; r++) {
        tsr_kv_span span;
        const int32_t *pages = tsr_kv_pages(in->kv, group, in->row_seqs[r], &span);
        TSR_TRY(set_if_read(in->page_tables[group], pages + span.first,
                            (size_t)r * row_bytes + (size_t)span.first * sizeof(int32_t),
                            (size_t)(span.end - span.first) * sizeof(int32_t)));
    }
out:
    return status;
}

/* The slots of every sequence of the step, and the order of its tokens. */
static tsr_status set_states(tsr_kv_inputs *in)
{
    tsr_status status = TSR_OK;
    tsr_state_row *rows = in->state_rows;
    if (!in->states.rows)
        return TSR_OK;
    for (int64_t r = 0; r < in->max_rows; r++)
        rows[r] = r < in->n_rows ? tsr_kv_state_row(in->kv, in->row_seqs[r]) : (tsr_state_row){-1, -1, -1};
    for (int64_t t = in->n_tokens - 1; t >= 0; t--) {
        tsr_state_row *row = &rows[in->seq_rows[t]];
        in->next_in_seq[t] = row->first;
        row->first = (int32_t)t;
    }
    TSR_TRY(set_if_read(in->states.rows, rows, 0, (size_t)in->max_rows * sizeof *rows));
    TSR_TRY(set_if_read(in->states.next, in->next_in_seq, 0, (size_t)in->n_tokens * sizeof(int32_t)));
out:
    return status;
}

/* Give every sequence of the step a row, in the order of their first tokens, and count its tokens. */
static tsr_status find_rows(tsr_kv_inputs *in, const int32_t *seqs)
{
    tsr_status status = TSR_OK;
    in->n_rows = 0;
    for (int64_t t = 0; t < in->n_tokens; t++) {
        const int32_t seq = seqs ? seqs[t] : 0;
        if (seq < 0 || seq >= tsr_kv_n_seqs(in->kv)) {
            status = tsr_fail(TSR_ERR_INVALID,
                              "token %lld is for sequence %d; the KV region has sequences 0 to %d",
                              (long long)t, seq, tsr_kv_n_seqs(in->kv) - 1);
            break;
        }
        int32_t *row = &in->row_of_seq[seq];
        if (*row < 0) {
            *row = in->n_rows;
            in->row_seqs[in->n_rows] = seq;
            in->row_tokens[in->n_rows++] = 0;
        }
        in->row_tokens[*row]++;
        in->seq_rows[t] = *row;
    }
    for (int r = 0; r < in->n_rows; r++)
        in->row_of_seq[in->row_seqs[r]] = -1;
    return status;
}

static tsr_status fill(tsr_kv_inputs *in)
{
    tsr_status status = TSR_OK;
    const size_t bytes = (size_t)in->n_tokens * sizeof(int32_t);
    TSR_TRY(set_if_read(in->seq_row, in->seq_rows, 0, bytes));
    TSR_TRY(set_if_read(in->position, in->positions, 0, bytes));
    for (int g = 0; g < tsr_kv_n_groups(in->kv); g++)
        TSR_TRY(set_page_table(in, g));
    TSR_TRY(set_states(in));
out:
    return status;
}

tsr_status tsr_kv_inputs_set(tsr_kv_inputs *in, const int32_t *seqs, const int32_t *positions)
{
    tsr_status status = TSR_OK;
    TSR_TRY(find_rows(in, seqs));
    memcpy(in->positions, positions, (size_t)in->n_tokens * sizeof *positions);
    TSR_TRY(fill(in));
out:
    return status;
}

/* Lengthen the sequences of the step, and number their tokens. */
static tsr_status append_rows(tsr_kv_inputs *in, int *n_appended)
{
    tsr_status status = TSR_OK;
    for (int r = 0; r < in->n_rows; r++) {
        in->row_lengths[r] = (int32_t)tsr_kv_length(in->kv, in->row_seqs[r]);
        TSR_TRY(tsr_kv_append(in->kv, in->row_seqs[r], in->row_tokens[r]));
        in->row_tokens[r] = 0; /* from here on the tokens that are numbered */
        ++*n_appended;
    }
    for (int64_t t = 0; t < in->n_tokens; t++) {
        const int32_t row = in->seq_rows[t];
        in->positions[t] = in->row_lengths[row] + in->row_tokens[row]++;
    }
out:
    return status;
}

/* What append_rows() has added can always be cut off again. */
tsr_status tsr_kv_inputs_append(tsr_kv_inputs *in, const int32_t *seqs, int32_t *positions_out)
{
    tsr_status status = TSR_OK;
    int n_appended = 0;
    if (!in)
        return tsr_fail(TSR_ERR_INVALID, "tsr_kv_inputs_append: the inputs are NULL");
    if (!in->graph->program)
        return tsr_fail(TSR_ERR_INVALID, "tsr_kv_inputs_append: the graph of the inputs has no program; "
                                         "call tsr_program_compile() before");
    TSR_TRY(find_rows(in, seqs));
    TSR_TRY(append_rows(in, &n_appended));
    TSR_TRY(fill(in));
    if (positions_out)
        memcpy(positions_out, in->positions, (size_t)in->n_tokens * sizeof *positions_out);
out:
    for (int r = 0; r < n_appended && status != TSR_OK; r++)
        (void)!tsr_kv_trim(in->kv, in->row_seqs[r], in->row_lengths[r]);
    return status;
}

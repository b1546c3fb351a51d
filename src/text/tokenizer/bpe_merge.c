/* The merge loop, with a binary heap of candidates; see bpe_merge.h for the rule.
 *
 * A merge adds at most two candidates and removes one, so a heap of twice the symbols suffices and the
 * loop does not allocate. Candidates invalidated by a merge stay in the heap and are dropped when they are
 * popped: symbols only grow, so a pair of unchanged length is unchanged. */
#include "text/tokenizer/bpe_merge.h"

#include "core/mem.h"

tsr_status tsr_merger_begin(tsr_merger *merger, const char *text, size_t n_symbols)
{
    merger->text = text;
    merger->n_symbols = 0;
    if (n_symbols <= merger->capacity)
        return TSR_OK;

    /* The old contents are not needed, so memory is freed and allocated instead of reallocated. */
    size_t capacity = TSR_MAX(n_symbols, (size_t)64), doubled;
    tsr_merger_release(merger);
    if (tsr_mul_size(capacity, 2, &doubled)) {
        merger->symbols = tsr_mem_realloc(NULL, capacity, sizeof *merger->symbols);
        merger->heap = tsr_mem_realloc(NULL, doubled, sizeof *merger->heap);
    }
    if (!merger->symbols || !merger->heap)
        return tsr_fail(TSR_ERR_MEMORY,
                        "out of host memory for merging a word of %zu symbols; split the text", n_symbols);
    merger->capacity = capacity;
    return TSR_OK;
}

void tsr_merger_release(tsr_merger *merger)
{
    tsr_mem_free(merger->symbols);
    tsr_mem_free(merger->heap);
    merger->symbols = NULL;
    merger->heap = NULL;
    merger->capacity = 0;
}

void tsr_merger_add(tsr_merger *merger, uint32_t bytes, int32_t token)
{
    int32_t i = merger->n_symbols++;
    tsr_symbol *symbol = &merger->symbols[i];
    *symbol = (tsr_symbol){.begin = 0, .bytes = bytes, .prev = i - 1, .next = -1, .token = token};
    if (i > 0) {
        symbol->begin = symbol[-1].begin + symbol[-1].bytes;
        symbol[-1].next = i;
    }
}

static void heap_push(tsr_merger *merger, tsr_merge_candidate candidate)
{
    tsr_merge_candidate *heap = merger->heap;
    size_t at = merger->n_heap++;
    while (at > 0 && candidate.order < heap[(at - 1) / 2].order) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = candidate;
}

static tsr_merge_candidate heap_pop(tsr_merger *merger)
{
    tsr_merge_candidate *heap = merger->heap, first = heap[0], last = heap[--merger->n_heap];
    size_t n = merger->n_heap, at = 0;
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1].order < heap[child].order)
            child++;
        if (last.order <= heap[child].order)
            break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return first;
}

/* The merge of two neighbours, if there is one. */
static bool find_merged(const tsr_merger *merger, const tsr_symbol *left, const tsr_symbol *right,
                        uint32_t *rank_out, int32_t *merged_out)
{
    const tsr_vocab *vocab = merger->vocab;

    if (vocab->kind == TSR_VOCAB_BPE) {
        const tsr_vocab_merge *merge = tsr_vocab_find_merge(vocab, left->token, right->token);
        if (!merge)
            return false;
        *rank_out = merge->rank;
        *merged_out = merge->merged;
        return true;
    }
    int32_t id = tsr_vocab_find(vocab, merger->text + left->begin, (size_t)left->bytes + right->bytes);
    if (!tsr_vocab_is(vocab, id, TSR_TOKEN_TEXT_TYPES))
        return false;
    *rank_out = vocab->tokens[id].rank;
    *merged_out = id;
    return true;
}

static void consider(tsr_merger *merger, int32_t left)
{
    const tsr_symbol *a = &merger->symbols[left];
    uint32_t rank;
    int32_t merged;

    if (a->next < 0)
        return;
    const tsr_symbol *b = &merger->symbols[a->next];
    if (find_merged(merger, a, b, &rank, &merged))
        heap_push(merger,
                  (tsr_merge_candidate){(uint64_t)rank << 32 | (uint32_t)left, a->bytes + b->bytes, merged});
}

void tsr_merger_run(tsr_merger *merger)
{
    merger->n_heap = 0;
    for (int32_t i = 0; i + 1 < merger->n_symbols; i++)
        consider(merger, i);

    while (merger->n_heap > 0) {
        tsr_merge_candidate candidate = heap_pop(merger);
        int32_t at = (int32_t)(uint32_t)candidate.order;
        tsr_symbol *left = &merger->symbols[at];
        if (left->bytes == 0 || left->next < 0)
            continue;
        tsr_symbol *right = &merger->symbols[left->next];
        if (left->bytes + right->bytes != candidate.bytes)
            continue;

        left->bytes += right->bytes;
        left->next = right->next;
        left->token = candidate.merged;
        right->bytes = 0;
        if (left->next >= 0)
            merger->symbols[left->next].prev = at;
        if (left->prev >= 0)
            consider(merger, left->prev);
        consider(merger, at);
    }
}

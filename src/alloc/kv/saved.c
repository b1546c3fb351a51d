/* Functions that writing and reading of saved sequences share (alloc/kv/saved.h). */
#include "alloc/kv/saved.h"

#include "alloc/kv/state.h"
#include "core/checksum.h"
#include "core/mem.h"

tsr_saved_header tsr_saved_header_of(const tsr_kv *kv, uint64_t model)
{
    tsr_saved_header header = {.magic = TSR_SAVED_MAGIC,
                               .version = TSR_SAVED_VERSION,
                               .model = model,
                               .n_groups = (uint32_t)tsr_kv_n_groups(kv),
                               .type_k = (uint32_t)kv->type_k,
                               .type_v = (uint32_t)kv->type_v,
                               .state_bytes = tsr_kv_state_bytes(kv)};
    for (int g = 0; g < tsr_kv_n_groups(kv); g++)
        header.groups[g] = (tsr_saved_group){.window = (uint64_t)tsr_kv_window(kv, g),
                                             .page_positions = (uint64_t)tsr_kv_page_positions(kv, g),
                                             .page_bytes = tsr_kv_page_bytes(kv, g)};
    return header;
}

tsr_saved_sequence tsr_saved_sequence_of(const tsr_kv *kv, int seq)
{
    tsr_saved_sequence s = {.id = seq, .parent = -1, .length = tsr_kv_length(kv, seq)};
    for (int g = 0; g < tsr_kv_n_groups(kv); g++)
        s.first[g] = tsr_kv_saved_span(kv, g, seq).first;
    return s;
}

static int pages_for(const tsr_saved_header *header, uint32_t group, int64_t n_tokens)
{
    const int64_t page_positions = (int64_t)header->groups[group].page_positions;
    return (int)((n_tokens + page_positions - 1) / page_positions);
}

tsr_kv_span tsr_saved_span(const tsr_saved_header *header, const tsr_saved_sequence *sequences,
                           uint32_t index, uint32_t group)
{
    const tsr_saved_sequence *s = &sequences[index];
    return (tsr_kv_span){s->first[group], pages_for(header, group, s->length)};
}

bool tsr_saved_is_shared(const tsr_saved_header *header, const tsr_saved_sequence *sequences, uint32_t index,
                         uint32_t group, int page)
{
    const tsr_saved_sequence *s = &sequences[index];
    if (s->parent < 0)
        return false;
    tsr_kv_span parent = tsr_saved_span(header, sequences, (uint32_t)s->parent, group);
    int64_t shared = s->shared == s->length ? pages_for(header, group, s->length)
                                            : s->shared / (int64_t)header->groups[group].page_positions;
    return page >= parent.first && page < parent.end && page < shared;
}

size_t tsr_saved_page_bytes(const tsr_saved_header *header)
{
    size_t bytes = (size_t)header->state_bytes;
    for (uint32_t g = 0; g < header->n_groups; g++)
        bytes = TSR_MAX(bytes, (size_t)header->groups[g].page_bytes);
    return bytes;
}

tsr_status tsr_saved_agree_on(const tsr_kv *kv, const int *seqs, int n_seqs, tsr_status mine,
                              const char *what)
{
    uint64_t mark = tsr_hash_words(0, &n_seqs, sizeof n_seqs);
    if (seqs && n_seqs > 0)
        mark = tsr_hash_words(mark, seqs, (size_t)n_seqs * sizeof *seqs);
    return tsr_processes_agree_on(kv->rt->processes, mine, what, mark);
}

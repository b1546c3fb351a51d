/* The definition of a KV region. */
#ifndef TSR_ALLOC_KV_STATE_H
#define TSR_ALLOC_KV_STATE_H

#include "alloc/kv/group.h"
#include "alloc/kv/recurrent.h"
#include "core/track.h"

struct tsr_kv {
    tsr_tracked tracked;
    tsr_runtime *rt;
    int n_devices, n_layers, n_groups, n_seq_max;
    int64_t page_tokens, n_ctx;
    tsr_type type_k, type_v;
    tsr_kv_rows *rows; /* [n_layers] */
    int *group_of;     /* [n_layers]; -1: no KV heads */
    int64_t *lengths;  /* [n_seq_max] tokens of every sequence */
    tsr_kv_group groups[TSR_KV_MAX_GROUPS];
    tsr_kv_states states;
};

#endif

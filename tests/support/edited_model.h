/* A small llama with faults: keys and tensors that are missing, wrong or additional. */
#ifndef TSR_TESTS_EDITED_MODEL_H
#define TSR_TESTS_EDITED_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include <tsr/types.h>

enum { N_LAYERS = 2, N_EMBD = 64, N_HEAD = 4, N_HEAD_KV = 2, HEAD_DIM = 16, N_FF = 256, N_VOCAB = 96 };

typedef enum how { DROP = 1, U32, I32, F32, BOOL, U64, STRING, U32S, STRINGS, SHAPE, ADD, TYPE, FACTORS } how;

/* A change to the key or tensor `name`; a key that the model does not have is added. */
typedef struct edit {
    const char *name;
    how how;
    double number;    /* U32, I32, F32, BOOL, U64; FACTORS: every one */
    const char *text; /* STRING */
    uint32_t list[4]; /* U32S */
    size_t n;         /* U32S, STRINGS, FACTORS */
    int64_t ne[3];    /* SHAPE; ADD: a tensor in F32 */
    int n_dims;       /* SHAPE, ADD */
    tsr_type type;    /* TYPE */
} edit;

enum { MAX_EDITS = 3 };

/* edits[MAX_EDITS] ends early with a name that is NULL; NULL: no changes. */
void edited_model_write(const char *path, const edit *edits);

#endif

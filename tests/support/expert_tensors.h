/* A copy of a mixture of experts with a tensor for each expert, as converters wrote them at first. */
#ifndef TSR_TESTS_EXPERT_TENSORS_H
#define TSR_TESTS_EXPERT_TENSORS_H

typedef enum expert_order {
    EXPERTS_BY_MATRIX, /* all gates of a layer, then other matrices: adjacent */
    EXPERTS_BY_EXPERT, /* all matrices of an expert, then the next: at a distance */
    EXPERTS_SHUFFLED   /* at distances that differ */
} expert_order;

typedef struct expert_tensors {
    expert_order order;
    const char *dropped; /* the name of a tensor that the copy lacks; NULL: none */
    const char *retyped; /* of an F16 tensor that is BF16 in the copy; NULL: none */
} expert_tensors;

/* `path` is a file whose gate, up and down of a layer follow one another, as synth_model.h writes them. */
void expert_tensors_write(const char *path, const expert_tensors *how, const char *copy);

#endif

/* Placing the tensors of a model on the devices. */
#ifndef TSR_MODEL_PLACE_H
#define TSR_MODEL_PLACE_H

#include "arch/weights.h"

/* How tensors are placed; flags and `later` are those of tsr_buffer_load(). */
typedef struct tsr_weights_placing {
    unsigned flags;
    void (*progress)(double fraction, void *user); /* NULL: no progress callback */
    void *user;
    /* the same tensors under another split, which stay in place, and those of its prompts; NULL: none */
    const tsr_weights *previous, *previous_prompt;
    tsr_device_set deferred; /* devices that tsr_weights_refill() is for */
} tsr_weights_placing;

/* Place every declared tensor as `split` says. `prompt` has the same tensors, declared once more: they are
 * placed as split->prompt says, in the same buffer, where a device stores once what it has under both splits.
 * NULL where there is no split->prompt. Free `weights`, which owns the buffer, before `prompt`. */
tsr_status tsr_weights_place(tsr_weights *weights, tsr_weights *prompt, tsr_runtime *rt,
                             const tsr_model_split *split, const tsr_weights_placing *placing);

/* Load the tensors of devices that have none, as copies from the file. On failure these devices have none
 * again. */
tsr_status tsr_weights_refill(tsr_weights *weights, tsr_weights *prompt, tsr_device_set devices,
                              unsigned flags);

#endif

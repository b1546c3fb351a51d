/* Architectures: find the architecture of a file, then read its hyper-parameters, declare its tensors and
 * build its graph. Folders outside src/arch do not name families. */
#ifndef TSR_ARCH_ARCH_H
#define TSR_ARCH_ARCH_H

#include "arch/family.h"

/* The architecture that a file names. TSR_ERR_UNSUPPORTED: unknown; the message lists the known ones. */
tsr_status tsr_arch_find(const tsr_gguf *gguf, const tsr_arch **arch_out);

/* The hyper-parameters of a file, except n_vocab; `prediction`: with its prediction layer (TSR_ERR_INVALID:
 * there is none). */
tsr_status tsr_arch_read_hparams(const tsr_arch *arch, const tsr_gguf *gguf, bool prediction,
                                 tsr_hparams *hparams_out);

/* Declare every tensor of the model that a step uses. `granules` NULL: they are not known yet, and the
 * tensors cannot be placed. */
tsr_status tsr_arch_declare(const tsr_arch *arch, tsr_weights *weights, const tsr_hparams *hparams,
                            const tsr_model_granules *granules);

/* TSR_ERR_UNSUPPORTED names the first tensor of the file that was not declared, and is neither a factor of
 * the rotation, nor of a layer that predicts further tokens, nor a key or value of a layer that reads those
 * of another. */
tsr_status tsr_arch_refuse_unused(const tsr_weights *weights, const tsr_hparams *hparams);

/* The graph of a step, or, with step->hidden_in, of a prediction. Returns the logits, or, with
 * step->embeds, the embeddings; sets step->hidden_out. */
tsr_tensor *tsr_arch_build(const tsr_arch *arch, const tsr_hparams *hparams, const tsr_weights *weights,
                           tsr_step_graph *step);

#endif

/* Architectures: finding that of a file, and asking it for hyper-parameters, tensors and graph. Nothing
 * outside src/arch knows a family by name. */
#ifndef TSR_ARCH_ARCH_H
#define TSR_ARCH_ARCH_H

#include "arch/family.h"

/* The architecture a file names; TSR_ERR_UNSUPPORTED lists those there are. */
tsr_status tsr_arch_find(const tsr_gguf *gguf, const tsr_arch **arch_out);

/* Its hyper-parameters, n_vocab excepted. */
tsr_status tsr_arch_read_hparams(const tsr_arch *arch, const tsr_gguf *gguf, tsr_hparams *hparams_out);

tsr_status tsr_arch_declare(const tsr_arch *arch, tsr_weights *weights, const tsr_hparams *hparams);
tsr_tensor *tsr_arch_build(const tsr_arch *arch, const tsr_hparams *hparams, const tsr_weights *weights,
                           const tsr_step_graph *step);

#endif

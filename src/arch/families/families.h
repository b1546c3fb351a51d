/* Every architecture that this version runs. */
#ifndef TSR_ARCH_FAMILIES_FAMILIES_H
#define TSR_ARCH_FAMILIES_FAMILIES_H

#include "arch/family.h"

extern const tsr_arch tsr_arch_llama, tsr_arch_mistral3, tsr_arch_internlm2, tsr_arch_xverse,
    tsr_arch_ernie4_5, tsr_arch_smollm3, tsr_arch_exaone, tsr_arch_qwen2, tsr_arch_qwen3, tsr_arch_gemma,
    tsr_arch_gemma2, tsr_arch_gemma3, tsr_arch_phi3, tsr_arch_chatglm, tsr_arch_glm4, tsr_arch_granite,
    tsr_arch_minicpm, tsr_arch_olmo2, tsr_arch_qwen3moe, tsr_arch_olmoe, tsr_arch_granitemoe,
    tsr_arch_gpt_oss, tsr_arch_qwen2moe, tsr_arch_deepseek, tsr_arch_bailingmoe, tsr_arch_ernie4_5_moe,
    tsr_arch_dots1, tsr_arch_glm4moe, tsr_arch_starcoder2, tsr_arch_nemotron, tsr_arch_stablelm,
    tsr_arch_gptneox, tsr_arch_phi2, tsr_arch_falcon, tsr_arch_command_r, tsr_arch_cohere2, tsr_arch_qwen3vl,
    tsr_arch_seed_oss, tsr_arch_afmoe, tsr_arch_step35;

#endif

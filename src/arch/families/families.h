/* Every architecture that this version runs. */
#ifndef TSR_ARCH_FAMILIES_FAMILIES_H
#define TSR_ARCH_FAMILIES_FAMILIES_H

#include "arch/family.h"

/* clang-format off */
#define TSR_FAMILIES(X) \
    X(llama) \
    X(mistral3) \
    X(mistral4) \
    X(internlm2) \
    X(xverse) \
    X(ernie4_5) \
    X(smollm3) \
    X(exaone) \
    X(qwen2) \
    X(qwen3) \
    X(gemma) \
    X(gemma2) \
    X(gemma3) \
    X(phi3) \
    X(chatglm) \
    X(glm4) \
    X(granite) \
    X(minicpm) \
    X(olmo2) \
    X(qwen3moe) \
    X(olmoe) \
    X(granitemoe) \
    X(gpt_oss) \
    X(qwen2moe) \
    X(deepseek) \
    X(deepseek2) \
    X(bailingmoe) \
    X(bailingmoe2) \
    X(ernie4_5_moe) \
    X(dots1) \
    X(glm4moe) \
    X(starcoder2) \
    X(nemotron) \
    X(stablelm) \
    X(gptneox) \
    X(phi2) \
    X(falcon) \
    X(command_r) \
    X(cohere2) \
    X(cohere2moe) \
    X(qwen3vl) \
    X(qwen3vlmoe) \
    X(seed_oss) \
    X(afmoe) \
    X(step35) \
    X(gemma4) \
    X(hunyuan_dense) \
    X(hunyuan_moe) \
    X(minimax_m2) \
    X(arcee) \
    X(exaone4) \
    X(qwen3next) \
    X(qwen35) \
    X(qwen35moe) \
    X(lfm2) \
    X(lfm2moe) \
    X(kimi_linear) \
    X(granitehybrid) \
    X(nemotron_h) \
    X(nemotron_h_moe) \
    X(falcon_h1) \
    X(llama4) \
    X(glm_dsa) \
    X(minimax_m3) \
    X(deepseek4)
/* clang-format on */

#define TSR_DECLARE_FAMILY(name) extern const tsr_arch tsr_arch_##name;
TSR_FAMILIES(TSR_DECLARE_FAMILY)

#endif

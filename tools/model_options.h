/* The options that name a model, its devices and its split: of every command that plans or loads. */
#ifndef TSR_TOOLS_MODEL_OPTIONS_H
#define TSR_TOOLS_MODEL_OPTIONS_H

#include <tsr/fit.h>
#include <tsr/split.h>

#include "offload_options.h"
#include "options.h"

/* As given; NULL if not. */
typedef struct tool_model_options {
    const char *model, *devices;
    const char *synthetic; /* of commands that have TOOL_SYNTHETIC_ROW */
    const char *tensor_split, *split_mode, *expert_split, *type_k, *type_v, *reduction;
    int main_device, n_ctx, n_seq, n_batch, activations; /* n_ctx -1: not given */
    bool no_mmap, swa_full;
    bool prediction, embeddings; /* of commands that have TOOL_RESULT_ROWS */
    const char *margin, *workload;
    const char *prompt_split;
    size_t margins[TSR_MAX_DEVICES];      /* of `margin`, once read */
    float prompt_shares[TSR_MAX_DEVICES]; /* of `prompt_split`, once read */
    tsr_fit_config context_fit;           /* of tool_model_open_context() */
    tool_offload_options offload;
} tool_model_options;

#define TOOL_MODEL_OPTIONS_INIT                                                                          \
    {                                                                                                    \
        .n_ctx = -1, .n_seq = 1, .n_batch = 512, .activations = 16, .offload = TOOL_OFFLOAD_OPTIONS_INIT \
    }

/* Choices of the options for KV types, and of --collectives. */
#define TOOL_KV_TYPES    "f32 f16 bf16 q8_0 q4_0"
#define TOOL_COLLECTIVES "auto peer pinned nccl staged"

/* Of a command's options with the fields mpi and network, and why the latter is refused. */
/* clang-format off */
#define TOOL_PROCESS_ROWS(o)                                                                      \
    {NULL, "--mpi", TOOL_FLAG, &(o).mpi, NULL,                                                    \
     "under mpirun: use the devices of all processes; --devices is for each", 0, 0},              \
    {NULL, "--network", TOOL_STRING, &(o).network, "TEXT",                                        \
     "between machines, for the planner, e.g. 'ib 400Gb/s' (default: the kernel's fastest)", 0, 0}
/* clang-format on */
#define TOOL_NETWORK_ALONE \
    "--network joins processes; add --mpi, or describe machines with tsr plan --machine"

/* Rows for a command's table of options, in this order; `o` is a tool_model_options. The last group may be
 * continued. */
/* clang-format off */
#define TOOL_MODEL_ROW(o)                                                                         \
    TOOL_HEADING_ROW("model, devices and split"),                                                 \
    {"-m", "--model", TOOL_STRING, &(o).model, "FILE",                                            \
     "GGUF model; of a model in several files, the first file", 0, 0}
#define TOOL_SYNTHETIC_ROW(o)                                                                     \
    {NULL, "--synthetic", TOOL_STRING, &(o).synthetic, "SHAPE[:TYPE]",                            \
     "instead of -m: a published shape, e.g. qwen3-32b:q4_k_m; help lists them", 0, 0}
#define TOOL_RESULT_ROWS(o)                                                                       \
    {NULL, "--prediction", TOOL_FLAG, &(o).prediction, NULL,                                      \
     "count the file's prediction layer (MTP, NextN), too", 0, 0},                                \
    {NULL, "--embeddings", TOOL_FLAG, &(o).embeddings, NULL,                                      \
     "for embeddings instead of logits, as tsr embed computes them", 0, 0}
#define TOOL_MODEL_OPTION_ROWS(o)                                                                 \
    {"-dev", "--devices", TOOL_STRING, &(o).devices, "SPEC",                                      \
     "e.g. cuda:0,mem=20GiB or host:2,threads=1 (default: all GPUs, otherwise host)", 0, 0},      \
    {"-ts", "--tensor-split", TOOL_STRING, &(o).tensor_split, "N,N,...",                          \
     "proportions in device order, 0 = unused (default: the fastest)", 0, 0},                     \
    {NULL, "--prompt-split", TOOL_STRING, &(o).prompt_split, "N,N,...",                           \
     "FFN and output of long steps in other proportions; auto: the planner's (default: as -ts)", 0, 0}, \
    {"-sm", "--split-mode", TOOL_STRING, &(o).split_mode, "MODE",                                 \
     "tensor (default), layer, none or auto", 0, 0, "tensor layer none auto"},                    \
    {NULL, "--expert-split", TOOL_STRING, &(o).expert_split, "HOW",                               \
     "columns (of every expert), experts (whole ones) or auto: the faster (default)", 0, 0,       \
     "columns experts auto"},                                                                     \
    {"-mg", "--main-gpu", TOOL_INT, &(o).main_device, "N",                                        \
     "the device for -sm none (default 0)", 0, TSR_MAX_DEVICES - 1},                              \
    TOOL_OFFLOAD_OPTION_ROWS((o).offload),                                                        \
    TOOL_HEADING_ROW("context, batches and precision"),                                           \
    {"-c", "--ctx-size", TOOL_INT, &(o).n_ctx, "N",                                               \
     "tokens of context, 0: as trained (default: as trained, or the most that fit)", 0, 1 << 30}, \
    {"-b", "--batch-size", TOOL_INT, &(o).n_batch, "N",                                           \
     "most tokens computed in one step (default 512)", 1, 1 << 16},                               \
    {"-ub", "--ubatch-size", TOOL_INT, &(o).n_batch, "N", "the same as -b", 1, 1 << 16},          \
    {"-ctk", "--cache-type-k", TOOL_STRING, &(o).type_k, "TYPE",                                  \
     "type of keys in the KV region: f32, f16 (default), bf16, q8_0, q4_0", 0, 0,                 \
     TOOL_KV_TYPES},                                                                              \
    {"-ctv", "--cache-type-v", TOOL_STRING, &(o).type_v, "TYPE",                                  \
     "type of values in the KV region, as for keys", 0, 0, TOOL_KV_TYPES},                        \
    {NULL, "--swa-full", TOOL_FLAG, &(o).swa_full, NULL,                                          \
     "keep all tokens in layers with a sliding window, too", 0, 0},                               \
    {NULL, "--reduction", TOOL_STRING, &(o).reduction, "KIND",                                    \
     "exact (default): the same bits for every split; f32, bf16", 0, 0, "exact f32 bf16"},        \
    {NULL, "--activations", TOOL_INT, &(o).activations, "BITS",                                   \
     "of activations beside quantized weights: 16 (default), or 8: faster, as in llama.cpp", 8, 16, "8 16"}, \
    {NULL, "--no-mmap", TOOL_FLAG, &(o).no_mmap, NULL,                                            \
     "copy weights into memory near their device", 0, 0},                                         \
    {NULL, "--margin", TOOL_STRING, &(o).margin, "MIB,...",                                       \
     "memory left free on all devices, or on each: 512 (MiB) or 2GiB (default 0)", 0, 0},         \
    {NULL, "--for", TOOL_STRING, &(o).workload, "WORKLOAD",                                       \
     "what the split is to be fast for: decode, prompt, or PROMPT:NEW tokens (default 512:128)", 0, 0, \
     "decode prompt 512:128"}
/* clang-format on */

/* Convert them to a config that borrows `tensor_split` and `options`. Returns TOOL_GO_ON, or
 * TOOL_EXIT_USAGE after one line on stderr. */
int tool_model_options_read(const char *command, tool_model_options *options,
                            float tensor_split[TSR_MAX_DEVICES], tsr_model_config *config_out);

/* Read "512:128", "decode" or "prompt" into config->workload; NULL leaves it. TOOL_GO_ON, or TOOL_EXIT_USAGE
 * after one line on stderr. */
int tool_workload_read(const char *command, const char *text, tsr_model_config *config);

/* Without -c, and unless another fit is set: let the plan have the largest context that fits, with
 * TSR_FIT_MARGIN free on GPUs if there is no --margin. The config borrows `options`. */
void tool_model_open_context(tool_model_options *options, tsr_model_config *config);

/* The --devices text to use on a machine: as given, or the default (see tool_offload_devices). */
const char *tool_model_devices(const tool_model_options *options, const tsr_topology *topo);

/* The part of `text` up to the next comma, empty where it is too long; returns what follows the comma, NULL
 * after the last part. */
const char *tool_next_part(const char *text, char *part, size_t capacity);

/* Read margins "1024,2GiB" of option `name`. TOOL_GO_ON, or TOOL_EXIT_USAGE after one line on stderr. */
int tool_margins_read(const char *command, const char *name, const char *text,
                      size_t margins[TSR_MAX_DEVICES], int *n_out);

/* A type allowed in the KV region; false for any other text. */
bool tool_kv_type_parse(const char *text, tsr_type *type_out);

#endif

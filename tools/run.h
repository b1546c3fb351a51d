/* tsr run, in parts: options (run_options.c), the prompt (run_prompt.c), its tokens (run_tokens.c),
 * generating (run_decode.c, run_stop.c) once (run_generate.c) or in a conversation (run_chat.c, run_lines.c),
 * the closing tables (run_report.c). cmd_run.c combines them. */
#ifndef TSR_TOOLS_RUN_H
#define TSR_TOOLS_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/chat.h>
#include <tsr/model.h>
#include <tsr/sampler.h>
#include <tsr/session.h>

#include "engine.h"
#include "trace_file.h"

typedef struct run_options {
    tool_engine_options engine;
    tsr_sampler_config sampler;
    const char *prompt, *prompt_file; /* one of them is given, except in a conversation */
    const char *chat;                 /* a template's name or "auto"; NULL: no template */
    const char *system;               /* NULL: no system message */
    tool_list stop;                   /* stop strings */
    uint64_t drawn_seed; /* the sampler's unless another is given; with --mpi that of the first process */
    int n_predict;       /* -1: no limit */
    const char *trace;   /* file of the trace; NULL: none */
    bool interactive, no_history, hide_prompt, ignore_eos, survive, adapt;
} run_options;

/* Fill `options` from the command line. Returns TOOL_GO_ON or an exit code, after an error message. */
int run_options_read(int argc, char **argv, run_options *options);

/* The prompt's bytes, from the command line, a file or standard input of the first process; the caller frees
 * them. NULL if none is given. Returns TOOL_GO_ON or an exit code, the same in all processes, after an error
 * message. */
int run_prompt_read(const run_options *options, const tool_processes *processes, char **text_out,
                    size_t *bytes_out);

/* The objects used by generation; all borrowed. */
typedef struct run_engine {
    tsr_runtime *rt;
    tsr_model *model;
    tsr_tokenizer *tokenizer;
    tsr_session *session;
    tsr_sampler *sampler;
    const tsr_chat *chat; /* NULL: prompts are used without a template */
    tool_trace *trace;
    tool_processes *processes; /* that generate together, each making the same calls */
} run_engine;

typedef struct run_result {
    double load_s, prompt_s, decode_s;
    int64_t n_prompt; /* tokens */
    /* tokens computed one at a time; the first generated token comes from the prompt's logits */
    int64_t n_decoded;
    const char *end; /* the reason for the end, for messages */
    bool interrupted;
} run_result;

/* Compute the prompt and write prompt and continuation to stdout. Ctrl-C ends it early; a second one ends
 * the process. Returns an exit code, after an error message if it is not 0. */
int run_generate(const run_engine *engine, const run_options *options, const char *prompt,
                 size_t prompt_bytes, run_result *result);

/* A conversation over standard input and output; `first`, unless NULL, is its first message. Ctrl-C stops
 * an answer, the end of the input ends the conversation. Returns an exit code, after an error message if
 * it is not 0. */
int run_converse(const run_engine *engine, const run_options *options, const char *first, size_t first_bytes,
                 run_result *result);

/* Speed, memory and reductions on stderr. */
void run_report(const tsr_runtime *rt, const run_engine *engine, const run_options *options,
                const run_result *result);

#endif

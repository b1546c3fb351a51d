/* tsr perplexity, in parts: chunks.c computes the logits of a text, score.c makes figures of them,
 * cmd_perplexity.c has the options and prints.
 *
 * The text's tokens are divided into chunks of n. Each chunk is computed alone, from position 0. Where the
 * vocabulary has texts begin with a token (BOS), each chunk's first token is replaced by that token. Of each
 * chunk the tokens n / 2 + 1 .. n - 1 count, each predicted from all tokens before it in the chunk; of a
 * chunk of two tokens the second one counts. That is the count of llama.cpp's llama-perplexity. */
#ifndef TSR_TOOLS_PERPLEXITY_H
#define TSR_TOOLS_PERPLEXITY_H

#include <stdbool.h>
#include <stdint.h>

#include <tsr/session.h>

#include "progress.h"

/* Logits in memory at a time: of this many tokens, at most 64 MiB for 256K entries of a vocabulary. */
enum { PERPLEXITY_OUTPUTS = 64 };

/* A text to compute. */
typedef struct perplexity_text {
    int32_t *tokens;
    int64_t n_tokens;
    int64_t n_chunk, n_chunks; /* n_chunk tokens each; the text's last tokens may be in none */
    int32_t bos;               /* -1: the vocabulary has texts begin without one */
} perplexity_text;

/* First token of a chunk that counts. */
static inline int64_t perplexity_first(int64_t n_chunk)
{
    return n_chunk / 2 + 1 < n_chunk ? n_chunk / 2 + 1 : n_chunk - 1;
}

static inline int64_t perplexity_counted(const perplexity_text *text)
{
    return text->n_chunks * (text->n_chunk - perplexity_first(text->n_chunk));
}

/* Sums over counted tokens, of natural logarithms. A distribution is p, the reference's is r. */
typedef struct perplexity_sums {
    int64_t n;
    double loss, loss_squares;                     /* -log p(token) */
    double reference_loss, reference_loss_squares; /* -log r(token) */
    double kl_squares;
    double *kl;       /* [counted] D(r || p) = sum of r log(r / p); NULL: no reference */
    int64_t n_same;   /* tokens where p and r have the same most likely token */
    bool is_infinite; /* a logit was infinite or not a number */
} perplexity_sums;

/* Count one token, from its logits[n_vocab] and the reference's (NULL: none). */
void perplexity_add(perplexity_sums *sums, const float *logits, const float *reference, int64_t n_vocab,
                    int32_t token);

/* A mean and its standard error, from sums of n values and of their squares. */
typedef struct perplexity_mean {
    double mean, error;
} perplexity_mean;

perplexity_mean perplexity_mean_of(int64_t n, double sum, double squares);

/* exp(mean), with the standard error that the mean's leads to. */
perplexity_mean perplexity_exp(perplexity_mean loss);

/* Sort sums->kl[]; its mean, and the value that 99 of 100 tokens do not exceed. */
perplexity_mean perplexity_kl(perplexity_sums *sums, double *kl_99_out);

/* Compute the text by sessions[0], and by sessions[1] unless that is NULL, and add up. The caller frees
 * sums->kl, in any case. Returns TOOL_GO_ON or an exit code, after an error message. */
int perplexity_compute(tsr_session *const sessions[2], int64_t n_vocab, const perplexity_text *text,
                       tool_progress *progress, perplexity_sums *sums);

int perplexity_fail_memory(void);

#endif

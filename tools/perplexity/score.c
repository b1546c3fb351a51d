/* Figures of a text from logits; see perplexity.h. Everything is computed in double. */
#include "perplexity/perplexity.h"

#include <math.h>
#include <stdlib.h>

/* The logarithm of the sum of exp(logits), and the largest logit's index. */
static double log_sum(const float *logits, int64_t n, int64_t *top_out)
{
    int64_t top = 0;
    double sum = 0;
    for (int64_t i = 1; i < n; i++)
        top = logits[i] > logits[top] ? i : top;
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - (double)logits[top]);
    *top_out = top;
    return (double)logits[top] + log(sum);
}

void perplexity_add(perplexity_sums *sums, const float *logits, const float *reference, int64_t n_vocab,
                    int32_t token)
{
    int64_t top, reference_top;
    const double whole = log_sum(logits, n_vocab, &top);
    const double loss = whole - (double)logits[token];
    double kl = 0;
    sums->loss += loss;
    sums->loss_squares += loss * loss;
    if (reference) {
        const double of_reference = log_sum(reference, n_vocab, &reference_top);
        const double reference_loss = of_reference - (double)reference[token];
        for (int64_t i = 0; i < n_vocab; i++) {
            const double log_r = (double)reference[i] - of_reference;
            kl += exp(log_r) * (log_r - ((double)logits[i] - whole));
        }
        sums->reference_loss += reference_loss;
        sums->reference_loss_squares += reference_loss * reference_loss;
        sums->kl[sums->n] = kl;
        sums->kl_squares += kl * kl;
        sums->n_same += top == reference_top;
    }
    sums->is_infinite = sums->is_infinite || !isfinite(sums->loss + sums->reference_loss + kl);
    sums->n++;
}

perplexity_mean perplexity_mean_of(int64_t n, double sum, double squares)
{
    const double mean = sum / (double)n, variance = squares / (double)n - mean * mean;
    return (perplexity_mean){mean, n > 1 && variance > 0 ? sqrt(variance / (double)(n - 1)) : 0};
}

perplexity_mean perplexity_exp(perplexity_mean loss)
{
    const double value = exp(loss.mean);
    return (perplexity_mean){value, value * loss.error};
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

perplexity_mean perplexity_kl(perplexity_sums *sums, double *kl_99_out)
{
    double sum = 0;
    qsort(sums->kl, (size_t)sums->n, sizeof *sums->kl, compare);
    for (int64_t i = 0; i < sums->n; i++)
        sum += sums->kl[i];
    *kl_99_out = sums->kl[(sums->n * 99 + 99) / 100 - 1];
    return perplexity_mean_of(sums->n, sum, sums->kl_squares);
}

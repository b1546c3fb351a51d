/* Splits as text that -ts takes. What is measured is what the text says, so that typing it again divides
 * the model in the same way. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"

void bench_split_percent(const float *split, int n, int digits, char text[BENCH_SPLIT_TEXT])
{
    double sum = 0;
    int used = 0;
    for (int d = 0; d < n; d++)
        sum += (double)split[d];
    for (int d = 0; d < n; d++) {
        used += snprintf(text + used, (size_t)(BENCH_SPLIT_TEXT - used), "%s%.*f", d ? "," : "", digits,
                         100 * (double)split[d] / sum);
        if (!memchr(text, '.', (size_t)used) || digits == 0)
            continue;
        while (text[used - 1] == '0')
            text[--used] = '\0';
        if (text[used - 1] == '.')
            text[--used] = '\0';
    }
}

static bool same_shares(const float *a, const float *b, int n)
{
    double sum_a = 0, sum_b = 0;
    for (int d = 0; d < n; d++) {
        sum_a += (double)a[d];
        sum_b += (double)b[d];
    }
    for (int d = 0; d < n; d++)
        if (fabs((double)a[d] / sum_a - (double)b[d] / sum_b) > 1e-7)
            return false;
    return sum_b > 0;
}

bool bench_split_text(const float *split, int n, char text[BENCH_SPLIT_TEXT])
{
    for (int digits = 0; digits <= BENCH_SPLIT_DIGITS; digits++) {
        float read[TSR_MAX_DEVICES] = {0};
        int n_read;
        bench_split_percent(split, n, digits, text);
        if (tsr_split_parse(text, read, n, &n_read) == TSR_OK && same_shares(split, read, n))
            return true;
    }
    return false;
}

void bench_split_round(float *split, int n, char text[BENCH_SPLIT_TEXT])
{
    int n_read;
    if (!bench_split_text(split, n, text))
        (void)!tsr_split_parse(text, split, n, &n_read); /* it was made of numbers */
}

/* The results of a benchmark of one model: rows are divisions of the model, each timed with the same
 * tests. Everything that tsr bench prints, draws or compares is derived from a report only, so all formats
 * show the same numbers. bench/json.c writes a report and reads it back. */
#ifndef TSR_TOOLS_BENCH_REPORT_H
#define TSR_TOOLS_BENCH_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include <tsr/plan.h>

enum {
    BENCH_TEXT = 96,
    BENCH_SPLIT_TEXT = 12 * TSR_MAX_DEVICES,
    BENCH_MAX_TESTS = 24,
    BENCH_MAX_NOTES = 8,
    BENCH_MAX_REPETITIONS = 1000,
    BENCH_LEAST_REPETITIONS = 3 /* fewer do not show the noise */
};

/* Either a prompt of n_prompt tokens computed in one go or n_gen tokens one after another, after `depth`
 * tokens in the context. */
typedef struct bench_test {
    char name[40]; /* as in llama-bench: "pp512", "tg128 @ d4096" */
    int n_prompt, n_gen, depth;
} bench_test;

/* Activities of one device during a test, as fractions of the time that add up to 1. All 0 if unknown. */
typedef struct bench_shares {
    double compute;
    double reduce; /* adding up partial sums, once all devices had arrived */
    double wait;   /* for other devices to arrive */
} bench_shares;

/* One test with one division: seconds of each repetition, in the order of the runs. */
typedef struct bench_cell {
    int n;
    double *seconds;                      /* [n], owned by the report */
    double predicted_s;                   /* 0 if the planner has no rates */
    bench_shares shares[TSR_MAX_DEVICES]; /* means over the repetitions */
} bench_cell;

/* Tokens per second: the median of n repetitions, and the interval [low, high] that holds the true median
 * with a confidence of 90 % or more. With 3 or 4 repetitions the interval is all of them, and the
 * confidence 75 and 87 %. */
typedef struct bench_stat {
    double median, low, high;
    int n;
} bench_stat;

typedef enum bench_row_kind {
    BENCH_ROW_PLANNED = 0, /* chosen by the planner */
    BENCH_ROW_GIVEN,       /* given by the user, or a point of a sweep */
    BENCH_ROW_EVEN,
    BENCH_ROW_BY_MEMORY, /* in proportion to the devices' memory */
    BENCH_ROW_SEARCHED   /* found by --ratios auto */
} bench_row_kind;

/* "planned", "given", "even", "by-memory", "searched". */
const char *bench_row_kind_name(bench_row_kind kind);

typedef struct bench_row_device {
    int64_t granules[TSR_CLASS_COUNT]; /* in one layer */
    uint64_t bytes[TSR_MEMORY_COUNT];
    uint64_t capacity; /* bytes; 0 = no cap */
} bench_row_device;

typedef struct bench_row {
    bench_row_kind kind;
    /* A tensor_split: -ts TEXT divides the model like this row. "~62.1,37.9": the planner's split, which no
     * tensor_split gives exactly. */
    char text[BENCH_SPLIT_TEXT];
    float split[TSR_MAX_DEVICES];
    bench_row_device devices[TSR_MAX_DEVICES];
    bench_cell cells[BENCH_MAX_TESTS]; /* one per test */
    bool left_out;                     /* does not fit: a note has the reason */
    bool best;                         /* bench_report_judge(): as fast as the best row, within noise */
} bench_row;

typedef struct bench_device {
    char name[32], kind[8], what[BENCH_TEXT]; /* "1 thread, avx512, pinned"; "NVIDIA H100" */
} bench_device;

/* The environment of the measurement. */
typedef struct bench_environment {
    char version[24], build[32];   /* of the library; of bench_build_id(), empty if unknown */
    char date[24];                 /* UTC, ISO 8601 */
    char machine[160], driver[64]; /* "1 package, 2 cores, Intel ..."; "" without GPUs */
    char collectives[BENCH_TEXT];
    char model_path[256], model_name[128], architecture[32], weight_type[40];
    int64_t n_params, n_layers;
    uint64_t weight_bytes;
    char type_k[8], type_v[8], reduction[8], mode[8];
    int activation_bits;
    int64_t n_ctx;
    int n_batch;
    double load_average; /* of the machine, before the benchmark; negative if unknown */
    int n_cpus;
    int64_t layers_measured, layers_extrapolated; /* both 0: the model is complete */
} bench_environment;

typedef struct bench_report {
    bench_environment environment;
    int n_devices;
    bench_device devices[TSR_MAX_DEVICES];
    int n_tests;
    bench_test tests[BENCH_MAX_TESTS];
    int n_rows;
    bench_row **rows; /* [n_rows] */
    /* Of bench_report_judge(): the row with the least time in all tests, NULL without results; and the row
     * to use, which is shown in detail: the planner's unless the best row is faster beyond noise, and the
     * first without results. */
    const bench_row *best_row, *shown_row;
    bool interrupted; /* rows may lack repetitions */
    int n_notes;
    char notes[BENCH_MAX_NOTES][192]; /* a sentence each */
} bench_report;

/* A row's split with its kind: "75,25", "62.5,37.5 planned"; where splits have long texts, after their
 * number in the report: "3: even 8,8,8,8,8,8,8,8". */
enum { BENCH_ROW_LABEL = BENCH_SPLIT_TEXT + 32 };
void bench_row_label(const bench_report *report, const bench_row *row, char label[BENCH_ROW_LABEL]);

/* The split only, or its number only: "75,25", "split 3". */
void bench_row_name(const bench_report *report, const bench_row *row, char name[BENCH_ROW_LABEL]);

/* Whether the splits' texts are too long for a column of a table of 80 columns: then their numbers are
 * shown. */
bool bench_splits_are_long(const bench_report *report);

/* A new row at the end, all zeros; NULL when out of memory. */
bench_row *bench_report_add_row(bench_report *report);
void bench_report_note(bench_report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));
void bench_report_free(bench_report *report);

/* False when out of memory. */
bool bench_cell_add(bench_cell *cell, double seconds);

/* Set the name from the numbers. */
void bench_test_name(bench_test *test);

/* Tokens that a test computes. */
int bench_test_tokens(const bench_test *test);

/* Of the repetitions so far; all 0 if there are none. */
bench_stat bench_stat_of(const bench_test *test, const bench_cell *cell);

/* Of all tests together, whose times are added; all 0 if a test is missing. */
bench_stat bench_row_stat(const bench_report *report, const bench_row *row);

/* Predicted tokens per second; 0 if the planner has no rates. */
double bench_predicted_rate(const bench_test *test, const bench_cell *cell);

/* Whether the intervals of two results overlap, so that their difference may be chance; true with fewer than
 * BENCH_LEAST_REPETITIONS of one of them. */
bool bench_within_noise(bench_stat a, bench_stat b);

/* The difference that bench_within_noise() demands, as a part of the slower median; INFINITY with too few
 * repetitions. */
double bench_noise(bench_stat a, bench_stat b);

/* Whether two rows put the same granules on every device. */
bool bench_same_granules(const bench_report *report, const bench_row *a, const bench_row *b);

/* Bytes of all owners together. */
uint64_t bench_total_bytes(const bench_row_device *device);

/* The first row of a kind; NULL if there is none. */
const bench_row *bench_row_of_kind(const bench_report *report, bench_row_kind kind);

/* Find the best row and the row to use, and mark the rows that are as fast as the best row within noise,
 * unless no row is slower. To be called once all results are there. */
void bench_report_judge(bench_report *report);

#endif

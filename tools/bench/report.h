/* What a benchmark of one model found: the rows are ways to divide it, the tests are what was timed with
 * each. Everything that tsr bench prints, draws or compares is made from this and from nothing else, so all
 * formats show the same numbers. bench/json.c writes it and reads it back. */
#ifndef TSR_TOOLS_BENCH_REPORT_H
#define TSR_TOOLS_BENCH_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include <tsr/plan.h>

enum { BENCH_TEXT = 96, BENCH_MAX_TESTS = 24, BENCH_MAX_NOTES = 8, BENCH_MAX_REPETITIONS = 1000 };

/* Either a prompt of n_prompt tokens computed at once or n_gen tokens one after another, behind `depth`
 * tokens that are there already. */
typedef struct bench_test {
    char name[40]; /* as llama-bench has it: "pp512", "tg128 @ d4096" */
    int n_prompt, n_gen, depth;
} bench_test;

/* What one device did while a test ran, as parts of its time; they add up to 1. All 0 where unknown. */
typedef struct bench_shares {
    double compute;
    double reduce; /* adding up partial sums, once all devices had arrived */
    double wait;   /* for other devices to arrive */
} bench_shares;

/* One test with one division: seconds of each repetition, in the order in which they ran. */
typedef struct bench_cell {
    int n;
    double *seconds;                      /* [n], owned by the report */
    double predicted_s;                   /* 0 where the planner knows no rates */
    bench_shares shares[TSR_MAX_DEVICES]; /* means over the repetitions */
} bench_cell;

/* Median and quartiles of tokens per second. */
typedef struct bench_stat {
    double median, low, high;
} bench_stat;

typedef enum bench_row_kind {
    BENCH_ROW_PLANNED = 0, /* what the planner chooses */
    BENCH_ROW_GIVEN,       /* asked for, or a point of a sweep */
    BENCH_ROW_EVEN,
    BENCH_ROW_BY_MEMORY, /* in proportion to the devices' memory */
    BENCH_ROW_SEARCHED   /* by --ratios auto */
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
    char text[BENCH_TEXT]; /* a tensor_split, as for -ts */
    float split[TSR_MAX_DEVICES];
    bench_row_device devices[TSR_MAX_DEVICES];
    bench_cell cells[BENCH_MAX_TESTS]; /* one per test */
    bool left_out;                     /* it does not fit: a note says why */
} bench_row;

typedef struct bench_device {
    char name[32], kind[8], what[BENCH_TEXT]; /* "1 thread, avx512, pinned"; "NVIDIA H100" */
} bench_device;

/* Where and with what it was measured. */
typedef struct bench_environment {
    char version[24], date[24];    /* of the library; UTC, ISO 8601 */
    char machine[160], driver[64]; /* "1 package, 2 cores, Intel ..."; "" without GPUs */
    char collectives[BENCH_TEXT];
    char model_path[256], model_name[128], architecture[32], weight_type[40];
    int64_t n_params, n_layers;
    uint64_t weight_bytes;
    char type_k[8], type_v[8], reduction[8], mode[8];
    int activation_bits;
    int64_t n_ctx;
    int n_batch;
    double load_average; /* of the machine, when the benchmark began; negative where unknown */
    int n_cpus;
    int64_t layers_measured, layers_extrapolated; /* both 0: the model is whole */
} bench_environment;

typedef struct bench_report {
    bench_environment environment;
    int n_devices;
    bench_device devices[TSR_MAX_DEVICES];
    int n_tests;
    bench_test tests[BENCH_MAX_TESTS];
    int n_rows;
    bench_row **rows; /* [n_rows] */
    bool interrupted; /* rows may lack repetitions */
    int n_notes;
    char notes[BENCH_MAX_NOTES][192]; /* a sentence each */
} bench_report;

/* A new row at the end, all zeros; NULL when memory is out. */
bench_row *bench_report_add_row(bench_report *report);
void bench_report_note(bench_report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));
void bench_report_free(bench_report *report);

/* False when memory is out. */
bool bench_cell_add(bench_cell *cell, double seconds);

/* Set the name from the numbers. */
void bench_test_name(bench_test *test);

/* Tokens that a test computes. */
int bench_test_tokens(const bench_test *test);

/* Of the repetitions so far; all 0 without any. Quartiles by linear interpolation. */
bench_stat bench_stat_of(const bench_test *test, const bench_cell *cell);

/* Tokens per second as predicted; 0 where the planner knows no rates. */
double bench_predicted_rate(const bench_test *test, const bench_cell *cell);

/* Whether two results' middle halves overlap: then their difference may be chance. */
bool bench_within_noise(bench_stat a, bench_stat b);

/* The same in every test of two rows. */
bool bench_rows_within_noise(const bench_report *report, const bench_row *a, const bench_row *b);

/* Bytes of all owners together. */
uint64_t bench_total_bytes(const bench_row_device *device);

/* Median seconds of all tests together, what the search minimises; 0 where a test is missing. */
double bench_row_seconds(const bench_report *report, const bench_row *row);

/* The row that took the least time, or of that kind (the first); NULL if there is none. */
const bench_row *bench_best_row(const bench_report *report);
/* The best row, or the first: what is shown in detail. */
const bench_row *bench_shown_row(const bench_report *report);
const bench_row *bench_row_of_kind(const bench_report *report, bench_row_kind kind);

#endif

/* A chart: a series of points with labels, as a curve or as bars, with one axis of values that begins at 0.
 * */
#ifndef TSR_TOOLS_BENCH_CHART_H
#define TSR_TOOLS_BENCH_CHART_H

#include <stdbool.h>
#include <stdio.h>

#include "bench/groups.h"

enum { CHART_WIDTH = 420, CHART_PARTS = 3, CHART_KEYS = 5 };

typedef struct chart_point {
    char label[BENCH_GROUP_NAME], note[64]; /* of a bar: above it, left and right */
    double x;                               /* of a curve, 0 to 1 */
    double parts[CHART_PARTS];              /* of a bar, in the colours a, b, c; of a curve the first only */
    double low, high;                       /* the spread; equal: none is drawn */
    double predicted, frame;                /* 0: none */
    bool best, ring;                        /* in the colour "best"; with a ring around it */
} chart_point;

typedef struct chart {
    char title[BENCH_SPLIT_TEXT + 64], axis[96], footer[96];
    bool is_curve;
    double most, step; /* the axis ends at `most`, and has a number every `step` */
    /* Of a curve: the right axis shows values times `second`. */
    double second;
    char second_axis[64], x_axis[64];
    struct {
        const char *shape,
            *text; /* "a", "b", "c", "best": a square of the colour; "spread", "predicted", "ring" */
    } keys[CHART_KEYS];
    int n;
    chart_point *points; /* [n] */
} chart;

/* Pixels; the width is CHART_WIDTH. */
int chart_height(const chart *c);

/* An <svg> element at (x, y) of the element around it; both 0 in a page. */
void chart_draw(const chart *c, int x, int y, FILE *out);

/* 1, 2 or 5 times a power of ten, such that at most five steps reach `most`. */
double chart_nice_step(double most);

#endif

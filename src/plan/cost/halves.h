/* The time of a prompt's chunk in halves (docs/design/overlap.md): a schedule of products and sums. */
#ifndef TSR_PLAN_COST_HALVES_H
#define TSR_PLAN_COST_HALVES_H

/* Work and all-reduce of half a chunk. */
typedef struct tsr_half_segment {
    double work_ns, sync_ns;
} tsr_half_segment;

/* Both halves of a chunk through `repeats` times n segments: products one after another, the first half a
 * segment ahead, and sums one after another beside them. A half's next segment begins after its sum. */
double tsr_halves_ns(const tsr_half_segment *segments, int n, int repeats);

#endif

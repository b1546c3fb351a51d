/* Moving work away from devices that others wait for, by measured times alone.
 *
 * Devices that divide every matrix meet in each all-reduce, so a step takes as long as the slowest of them
 * needs for its share. Device d has the share s_d of the weights and worked for w_d in a window of steps; its
 * speed is s_d / w_d, and shares in proportion to the speeds make all work equally long. What does not grow
 * with the share (norms, the launch of ops) is taken for a part that does; the next windows correct that.
 *
 * Noise must not move anything, and nothing may move to and fro. So two windows in a row must name the same
 * slowest device, the gain must exceed the least gain and pay for the change within TSR_REBALANCE_HORIZON_NS,
 * and every change doubles the least gain, which then falls by half in every such time without a change. */
#ifndef TSR_SPLIT_SEARCH_REBALANCE_H
#define TSR_SPLIT_SEARCH_REBALANCE_H

#include <stdbool.h>

#include <tsr/split.h>

/* Of the time of a step: the least gain without recent changes, and the most that changes raise it to. */
#define TSR_REBALANCE_GAIN       0.05
#define TSR_REBALANCE_MAX_GAIN   0.4
#define TSR_REBALANCE_HORIZON_NS 10e9

/* What was measured in consecutive steps under one split. */
typedef struct tsr_rebalance_window {
    int n_devices;
    double share[TSR_MAX_DEVICES];   /* of the weights, sum 1; 0: the device takes no part */
    double work_ns[TSR_MAX_DEVICES]; /* without collectives */
    double total_ns;                 /* of the steps; the time over which the least gain falls */
    double change_ns;                /* that a change of split takes */
} tsr_rebalance_window;

/* Zeros: no window yet. */
typedef struct tsr_rebalance {
    double raised; /* the least gain, beyond TSR_REBALANCE_GAIN */
    int suspect;   /* 1 + the slowest device, if the last window was worth a change; otherwise 0 */
} tsr_rebalance;

/* Take a window. True: a change pays, to share_out[n_devices], sum 1. No device gets less
 * than a quarter of its share in one change. */
bool tsr_rebalance_propose(tsr_rebalance *state, const tsr_rebalance_window *window, double *share_out);

/* The part of the steps' time that other shares save; below 0 if they lose. */
double tsr_rebalance_gain(const tsr_rebalance_window *window, const double *share);

/* Whether a gain is enough for a change. */
bool tsr_rebalance_pays(const tsr_rebalance *state, const tsr_rebalance_window *window, double gain);

/* A change was made, or was tried and failed. */
void tsr_rebalance_changed(tsr_rebalance *state);

#endif

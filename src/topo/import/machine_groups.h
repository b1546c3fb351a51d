/* The --machine text as data: machine_text.c reads it, machine_groups.c makes a topology of it. */
#ifndef TSR_TOPO_IMPORT_MACHINE_GROUPS_H
#define TSR_TOPO_IMPORT_MACHINE_GROUPS_H

#include "topo/import/cards.h"
#include "topo/import/builder.h"

enum { TSR_TEXT_SOCKETS = 8, TSR_TEXT_MACHINES = 32 }; /* at most: sockets of a machine, machines */

typedef enum tsr_text_wiring { TSR_TEXT_NO_NVLINK, TSR_TEXT_NVLINK_PAIRS, TSR_TEXT_NVSWITCH } tsr_text_wiring;

/* "2x rtx3090 nvlink", "2x host 16 cores". */
typedef struct tsr_text_group {
    int count;
    const tsr_card *card; /* NULL: host */
    tsr_text_wiring wiring;
    int n_links; /* per pair; 0 = all, evenly */
    bool behind_switch;
    tsr_pcie_link pcie; /* 0 = the card's */
    int node;           /* -1 = round robin */
    int cores;          /* per socket; 0 = not given, as in the next members */
    uint64_t memory_bytes;
    double bytes_per_s;
} tsr_text_group;

/* "4x ib 400Gb/s 2us". */
typedef struct tsr_text_network {
    tsr_network_kind kind;
    int n_adapters;
    double bytes_per_s; /* of each, one direction */
    double latency_ns;  /* 0 = not given */
} tsr_text_network;

/* "2 nodes of ...": equal machines, each with groups [first, end). */
typedef struct tsr_text_nodes {
    int count; /* 0: the text describes one machine, without "nodes of" */
    int first, end;
    tsr_text_network network;
} tsr_text_nodes;

typedef struct tsr_machine_text {
    int n_groups, n_nodes;
    tsr_text_group groups[TSR_MAX_GPUS];
    tsr_text_nodes nodes[TSR_TEXT_MACHINES];
} tsr_machine_text;

/* Add the machines of the text to an empty builder. TSR_ERR_INVALID: more cards, sockets or cores than are
 * supported, a 'node' that no socket has. */
tsr_status tsr_machine_text_add(const tsr_machine_text *text, tsr_topo_builder *builder);

#endif

/* The options that name another machine, shared by the commands that describe or plan. */
#ifndef TSR_TOOLS_MACHINE_OPTIONS_H
#define TSR_TOOLS_MACHINE_OPTIONS_H

#include <tsr/topology.h>

#include "options.h"

typedef struct tool_machine_options {
    const char *file;  /* --machine-file */
    const char *text;  /* --machine */
    const char *cards; /* --card */
} tool_machine_options;

/* clang-format off */
#define TOOL_MACHINE_OPTION_ROWS(machine)                                                         \
    TOOL_HEADING_ROW("another machine"),                                                          \
    {NULL, "--machine-file", TOOL_STRING, &(machine).file, "FILE",                                \
     "its description: hwloc or NCCL XML, nvidia-smi topo -m, a Linux root", 0, 0},               \
    {NULL, "--machine", TOOL_STRING, &(machine).text, "TEXT",                                     \
     "its description in words, e.g. '2x rtx3090 nvlink'; see below", 0, 0},                      \
    {NULL, "--card", TOOL_STRING, &(machine).cards, "N=CARD,...",                                 \
     "the cards of its GPUs, e.g. 0=rtx3090 or all=a100", 0, 0}
/* clang-format on */

/* For the description of a command with these options. */
#define TOOL_MACHINE_DESCRIPTION                                                                           \
    "The text of `--machine` is groups of cards or sockets with commas between: `2x rtx3090 nvlink, 1x "   \
    "4060ti "                                                                                              \
    "pcie4x8, 2x host 16 cores 64GiB 80GB/s`. A card may be followed by `nvlink` (bridges between the "    \
    "cards "                                                                                               \
    "of the group), `nvswitch`, `switch` (one PCIe switch above the group), `pcie4x8`, `node 0`, `24GiB` " \
    "and "                                                                                                 \
    "`900GB/s`; `host`, the sockets, by cores, memory and the speed of memory. `2 nodes of 4x h100 "       \
    "nvswitch, ib 400Gb/s` is two such machines and their network: `ib`, `roce` or `ethernet`, the rate "  \
    "in bits, `4x ib` for four adapters, `2us` for the latency. `tsr topo --cards` lists the cards."

/* TOOL_GO_ON, or the exit code after a line on stderr about options that exclude each other. */
int tool_machine_options_check(const char *command, const tool_machine_options *options);

/* The machine that the options name, or this one. */
tsr_status tool_machine_topology(const tool_machine_options *options, const tsr_logger *logger,
                                 tsr_topology **topo_out);

#endif

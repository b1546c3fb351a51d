/** @file
 * Descriptions of machines in words: a machine, or several on a network, in a line of text.
 *
 *     tsr_topology *topo = NULL;
 *     if (tsr_topology_parse("2x rtx3090 nvlink, 1x host 64GiB 50GB/s", NULL, &topo) != TSR_OK)
 *         fprintf(stderr, "%s\n", tsr_last_error());
 *     tsr_topology_destroy(topo);
 */
#ifndef TSR_MACHINE_H
#define TSR_MACHINE_H

#include <tsr/log.h>
#include <tsr/status.h>
#include <tsr/topology.h>

TSR_BEGIN_DECLS

/** Make a topology of text like "2x rtx3090 nvlink, 1x rtx4060ti pcie4x8, 1x host 64GiB 50GB/s".
 * or "2 nodes of 4x h100 nvswitch, ib 400Gb/s". Grammar, blanks separate words:
 *
 *     text    = group { "," group }         one machine
 *             | nodes { "," nodes }         several
 *     nodes   = N ( "node" | "nodes" ) "of" group { "," group } [ "," network ]
 *                                           N machines, each with the groups up to the next nodes
 *     group   = [ N "x" ] CARD { word }     N GPUs (default 1), each with a link of its own
 *             | [ N "x" ] "host" { word }   N sockets (default: one, 16 cores, 64 GiB)
 *     CARD    = a card of the table, by its key or the driver's name, in any case, with blanks or '-'
 *               anywhere, without the maker's words and "RTX": "rtx3090", "3090 Ti", "H100 PCIe"
 *     word    = "nvlink" [ K ]              of GPUs: each pair of the group is joined by K NVLinks (default:
 *                                           all that the card has, shared evenly among the others). A bridge
 *                                           joins two cards, or four H200 NVL
 *             | "nvswitch"                  all NVLinks of each GPU lead to NVSwitches; of modules (SXM) only
 *             | "switch"                    one PCIe switch for the group, with an uplink like their links
 *             | "pcie" GEN "x" LANES        of the GPUs' links, "pcie4x8" (default: the card's)
 *             | "node" I                    NUMA node (default: all cards are spread over the sockets)
 *             | N "cores"                   of a socket
 *             | BYTES                       memory of each GPU or socket, "24GiB"
 *             | NUMBER "GB/s"               memory bandwidth of each GPU or socket
 *     network = [ N "x" ] ( "ib" | "roce" | "ethernet" ) NUMBER "Gb/s" [ NUMBER "us" ]
 *                                           of all nodes before it that have none: N adapters of each
 *                                           (default 1) at this rate, bits in one direction, and the
 *                                           latency of a short message (default: usual for the kind). One
 *                                           kind joins all nodes
 *
 * "node 1" after a card is a NUMA node of the card's machine; "1 node of" before a group begins a machine.
 * Everything that the text does not say is marked as guessed. TSR_ERR_INVALID quotes the place in the text
 * and says what would be right. TSR_ERR_MEMORY. */
TSR_NODISCARD TSR_API tsr_status tsr_topology_parse(const char *text, const tsr_topology_config *config,
                                                    tsr_topology **topo_out);

/** Print the table of cards: a header and a line of at most 80 columns per card, whose first word is the
 * card's key. */
TSR_API void tsr_cards_print(tsr_write_fn write, void *user);

TSR_END_DECLS
#endif

/** @file
 * Descriptions of machines in words: a machine in a line of text.
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
 * Grammar, blanks separate words:
 *
 *     machine = group { "," group }
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
 *
 * Everything that the text does not say is marked as guessed. TSR_ERR_INVALID quotes the place in the text
 * and says what would be right. TSR_ERR_MEMORY. */
TSR_NODISCARD TSR_API tsr_status tsr_topology_parse(const char *text, const tsr_topology_config *config,
                                                    tsr_topology **topo_out);

/** Print the table of cards: a header and a line of at most 80 columns per card, whose first word is the
 * card's key. */
TSR_API void tsr_cards_print(tsr_write_fn write, void *user);

TSR_END_DECLS
#endif

/* Published figures of common cards: the source of every figure that a description of a machine lacks.
 * They are guesses about a particular card (a board may be clocked or cut differently), so every use is
 * marked in tsr_gpu.guessed. */
#ifndef TSR_TOPO_IMPORT_CARDS_H
#define TSR_TOPO_IMPORT_CARDS_H

#include <tsr/topology.h>

#include "core/status.h"

enum { TSR_CARD_IDS = 7 };

/* Zero: does not apply, or not published. Rates are dense (without sparsity), per second, at the boost clock
 * of the data sheet. */
typedef struct tsr_card {
    const char *key;            /* name in --card and --machine: lower case, no blanks, "rtx3090" */
    const char *name;           /* the driver's name, without "NVIDIA " */
    const char *source;         /* of the figures */
    uint16_t ids[TSR_CARD_IDS]; /* PCI device ids (pci.ids), 0 = none */
    int compute_capability;     /* 10 * major + minor */
    int n_sms;                  /* streaming multiprocessors */
    int memory_mib;    /* memory visible to programs: reported by the driver, without the parts of firmware
                        * and ECC */
    double memory_gbs; /* 1e9 bytes/s */
    double f16_tflops; /* matrix products of F16 summed in F32 */
    double int8_tops;  /* matrix products (or DP4A on cards without) of 8-bit integers */
    double f32_tflops; /* scalar arithmetic */
    int pcie_generation, pcie_lanes;
    int nvlink_version, n_nvlinks;
    double nvlink_gbs;        /* of one link, one direction, 1e9 bytes/s */
    double c2c_gbs;           /* to the processor, one direction, 1e9 bytes/s */
    tsr_tristate peer_access; /* the driver lets two such cards access each other's memory over PCIe */
    bool integrated;          /* shares the host's memory */
    int bridge;               /* most cards that an NVLink bridge joins; 0 without NVLink, and for modules
                               * whose NVLinks are wired by their board (SXM, Grace) */
} tsr_card;

/* The n-th card of the table; NULL past its end. */
const tsr_card *tsr_card_at(int n);

/* Of a description: by key, or by a name as written by drivers and lspci ("NVIDIA GeForce RTX 3090", "GH100
 * [H200 SXM 141GB]"). Case, blanks and '-' are ignored. The longest of several names in the text is used.
 * NULL if none matches. */
const tsr_card *tsr_card_by_name(const char *name);

/* The card whose key or name is this text, as people type it: without the maker's words and "RTX", in any
 * case, with blanks or '-' anywhere ("4090", "RTX 4090", "3090ti", "h100 pcie"). NULL: none. */
const tsr_card *tsr_card_exactly(const char *name);

/* The same, or the only card with all words of the text in its name ("a100 sxm4 40gb"). TSR_ERR_INVALID: the
 * message lists the cards that the text may mean, or the nearest ones. */
tsr_status tsr_card_typed(const char *name, const tsr_card **card_out);

/* Whether a name that matched the card denotes a GPU with another memory: a laptop's GPU is a smaller
 * chip, a virtual one ("A10-8Q") has a part of the memory, and "A100-SXM-64GB" is a variant. Text after
 * "MIG" is ignored: the memory of an instance is known from its description. */
bool tsr_card_is_variant(const tsr_card *card, const char *name);

/* By NVIDIA's PCI device id; NULL if it is not in the table. */
const tsr_card *tsr_card_by_id(int device_id);

/* Fill the unknown facts of `gpu` from a card, and set the bits of the filled ones in gpu->guessed. With
 * `override`, for a card named by the user, memory and rates are replaced, too. */
void tsr_card_complete(const tsr_card *card, bool override, tsr_gpu *gpu);

/* Bytes per second of a PCIe link, one direction, line code subtracted; 0 for an unknown generation. */
double tsr_pcie_bytes_per_s(int generation, int lanes);

#endif

/* What the makers publish about common cards: the source of every figure that a description of a machine
 * lacks. A figure from here is a guess about the card at hand (a board may be clocked or cut differently);
 * whoever uses one says so (tsr_gpu.guessed). */
#ifndef TSR_TOPO_IMPORT_CARDS_H
#define TSR_TOPO_IMPORT_CARDS_H

#include <tsr/topology.h>

#include "core/status.h"

enum { TSR_CARD_IDS = 7 };

/* Zero: does not apply, or not published. Rates are dense (without sparsity), per second, at the boost clock
 * of the data sheet. */
typedef struct tsr_card {
    const char *key;            /* how --card and --machine call it: lower case, no blanks, "rtx3090" */
    const char *name;           /* as the driver calls it, without "NVIDIA " */
    const char *source;         /* where the figures stand */
    uint16_t ids[TSR_CARD_IDS]; /* PCI device ids (pci.ids), 0 = none */
    int compute_capability;     /* 10 * major + minor */
    int n_sms;                  /* streaming multiprocessors */
    int memory_mib;    /* that programs see: what the driver reports, firmware's and ECC's part left out */
    double memory_gbs; /* 1e9 bytes/s */
    double f16_tflops; /* matrix products of F16 summed in F32 */
    double int8_tops;  /* matrix products (or DP4A where there are none) of 8-bit integers */
    double f32_tflops; /* ordinary arithmetic */
    int pcie_generation, pcie_lanes;
    int nvlink_version, n_nvlinks;
    double nvlink_gbs;        /* of one link, one direction, 1e9 bytes/s */
    double c2c_gbs;           /* to the processor, one direction, 1e9 bytes/s */
    tsr_tristate peer_access; /* the driver lets a card like it read another one's memory over PCIe */
    bool integrated;          /* shares the host's memory */
    bool wired; /* a module whose NVLinks its board connects (SXM, Grace); others need a bridge on top */
} tsr_card;

/* The n-th card of the table; NULL past its end. */
const tsr_card *tsr_card_at(int n);

/* By key, or by a name as drivers, lspci and people write it ("NVIDIA GeForce RTX 3090", "RTX 3090",
 * "GH100 [H200 SXM 141GB]"). Case, blanks and '-' do not count. Of several names inside the text the longest
 * counts. NULL if none fits. */
const tsr_card *tsr_card_by_name(const char *name);

/* Whether a name in which that card was found says of a GPU with another memory: a laptop's GPU is a smaller
 * chip, a virtual one ("A10-8Q") has a part of the memory, and "A100-SXM-64GB" is a variant. What stands
 * behind "MIG" is not looked at: whoever knows an instance knows its memory. */
bool tsr_card_is_variant(const tsr_card *card, const char *name);

/* By NVIDIA's PCI device id; NULL if it is not in the table. */
const tsr_card *tsr_card_by_id(int device_id);

/* The keys, separated by blanks and cut to fit, for messages. */
void tsr_card_list(char *text, size_t bytes);

/* Fill what `gpu` does not say from a card, and set the bits of what was filled in gpu->guessed. With
 * `override`, memory and rates are replaced, too: somebody said that it is that card. */
void tsr_card_complete(const tsr_card *card, bool override, tsr_gpu *gpu);

/* Bytes per second of a PCIe link, one direction, line code subtracted; 0 for generations unknown. */
double tsr_pcie_bytes_per_s(int generation, int lanes);

#endif

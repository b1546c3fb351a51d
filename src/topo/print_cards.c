/* The table of cards as text, for the people who write the name of one. */
#include <stdio.h>

#include <tsr/machine.h>

#include "topo/import/cards.h"

static void print_nvlinks(const tsr_card *card, char *text, size_t bytes)
{
    if (!card->n_nvlinks)
        snprintf(text, bytes, "-");
    else if (card->bridge)
        snprintf(text, bytes, "%d x %.3g GB/s, bridge of %d", card->n_nvlinks, card->nvlink_gbs,
                 card->bridge);
    else
        snprintf(text, bytes, "%d x %.3g GB/s, by the board", card->n_nvlinks, card->nvlink_gbs);
}

void tsr_cards_print(tsr_write_fn write, void *user)
{
    char line[128], nvlinks[48], pcie[16];
    write("card             memory    GB/s  F16 TFLOP/s  PCIe  NVLinks\n", user);
    for (int i = 0; tsr_card_at(i); i++) {
        const tsr_card *card = tsr_card_at(i);
        print_nvlinks(card, nvlinks, sizeof nvlinks);
        snprintf(pcie, sizeof pcie, card->pcie_generation ? "%dx%d" : "-", card->pcie_generation,
                 card->pcie_lanes);
        snprintf(line, sizeof line, "%-15s %3.0f GiB  %6.0f  %11.1f  %4s  %s\n", card->key,
                 card->memory_mib / 1024.0, card->memory_gbs, card->f16_tflops, pcie, nvlinks);
        write(line, user);
    }
}

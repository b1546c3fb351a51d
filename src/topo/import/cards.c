/* The table of cards, and the completion of a GPU's facts from it.
 *
 * Figures are NVIDIA's own: white papers where one lists the card, otherwise its data sheet or product
 * page. Matrix rates published with sparsity only are halved. The memory is the part of the nominal size
 * that the drivers of such cards report to programs. PCI ids are those of the pci.ids list and of NVIDIA's
 * open kernel modules. The driver denies GeForce cards access to each other's memory over PCIe ("peer access
 * is not supported between these two devices", CUDA's simpleP2P on such pairs); NVLink bridges of the RTX
 * 3090 and older allow it.
 *
 * A bridge joins two cards (NVIDIA's NVLink bridge page; data sheets of the A100, A30, H100 PCIe and NVL), or
 * up to four H200 NVL (its data sheet). Where memory was not seen reported, it is the part that an RTX 5090
 * reports of its own. Where cards of two sizes share name and PCI id, both mean the smaller one, unless the
 * machine states its memory. */
#include "topo/import/cards.h"

#include <stdio.h>
#include <string.h>

#define TURING "NVIDIA Turing architecture whitepaper, table 1"
#define GA10X  "NVIDIA Ampere GA102 whitepaper, appendix A; product pages of the smaller cards"
#define ADA    "NVIDIA Ada GPU architecture whitepaper, appendix A; product pages of the smaller cards"
#define RTX50 \
    "NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A; product pages of the smaller cards"
#define PRO50     "NVIDIA RTX PRO Blackwell data sheets; technical.city for F32 of the PRO 4000, 4500"
#define RTXPRO    "NVIDIA RTX A-series and RTX Ada data sheets"
#define PASCAL    "NVIDIA Tesla P40, P100 data sheets"
#define VOLTA     "NVIDIA V100 and T4 data sheets"
#define AMPERE    "NVIDIA A100, A30, A10, A40 data sheets; Amazon EC2 G5 page for the A10G"
#define LX        "NVIDIA L4, L40, L40S data sheets"
#define HOPPER    "NVIDIA H100, H200, GH200 data sheets"
#define EXPORT    "NVIDIA A800, H800 data sheets (A100, H100 with 8 NVLinks); HGX H20 product brief"
#define BLACKWELL "NVIDIA DGX B200, GB200 NVL72, DGX Spark, Jetson AGX Orin and AGX Thor data sheets"
#define ULTRA     "NVIDIA HGX B300 and GB300 NVL72 data sheets"

#define NO      TSR_NO
#define YES     TSR_YES
#define UNKNOWN TSR_UNKNOWN

/* clang-format off */
static const tsr_card cards[] = {
    /* key, name, source, PCI ids,
     * compute capability, SMs, MiB, GB/s, F16 TFLOP/s, int8 TOP/s, F32 TFLOP/s, PCIe generation and lanes,
     * NVLink version, links, GB/s of each, C2C GB/s, peer access over PCIe, shares the host's memory,
     * most cards that an NVLink bridge joins */
    {"rtx2080ti",       "GeForce RTX 2080 Ti",                TURING,    {0x1e04, 0x1e07},
     75, 68, 11264, 616, 53.8, 215.2, 13.4, 3, 16, 2, 2, 25, 0, NO, false, 2},
    {"titanrtx",        "TITAN RTX",                          TURING,    {0x1e02},
     75, 72, 24576, 672, 130.5, 261, 16.3, 3, 16, 2, 2, 25, 0, NO, false, 2},
    {"quadro-rtx6000",  "Quadro RTX 6000",                    TURING,    {0}, /* shares its id */
     75, 72, 24220, 672, 130.5, 261, 16.3, 3, 16, 2, 2, 25, 0, YES, false, 2},
    {"quadro-rtx8000",  "Quadro RTX 8000",                    TURING,    {0},
     75, 72, 48601, 672, 130.5, 261, 16.3, 3, 16, 2, 2, 25, 0, YES, false, 2},
    {"rtx3060",         "GeForce RTX 3060",                   GA10X,     {0x2503, 0x2504, 0x2487, 0x2544},
     86, 28, 12288, 360, 25.5, 102, 12.7, 4, 16, 0, 0, 0, 0, NO, false, 0},
    {"rtx3060ti",       "GeForce RTX 3060 Ti",                GA10X,     {0x2486, 0x2489, 0x2414},
     86, 38, 8192, 448, 32.4, 129.6, 16.2, 4, 16, 0, 0, 0, 0, NO, false, 0},
    {"rtx3070",         "GeForce RTX 3070",                   GA10X,     {0x2484, 0x2488},
     86, 46, 8192, 448, 40.6, 162.6, 20.3, 4, 16, 0, 0, 0, 0, NO, false, 0},
    {"rtx3070ti",       "GeForce RTX 3070 Ti",                GA10X,     {0x2482},
     86, 48, 8192, 608, 43.5, 174, 21.7, 4, 16, 0, 0, 0, 0, NO, false, 0},
    {"rtx3080",         "GeForce RTX 3080",                   GA10X,     {0x2206, 0x2216},
     86, 68, 10240, 760, 59.5, 238, 29.8, 4, 16, 0, 0, 0, 0, NO, false, 0},
    {"rtx3080-12gb",    "GeForce RTX 3080 12GB",              GA10X,     {0x220a},
     86, 70, 12288, 912, 61.3, 245.1, 30.6, 4, 16, 0, 0, 0, 0, NO, false, 0},
    {"rtx3080ti",       "GeForce RTX 3080 Ti",                GA10X,     {0x2208},
     86, 80, 12288, 912, 68.2, 272.8, 34.1, 4, 16, 0, 0, 0, 0, NO, false, 0},
    {"rtx3090",         "GeForce RTX 3090",                   GA10X,     {0x2204},
     86, 82, 24576, 936, 71.2, 284.7, 35.6, 4, 16, 3, 4, 14.0625, 0, NO, false, 2},
    {"rtx3090ti",       "GeForce RTX 3090 Ti",                GA10X,     {0x2203},
     86, 84, 24564, 1008, 80, 320, 40, 4, 16, 3, 4, 14.0625, 0, NO, false, 2},
    {"rtx4060",         "GeForce RTX 4060",                   ADA,       {0x2882},
     89, 24, 8188, 272, 30.2, 121, 15.1, 4, 8, 0, 0, 0, 0, NO, false, 0},
    {"rtx4060ti",       "GeForce RTX 4060 Ti",                ADA,       {0x2803},
     89, 34, 8188, 288, 44.1, 176.5, 22.06, 4, 8, 0, 0, 0, 0, NO, false, 0},
    {"rtx4060ti-16gb",  "GeForce RTX 4060 Ti 16GB",           ADA,       {0x2805},
     89, 34, 16380, 288, 44.1, 176.5, 22.06, 4, 8, 0, 0, 0, 0, NO, false, 0},
    {"rtx4070",         "GeForce RTX 4070",                   ADA,       {0x2786},
     89, 46, 12282, 504, 58.3, 233.2, 29.15, 4, 16, 0, 0, 0, 0, NO, false, 0},
    {"rtx4070super",    "GeForce RTX 4070 SUPER",             ADA,       {0x2783},
     89, 56, 12282, 504, 71, 283.9, 35.5, 4, 16, 0, 0, 0, 0, NO, false, 0},
    {"rtx4070ti",       "GeForce RTX 4070 Ti",                ADA,       {0x2782},
     89, 60, 12282, 504, 80.2, 320.7, 40.1, 4, 16, 0, 0, 0, 0, NO, false, 0},
    {"rtx4070tisuper",  "GeForce RTX 4070 Ti SUPER",          ADA,       {0x2705},
     89, 66, 16376, 672, 88.2, 352.8, 44.1, 4, 16, 0, 0, 0, 0, NO, false, 0},
    {"rtx4080",         "GeForce RTX 4080",                   ADA,       {0x2704},
     89, 76, 16376, 716.8, 97.5, 389.9, 48.7, 4, 16, 0, 0, 0, 0, NO, false, 0},
    {"rtx4080super",    "GeForce RTX 4080 SUPER",             ADA,       {0x2702},
     89, 80, 16376, 736, 104.4, 418, 52.2, 4, 16, 0, 0, 0, 0, NO, false, 0},
    {"rtx4090",         "GeForce RTX 4090",                   ADA,       {0x2684},
     89, 128, 24564, 1008, 165.2, 660.6, 82.6, 4, 16, 0, 0, 0, 0, NO, false, 0},
    {"rtx4090d",        "GeForce RTX 4090 D",                 ADA,       {0x2685},
     89, 114, 24564, 1008, 147.1, 588.3, 73.5, 4, 16, 0, 0, 0, 0, NO, false, 0},
    {"rtx5050",         "GeForce RTX 5050",                   RTX50,     {0x2d83},
     120, 20, 8151, 320, 26.3, 105.3, 13.2, 5, 8, 0, 0, 0, 0, NO, false, 0},
    {"rtx5060",         "GeForce RTX 5060",                   RTX50,     {0x2d05},
     120, 30, 8151, 448, 38.4, 153.4, 19.2, 5, 8, 0, 0, 0, 0, NO, false, 0},
    {"rtx5060ti",       "GeForce RTX 5060 Ti",                RTX50,     {0x2d04},
     120, 36, 8151, 448, 47.4, 189.6, 23.7, 5, 8, 0, 0, 0, 0, NO, false, 0},
    {"rtx5060ti-16gb",  "GeForce RTX 5060 Ti 16GB",           RTX50,     {0}, /* same id and name as 8 GB */
     120, 36, 16311, 448, 47.4, 189.6, 23.7, 5, 8, 0, 0, 0, 0, NO, false, 0},
    {"rtx5070",         "GeForce RTX 5070",                   RTX50,     {0x2f04},
     120, 48, 12227, 672, 61.7, 246.9, 30.9, 5, 16, 0, 0, 0, 0, NO, false, 0},
    {"rtx5070ti",       "GeForce RTX 5070 Ti",                RTX50,     {0x2c05},
     120, 70, 16303, 896, 87.9, 351.5, 43.9, 5, 16, 0, 0, 0, 0, NO, false, 0},
    {"rtx5080",         "GeForce RTX 5080",                   RTX50,     {0x2c02},
     120, 84, 16303, 960, 112.6, 450.2, 56.3, 5, 16, 0, 0, 0, 0, NO, false, 0},
    {"rtx5090",         "GeForce RTX 5090",                   RTX50,     {0x2b85},
     120, 170, 32607, 1792, 209.5, 838, 104.8, 5, 16, 0, 0, 0, 0, NO, false, 0},
    {"rtxpro2000",      "RTX PRO 2000 Blackwell",             PRO50,     {0x2d30},
     120, 34, 16303, 288, 68.1, 136.3, 17, 5, 8, 0, 0, 0, 0, YES, false, 0},
    {"rtxpro4000",      "RTX PRO 4000 Blackwell",             PRO50,     {0x2c34},
     120, 70, 24455, 672, 187.6, 375.2, 46.9, 5, 16, 0, 0, 0, 0, YES, false, 0},
    {"rtxpro4000-sff",  "RTX PRO 4000 Blackwell SFF Edition", PRO50,     {0x2c33},
     120, 70, 24455, 432, 96.2, 192.5, 24.1, 5, 8, 0, 0, 0, 0, YES, false, 0},
    {"rtxpro4500",      "RTX PRO 4500 Blackwell",             PRO50,     {0x2c31},
     120, 82, 32607, 896, 219.8, 439.5, 54.9, 5, 16, 0, 0, 0, 0, YES, false, 0},
    {"rtxpro5000",      "RTX PRO 5000 Blackwell",             PRO50,     {0x2bb3},
     120, 110, 48907, 1344, 258, 516, 64.5, 5, 16, 0, 0, 0, 0, YES, false, 0},
    {"rtxpro5000-72gb", "RTX PRO 5000 72GB Blackwell",        PRO50,     {0},
     120, 110, 73360, 1344, 258, 516, 64.5, 5, 16, 0, 0, 0, 0, YES, false, 0},
    {"rtxpro6000",      "RTX PRO 6000 Blackwell",             RTX50,     {0x2bb1, 0x2bb4, 0x2bb5},
     120, 188, 97887, 1792, 503.8, 1007.6, 125, 5, 16, 0, 0, 0, 0, YES, false, 0},
    {"a4000",           "RTX A4000",                          RTXPRO,    {0x24b0},
     86, 48, 16376, 448, 76.7, 153.4, 19.2, 4, 16, 0, 0, 0, 0, YES, false, 0},
    {"a4500",           "RTX A4500",                          RTXPRO,    {0x2232},
     86, 56, 20470, 640, 94.6, 189.2, 23.7, 4, 16, 3, 4, 14.0625, 0, YES, false, 2},
    {"a5000",           "RTX A5000",                          RTXPRO,    {0x2231},
     86, 64, 24564, 768, 111.1, 222.2, 27.8, 4, 16, 3, 4, 14.0625, 0, YES, false, 2},
    {"a5500",           "RTX A5500",                          RTXPRO,    {0x2233},
     86, 80, 24564, 768, 136.4, 272.8, 34.1, 4, 16, 3, 4, 14.0625, 0, YES, false, 2},
    {"a6000",           "RTX A6000",                          RTXPRO,    {0x2230},
     86, 84, 49140, 768, 154.8, 309.7, 38.7, 4, 16, 3, 4, 14.0625, 0, YES, false, 2},
    {"rtx2000ada",      "RTX 2000 Ada Generation",            RTXPRO,    {0x28b0},
     89, 22, 16380, 224, 48, 96, 12, 4, 8, 0, 0, 0, 0, YES, false, 0},
    {"rtx4000ada",      "RTX 4000 Ada Generation",            RTXPRO,    {0x27b2},
     89, 48, 20475, 360, 106.9, 213.8, 26.7, 4, 16, 0, 0, 0, 0, YES, false, 0},
    {"rtx4500ada",      "RTX 4500 Ada Generation",            RTXPRO,    {0x27b1},
     89, 60, 24570, 432, 158.5, 317, 39.6, 4, 16, 0, 0, 0, 0, YES, false, 0},
    {"rtx5000ada",      "RTX 5000 Ada Generation",            RTXPRO,    {0x26b2},
     89, 100, 32760, 576, 261.1, 522.2, 65.3, 4, 16, 0, 0, 0, 0, YES, false, 0},
    {"rtx6000ada",      "RTX 6000 Ada Generation",            RTXPRO,    {0x26b1},
     89, 142, 49140, 960, 364.2, 728.5, 91.1, 4, 16, 0, 0, 0, 0, YES, false, 0},
    {"p40",             "Tesla P40",                          PASCAL,    {0x1b38},
     61, 30, 24451, 346, 0, 47, 11.8, 3, 16, 0, 0, 0, 0, YES, false, 0},
    {"p100",            "Tesla P100-PCIE-16GB",               PASCAL,    {0x15f8},
     60, 56, 16281, 732, 18.7, 0, 9.3, 3, 16, 0, 0, 0, 0, YES, false, 0},
    {"p100-sxm2",       "Tesla P100-SXM2-16GB",               PASCAL,    {0x15f9},
     60, 56, 16281, 732, 21.2, 0, 10.6, 3, 16, 1, 4, 20, 0, YES, false, 0},
    {"v100",            "Tesla V100-PCIE-16GB",               VOLTA,     {0x1db4},
     70, 80, 16160, 900, 112, 56, 14, 3, 16, 0, 0, 0, 0, YES, false, 0},
    {"v100-32gb",       "Tesla V100-PCIE-32GB",               VOLTA,     {0x1db6},
     70, 80, 32510, 900, 112, 56, 14, 3, 16, 0, 0, 0, 0, YES, false, 0},
    {"v100-sxm2",       "Tesla V100-SXM2-16GB",               VOLTA,     {0x1db1},
     70, 80, 16128, 900, 125, 62, 15.7, 3, 16, 2, 6, 25, 0, YES, false, 0},
    {"v100-sxm2-32gb",  "Tesla V100-SXM2-32GB",               VOLTA,     {0x1db5},
     70, 80, 32510, 900, 125, 62, 15.7, 3, 16, 2, 6, 25, 0, YES, false, 0},
    {"v100-sxm3",       "Tesla V100-SXM3-32GB",               VOLTA,     {0x1db8},
     70, 80, 32510, 900, 125, 62, 15.7, 3, 16, 2, 6, 25, 0, YES, false, 0},
    {"t4",              "Tesla T4",                           VOLTA,     {0x1eb8},
     75, 40, 15109, 320, 65, 130, 8.1, 3, 16, 0, 0, 0, 0, YES, false, 0},
    {"a100-40gb",       "A100-SXM4-40GB",                     AMPERE,    {0x20b0},
     80, 108, 40536, 1555, 312, 624, 19.5, 4, 16, 3, 12, 25, 0, YES, false, 0},
    {"a100",            "A100-SXM4-80GB",                     AMPERE,    {0x20b2},
     80, 108, 81038, 2039, 312, 624, 19.5, 4, 16, 3, 12, 25, 0, YES, false, 0},
    {"a100-pcie-40gb",  "A100-PCIE-40GB",                     AMPERE,    {0x20f1, 0x20b1},
     80, 108, 40354, 1555, 312, 624, 19.5, 4, 16, 3, 12, 25, 0, YES, false, 2},
    {"a100-pcie",       "A100 80GB PCIe",                     AMPERE,    {0x20b5},
     80, 108, 81038, 1935, 312, 624, 19.5, 4, 16, 3, 12, 25, 0, YES, false, 2},
    {"a800",            "A800-SXM4-80GB",                     EXPORT,    {0x20f3},
     80, 108, 81038, 2039, 312, 624, 19.5, 4, 16, 3, 8, 25, 0, YES, false, 0},
    {"a800-pcie",       "A800 80GB PCIe",                     EXPORT,    {0x20f5},
     80, 108, 81038, 1935, 312, 624, 19.5, 4, 16, 3, 8, 25, 0, YES, false, 2},
    {"a30",             "A30",                                AMPERE,    {0x20b7},
     80, 56, 24258, 933, 165, 330, 10.3, 4, 16, 3, 4, 25, 0, YES, false, 2},
    {"a10",             "A10",                                AMPERE,    {0x2236},
     86, 72, 22731, 600, 125, 250, 31.2, 4, 16, 0, 0, 0, 0, YES, false, 0},
    {"a10g",            "A10G",                               AMPERE,    {0x2237},
     86, 80, 22731, 600, 70, 140, 35, 4, 16, 0, 0, 0, 0, YES, false, 0},
    {"a40",             "A40",                                AMPERE,    {0x2235},
     86, 84, 45634, 696, 149.7, 299.3, 37.4, 4, 16, 3, 4, 14.0625, 0, YES, false, 2},
    {"l4",              "L4",                                 LX,        {0x27b8},
     89, 58, 22478, 300, 121, 242, 30.3, 4, 16, 0, 0, 0, 0, YES, false, 0},
    {"l40",             "L40",                                LX,        {0x26b5},
     89, 142, 45457, 864, 181, 362, 90.5, 4, 16, 0, 0, 0, 0, YES, false, 0},
    {"l40s",            "L40S",                               LX,        {0x26b9},
     89, 142, 45457, 864, 362, 733, 91.6, 4, 16, 0, 0, 0, 0, YES, false, 0},
    {"h100",            "H100 80GB HBM3",                     HOPPER,    {0x2330},
     90, 132, 81100, 3350, 989, 1979, 67, 5, 16, 4, 18, 25, 0, YES, false, 0},
    {"h100-pcie",       "H100 PCIe",                          HOPPER,    {0x2331},
     90, 114, 81100, 2000, 756, 1513, 51, 5, 16, 4, 12, 25, 0, YES, false, 2},
    {"h100-nvl",        "H100 NVL",                           HOPPER,    {0x2321},
     90, 132, 95320, 3900, 835, 1671, 60, 5, 16, 4, 12, 25, 0, YES, false, 2},
    {"h800",            "H800",                               EXPORT,    {0x2324},
     90, 132, 81100, 3350, 989, 1979, 67, 5, 16, 4, 8, 25, 0, YES, false, 0},
    {"h800-pcie",       "H800 PCIe",                          EXPORT,    {0x2322},
     90, 114, 81100, 2000, 756, 1513, 51, 5, 16, 4, 8, 25, 0, YES, false, 2},
    {"h20",             "H20",                                EXPORT,    {0x2329},
     90, 78, 97871, 4000, 148, 296, 44, 5, 16, 4, 18, 25, 0, YES, false, 0},
    {"h200",            "H200",                               HOPPER,    {0x2335},
     90, 132, 143157, 4800, 989, 1979, 67, 5, 16, 4, 18, 25, 0, YES, false, 0},
    {"h200-nvl",        "H200 NVL",                           HOPPER,    {0x233b},
     90, 132, 143157, 4800, 835, 1671, 60, 5, 16, 4, 18, 25, 0, YES, false, 4},
    {"gh200",           "GH200 480GB",                        HOPPER,    {0x2342},
     90, 132, 97280, 4000, 989, 1979, 67, 5, 16, 4, 18, 25, 450, YES, false, 0},
    {"gh200-144gb",     "GH200 144G HBM3e",                   HOPPER,    {0x2348},
     90, 132, 146800, 4900, 989, 1979, 67, 5, 16, 4, 18, 25, 450, YES, false, 0},
    {"b200",            "B200",                               BLACKWELL, {0x2901},
     100, 148, 182632, 8000, 2250, 4500, 75, 5, 16, 5, 18, 50, 0, YES, false, 0},
    {"gb200",           "GB200",                              BLACKWELL, {0x2941},
     100, 148, 188416, 8000, 2500, 5000, 80, 5, 16, 5, 18, 50, 450, YES, false, 0},
    {"b300",            "B300 SXM6 AC",                       ULTRA,     {0x3182},
     103, 148, 275040, 8000, 2250, 0, 75, 6, 16, 5, 18, 50, 0, YES, false, 0},
    {"gb300",           "GB300",                              ULTRA,     {0x31c2},
     103, 152, 284208, 8000, 2500, 0, 80, 6, 16, 5, 18, 50, 450, YES, false, 0},
    {"gb10",            "GB10",                               BLACKWELL, {0x2e12},
     121, 48, 122500, 273, 125, 250, 31, 0, 0, 0, 0, 0, 300, UNKNOWN, true, 0},
    {"orin",            "Orin",                               BLACKWELL, {0},
     87, 16, 62800, 204.8, 42.5, 85, 5.3, 0, 0, 0, 0, 0, 0, UNKNOWN, true, 0},
    {"thor",            "Thor",                               BLACKWELL, {0},
     110, 20, 125700, 273, 258.7, 517.5, 8.1, 0, 0, 0, 0, 0, 0, UNKNOWN, true, 0},
};
/* clang-format on */

enum { N_CARDS = sizeof cards / sizeof *cards };

const tsr_card *tsr_card_at(int n)
{
    return n >= 0 && n < N_CARDS ? &cards[n] : NULL;
}

const tsr_card *tsr_card_by_id(int device_id)
{
    for (int i = 0; i < N_CARDS; i++)
        for (int j = 0; j < TSR_CARD_IDS && cards[i].ids[j]; j++)
            if (cards[i].ids[j] == device_id)
                return &cards[i];
    return NULL;
}

/* Raw rate per lane and direction, GT/s, and its line code: 8b/10b up to generation 2, 128b/130b up to 5,
 * no overhead from generation 6 on (PCI Express Base Specification 6.0, 4.2). */
double tsr_pcie_bytes_per_s(int generation, int lanes)
{
    static const double per_lane[] = {
        0,        2.5e9 / 10, 5e9 / 10, 8e9 / 8 * 128 / 130, 16e9 / 8 * 128 / 130, 32e9 / 8 * 128 / 130,
        64e9 / 8, 128e9 / 8};
    bool known = generation > 0 && generation < (int)(sizeof per_lane / sizeof *per_lane) && lanes > 0;
    return known ? per_lane[generation] * lanes : 0;
}

/* The slot limits the link, too, so another card does not change a known link. */
static void complete_pcie(const tsr_card *card, tsr_gpu *gpu)
{
    if (gpu->pcie_bytes_per_s > 0)
        return;
    int lanes = gpu->pcie.width && gpu->pcie.width < card->pcie_lanes ? gpu->pcie.width : card->pcie_lanes;
    gpu->pcie_max = (tsr_pcie_link){.generation = card->pcie_generation, .width = card->pcie_lanes};
    gpu->pcie_bytes_per_s = tsr_pcie_bytes_per_s(card->pcie_generation, lanes);
    if (gpu->pcie_bytes_per_s > 0)
        gpu->guessed |= TSR_GPU_PCIE;
}

/* From the rate of scalar arithmetic: a multiply-add per lane and cycle, on 64 lanes of a multiprocessor of
 * compute capability 6.0, 7.x and 8.0, on 128 of all others (CUDA C++ Programming Guide, "Arithmetic
 * Instructions"). */
static int clock_khz(const tsr_card *card)
{
    int cc = card->compute_capability, lanes = cc == 60 || cc / 10 == 7 || cc == 80 ? 64 : 128;
    return (int)(card->f32_tflops * 1e9 / (2.0 * lanes * card->n_sms));
}

void tsr_card_complete(const tsr_card *card, bool override, tsr_gpu *gpu)
{
    if (!*gpu->name || override)
        snprintf(gpu->name, sizeof gpu->name, "%s%s", strncmp(card->name, "T", 1) == 0 ? "" : "NVIDIA ",
                 card->name); /* "Tesla ..." and "TITAN ..." are complete names */
    if (!gpu->memory_bytes || override) {
        gpu->memory_bytes = (uint64_t)card->memory_mib << 20;
        gpu->guessed |= TSR_GPU_MEMORY;
    }
    if (!(gpu->memory_bytes_per_s > 0) || override) {
        gpu->memory_bytes_per_s = card->memory_gbs * 1e9;
        gpu->guessed |= TSR_GPU_BANDWIDTH;
    }
    if (!gpu->compute_capability || override) /* determined by the model */
        gpu->compute_capability = card->compute_capability;
    if (!gpu->n_sms || override) {
        gpu->n_sms = card->n_sms;
        gpu->guessed |= TSR_GPU_COMPUTE;
    }
    if (!gpu->sm_clock_khz || override)
        gpu->sm_clock_khz = clock_khz(card);
    if (!(gpu->tensor_flops > 0) || override) /* no description states it, so it needs no mark */
        gpu->tensor_flops = card->f16_tflops * 1e12;
    gpu->integrated = gpu->integrated || card->integrated;
    complete_pcie(card, gpu);
}

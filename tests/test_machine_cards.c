/* The table of cards: names and ids as drivers, lspci and people write them find the right one, and
 * completing a GPU says what was guessed. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "topo/import/cards.h"

static void names_find_their_card(void **state)
{
    (void)state;
    static const struct {
        const char *name, *key;
    } cases[] = {
        {"rtx3090", "rtx3090"},
        {"RTX 3090", "rtx3090"},
        {"NVIDIA GeForce RTX 3090", "rtx3090"},
        {"NVIDIA GeForce RTX 3090 Ti", "rtx3090ti"},
        {"GA102 [GeForce RTX 3090]", "rtx3090"},
        {"NVIDIA GeForce RTX 4070 Ti SUPER", "rtx4070tisuper"},
        {"NVIDIA L40S", "l40s"},
        {"NVIDIA L4", "l4"},
        {"NVIDIA A10G", "a10g"},
        {"NVIDIA A100-SXM4-80GB", "a100"},
        {"NVIDIA A100 80GB PCIe", "a100-pcie"},
        {"Tesla V100-SXM3-32GB-H", "v100-sxm3"},
        {"Tesla T4", "t4"},
        {"TU104GL [Tesla T4]", "t4"},
        {"NVIDIA H100 80GB HBM3", "h100"},
        {"GH100 [H200 SXM 141GB]", "h200"},
        {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtxpro6000"},
        {"NVIDIA RTX A6000", "a6000"},
        {"NVIDIA RTX 6000 Ada Generation", "rtx6000ada"},
        {"NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtxpro6000"},
        {"GH100 [H100 SXM5 80GB]", "h100"},
        {"GA100 [A100 PCIe 80GB]", "a100-pcie"},
        {"AD104GL [L4 24GB]", "l4"},
        {"NVIDIA GH200 120GB", "gh200"},
        {"NVIDIA A100-SXM4-40GB MIG 3g.20gb", "a100-40gb"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tsr_card *card = tsr_card_by_name(cases[i].name);
        if (!card)
            fail_msg("%s is not found", cases[i].name);
        assert_string_equal(card->key, cases[i].key);
        assert_false(tsr_card_is_variant(card, cases[i].name));
    }
    static const char *const unknown[] = {
        "", "NVIDIA", "GeForce", "NVIDIA L400", "L", "ASPEED Graphics Family"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        if (tsr_card_by_name(unknown[i]))
            fail_msg("'%s' is taken for %s", unknown[i], tsr_card_by_name(unknown[i])->key);
}

static void names_of_variants_are_told_from_the_card(void **state)
{
    (void)state;
    static const char *const variants[] = {"NVIDIA GeForce RTX 4090 Laptop GPU",
                                           "GA104M [GeForce RTX 3080 Mobile / Max-Q 8GB/16GB]",
                                           "NVIDIA A100-SXM-64GB",
                                           "Tesla P100-PCIE-12GB",
                                           "NVIDIA A10-8Q",
                                           "GRID T4-4C"};
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        const tsr_card *card = tsr_card_by_name(variants[i]);
        if (!card || !tsr_card_is_variant(card, variants[i]))
            fail_msg("'%s' is taken for %s", variants[i], card ? card->key : "nothing");
    }
}

/* A plan for memory that is not there would fail; the machine itself states its memory. */
static void a_name_of_two_sizes_means_the_smaller(void **state)
{
    (void)state;
    const tsr_card *by_id = tsr_card_by_id(0x2d04), *by_name = tsr_card_by_name("NVIDIA GeForce RTX 5060 Ti");
    assert_ptr_equal(by_id, by_name);
    assert_string_equal(by_id->key, "rtx5060ti");
    assert_int_equal(by_id->memory_mib, 8151);
}

static void cards_are_found_as_people_type_them(void **state)
{
    (void)state;
    static const struct {
        const char *name, *key;
    } cases[] = {
        {"4090", "rtx4090"},
        {"RTX 4090", "rtx4090"},
        {"GeForce RTX 4090", "rtx4090"},
        {"NVIDIA GeForce RTX 4090", "rtx4090"},
        {"nvidia rtx-4090", "rtx4090"},
        {"3090ti", "rtx3090ti"},
        {"3090 Ti", "rtx3090ti"},
        {"4070 Ti Super", "rtx4070tisuper"},
        {"4060 ti 16gb", "rtx4060ti-16gb"},
        {"5060 ti 16gb", "rtx5060ti-16gb"},
        {"A6000", "a6000"},
        {"RTX A6000", "a6000"},
        {"6000 Ada", "rtx6000ada"},
        {"pro 6000", "rtxpro6000"},
        {"RTX PRO 6000 Blackwell", "rtxpro6000"},
        {"Quadro RTX 8000", "quadro-rtx8000"},
        {"h100", "h100"},
        {"h100 pcie", "h100-pcie"},
        {"H100 SXM5", "h100"},
        {"H100 80GB", "h100"},
        {"V100 32GB", "v100-32gb"},
        {"tesla t4", "t4"},
        {"B300", "b300"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tsr_card *card = NULL;
        if (tsr_card_typed(cases[i].name, &card) != TSR_OK)
            fail_msg("%s: %s", cases[i].name, tsr_last_error());
        if (strcmp(card->key, cases[i].key) != 0)
            fail_msg("%s is taken for %s", cases[i].name, card->key);
    }
}

static void names_that_denote_no_card_or_several_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name, *message;
    } cases[] = {
        {"RTX 6000", "'RTX 6000' may mean quadro-rtx6000, rtxpro6000, rtx6000ada; write one of these"},
        {"a100 80gb", "'a100 80gb' may mean a100, a100-pcie; write one of these"},
        {"rtx309", "unknown card 'rtx309'; similar: rtx3090; `tsr topo --cards` lists all"},
        {"rxt5090", "unknown card 'rxt5090'; similar: rtx5090; `tsr topo --cards` lists all"},
        {"RTX", "unknown card 'RTX'; `tsr topo --cards` lists all"},
        {"NVIDIA", "unknown card 'NVIDIA'; `tsr topo --cards` lists all"},
        {"radeon 7900xtx", "unknown card 'radeon 7900xtx'; `tsr topo --cards` lists all"},
        {"", "unknown card ''; `tsr topo --cards` lists all"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tsr_card *card = NULL;
        assert_int_equal(tsr_card_typed(cases[i].name, &card), TSR_ERR_INVALID);
        assert_string_equal(tsr_last_error(), cases[i].message);
        assert_null(card);
    }
}

static void the_table_is_sound(void **state)
{
    (void)state;
    int n = 0;
    for (const tsr_card *card; (card = tsr_card_at(n)) != NULL; n++) {
        assert_ptr_equal(tsr_card_by_name(card->key), card);
        assert_ptr_equal(tsr_card_by_name(card->name), card);
        assert_ptr_equal(tsr_card_exactly(card->key), card);
        assert_ptr_equal(tsr_card_exactly(card->name), card);
        assert_true(card->bridge == 0 || (card->n_nvlinks > 0 && card->bridge >= 2));
        for (int i = 0; i < TSR_CARD_IDS && card->ids[i]; i++)
            assert_ptr_equal(tsr_card_by_id(card->ids[i]), card);
        assert_true(card->memory_mib > 4096 && card->memory_gbs > 100 && card->n_sms >= 8);
        assert_true(strlen(card->source) > 10);
        assert_int_equal(card->n_nvlinks > 0, card->nvlink_gbs > 0);
        assert_true(card->pcie_generation > 0 || card->integrated);
    }
    assert_true(n > 50);
    assert_null(tsr_card_at(-1));
    assert_null(tsr_card_by_id(0));
    assert_null(tsr_card_by_id(0x06d2));
}

/* -- beside facts that others collected -- */

enum { NAME, MEMORY, BANDWIDTH, F16, F32, PCIE, NVLINK, NVLINK_RATE, CAPABILITY, SMS, N_FIELDS };

static const char facts[] = "../shared/topo/gpu_facts.csv";

/* What the file calls a card, where a name alone does not tell. */
static const tsr_card *card_of_fact(const char *name)
{
    static const char *const keys[][2] = {{"RTX 4060 Ti 16G", "rtx4060ti-16gb"},
                                          {"RTX 4070 Ti S", "rtx4070tisuper"},
                                          {"A100 40 SXM", "a100-40gb"},
                                          {"A100 80 SXM", "a100"},
                                          {"H100 SXM", "h100"},
                                          {"V100 SXM2", "v100-sxm2"}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(name, keys[i][0]) == 0)
            return tsr_card_by_name(keys[i][1]);
    return tsr_card_by_name(name);
}

/* The number that a field begins with, if any, against the table's within a part of it. */
static void compare(const char *card, const char *what, const char *field, double value, double tolerance)
{
    double fact = strtod(field, NULL);
    if (fact > 0 && fabs(value - fact) > tolerance * fact)
        fail_msg("%s: %s is %g in the table of cards, %s says %s", card, what, value, facts, field);
}

static void compare_card(char *const field[N_FIELDS])
{
    const tsr_card *card = card_of_fact(field[NAME]);
    int generation, lanes, version, links;
    if (!card)
        fail_msg("%s is not in the table of cards", field[NAME]);
    /* Nominal sizes are a little more than what programs see; GB and GiB are mixed. */
    compare(card->key, "memory in GiB", field[MEMORY], card->memory_mib / 1024.0, 0.09);
    compare(card->key, "memory bandwidth in GB/s", field[BANDWIDTH], card->memory_gbs, 0.01);
    compare(card->key, "F16 TFLOP/s", field[F16], card->f16_tflops, 0.01);
    compare(card->key, "F32 TFLOP/s", field[F32], card->f32_tflops, 0.07); /* boards of one chip differ */
    if (sscanf(field[PCIE], "%dx%d", &generation, &lanes) == 2) {
        assert_int_equal(card->pcie_generation, generation);
        assert_int_equal(card->pcie_lanes, lanes);
    }
    if (sscanf(field[NVLINK], "v%d %d links", &version, &links) == 2) {
        assert_int_equal(card->nvlink_version, version);
        assert_int_equal(card->n_nvlinks, links);
        compare(card->key, "GB/s of all NVLinks", field[NVLINK_RATE], card->nvlink_gbs * links, 0.001);
    } else if (strcmp(field[NVLINK], "none") == 0) {
        assert_int_equal(card->n_nvlinks, 0);
    }
    compare(card->key, "compute capability", field[CAPABILITY], card->compute_capability / 10.0, 1e-9);
    compare(card->key, "SMs", field[SMS], card->n_sms, 1e-9);
}

static void figures_agree_with_collected_facts(void **state)
{
    (void)state;
    char line[512];
    int n = 0;
    FILE *file = fopen(facts, "r");
    if (!file) {
        print_message("skipped: there is no %s\n", facts);
        return;
    }
    assert_non_null(fgets(line, sizeof line, file)); /* the heads of the columns */
    while (fgets(line, sizeof line, file)) {
        char *field[N_FIELDS], *rest = line;
        for (int f = 0; f < N_FIELDS; f++) {
            field[f] = strsep(&rest, ",\n");
            assert_non_null(field[f]);
        }
        compare_card(field);
        n++;
    }
    fclose(file);
    assert_true(n > 0);
    print_message("%d cards compared\n", n);
}

static void only_what_is_missing_is_filled_and_marked(void **state)
{
    (void)state;
    const tsr_card *card = tsr_card_by_name("h200");
    tsr_gpu gpu = {.memory_bytes = 5, .pcie = {.generation = 1, .width = 8}};
    tsr_card_complete(card, false, &gpu);
    assert_int_equal(gpu.memory_bytes, 5);
    assert_int_equal(gpu.guessed, TSR_GPU_BANDWIDTH | TSR_GPU_COMPUTE | TSR_GPU_PCIE);
    assert_int_equal(gpu.n_sms, 132);
    assert_true(gpu.memory_bytes_per_s == 4.8e12);
    assert_true(gpu.tensor_flops == 989e12);
    assert_true(gpu.pcie_bytes_per_s == tsr_pcie_bytes_per_s(5, 8)); /* the lanes were known */
    tsr_card_complete(card, true, &gpu);
    assert_int_equal(gpu.memory_bytes, (uint64_t)143157 << 20);
    assert_true(gpu.guessed & TSR_GPU_MEMORY);
    assert_true(tsr_pcie_bytes_per_s(3, 16) > 15.7e9 && tsr_pcie_bytes_per_s(3, 16) < 15.8e9);
    assert_true(tsr_pcie_bytes_per_s(0, 16) == 0);
    assert_true(tsr_pcie_bytes_per_s(99, 16) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_find_their_card),
        cmocka_unit_test(names_of_variants_are_told_from_the_card),
        cmocka_unit_test(a_name_of_two_sizes_means_the_smaller),
        cmocka_unit_test(cards_are_found_as_people_type_them),
        cmocka_unit_test(names_that_denote_no_card_or_several_are_refused),
        cmocka_unit_test(the_table_is_sound),
        cmocka_unit_test(figures_agree_with_collected_facts),
        cmocka_unit_test(only_what_is_missing_is_filled_and_marked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

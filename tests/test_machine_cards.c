/* The table of cards: names and ids as drivers, lspci and people write them find the right one, and
 * completing a GPU says what was guessed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "topo/cards.h"

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
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tsr_card *card = tsr_card_by_name(cases[i].name);
        if (!card)
            fail_msg("%s is not found", cases[i].name);
        assert_string_equal(card->key, cases[i].key);
    }
    static const char *const unknown[] = {
        "", "NVIDIA", "GeForce", "NVIDIA L400", "L", "ASPEED Graphics Family"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        if (tsr_card_by_name(unknown[i]))
            fail_msg("'%s' is taken for %s", unknown[i], tsr_card_by_name(unknown[i])->key);
}

static void the_table_is_sound(void **state)
{
    (void)state;
    int n = 0;
    for (const tsr_card *card; (card = tsr_card_at(n)) != NULL; n++) {
        assert_ptr_equal(tsr_card_by_name(card->key), card);
        assert_ptr_equal(tsr_card_by_name(card->name), card);
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
        cmocka_unit_test(the_table_is_sound),
        cmocka_unit_test(only_what_is_missing_is_filled_and_marked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

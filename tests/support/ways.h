/* The promise of the library: the bits of the logits depend on model, tokens and KV types, and on nothing
 * else. Whole logits of many random ways to run a model (devices, tensor_split, mode, chunk size) are
 * compared with memcmp against one plain device and one token at a time (way_family.singles). */
#ifndef TSR_TESTS_WAYS_H
#define TSR_TESTS_WAYS_H

#include <tsr/session.h>
#include <tsr/topology.h>

#include "support/synth_arch.h"

typedef struct way {
    const tsr_topology *machine; /* NULL: found out when the runtime opens */
    char devices[128], split[128];
    tsr_model_config config;
    int64_t chunk;
    const char *collectives; /* NULL: the library chooses */
    char about[128];         /* whatever else was drawn, for the message; starts with a comma unless empty */
} way;

/* A kind of devices that all give the same bits. */
typedef struct way_family {
    const char *plain; /* devices text of the reference */

    /* Tokens that the reference decodes one by one, before the others at once; 0: all one by one. For devices
     * whose steps are slow: a way of other chunks then meets both kinds of kernels. */
    int64_t singles;

    /* The machine is this one, always: it is described once per model, not once per way, which takes as long
     * as a way does. */
    bool on_this_machine;

    /* Draw a machine and its devices: fill in w->devices and w->about. Returns the number of devices. */
    int (*prepare)(uint64_t *seed, way *w);

    /* After each run; NULL: nothing. */
    void (*done)(const way *w);
} way_family;

/* Draw a way for short texts: devices, split, mode, offload, batch and chunk. */
way ways_draw(const way_family *family, uint64_t *seed);

/* Fail the test: `title`, run this way, has other bits. */
void ways_fail(const char *title, const way *w);

/* What TSR_TEST_ROUNDS says, 300 by default: how many ways the test on host devices tries per weight type. */
int64_t ways_rounds(void);

/* Compare `rounds` ways for a model with weights of this type, with every KV type. */
void ways_check_type(const way_family *family, tsr_type type, int64_t rounds);

/* The same for a model of another architecture. */
void ways_check_arch(const way_family *family, const struct synth_arch *arch, tsr_type type, int64_t rounds);

/* The same for a model file. */
void ways_check_file(const way_family *family, const char *path, int64_t n_vocab, int64_t rounds);

/* The same for shapes that are multiples of nothing: short last granules, row tails, one KV head, more heads
 * than columns. */
void ways_check_odd_shapes(const way_family *family, int64_t rounds);

/* The same for mixtures of experts, of a type that changes from shape to shape. */
void ways_check_experts(const way_family *family, int64_t rounds);

/* The same for the quantized types that are met less often, an eighth of the rounds each. */
void ways_check_rare_types(const way_family *family, int64_t rounds);

/* The tests of a family: TYPE_TEST for each weight type, and the shapes. */
#define WAYS_TESTS(family, rounds)                                                                      \
    WAYS_TEST(F32, family, rounds)                                                                      \
    WAYS_TEST(F16, family, rounds)                                                                      \
    WAYS_TEST(BF16, family, rounds)                                                                     \
    WAYS_TEST(Q8_0, family, rounds)                                                                     \
    WAYS_TEST(Q4_0, family, rounds)                                                                     \
    WAYS_TEST(Q4_K, family, rounds)                                                                     \
    WAYS_TEST(Q5_K, family, rounds)                                                                     \
    WAYS_TEST(Q6_K, family, rounds)                                                                     \
    static void rare_weights(void **state)                                                              \
    {                                                                                                   \
        (void)state;                                                                                    \
        ways_check_rare_types(family, rounds);                                                          \
    }                                                                                                   \
    static void odd_shapes(void **state)                                                                \
    {                                                                                                   \
        (void)state;                                                                                    \
        ways_check_odd_shapes(family, rounds);                                                          \
    }                                                                                                   \
    static void experts(void **state)                                                                   \
    {                                                                                                   \
        (void)state;                                                                                    \
        ways_check_experts(family, rounds);                                                             \
    }                                                                                                   \
    static const struct CMUnitTest ways_tests[] = {                                                     \
        cmocka_unit_test(F32_weights),  cmocka_unit_test(F16_weights),  cmocka_unit_test(BF16_weights), \
        cmocka_unit_test(Q8_0_weights), cmocka_unit_test(Q4_0_weights), cmocka_unit_test(Q4_K_weights), \
        cmocka_unit_test(Q5_K_weights), cmocka_unit_test(Q6_K_weights), cmocka_unit_test(rare_weights), \
        cmocka_unit_test(odd_shapes),   cmocka_unit_test(experts)}

#define WAYS_TEST(type, family, rounds)                   \
    static void type##_weights(void **state)              \
    {                                                     \
        (void)state;                                      \
        ways_check_type(family, TSR_TYPE_##type, rounds); \
    }

#endif

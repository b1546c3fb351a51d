/* tsr topo on machines with GPUs: the devices it makes, and its JSON, key by key. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "support/program_json.h"

#define TWO_CARDS "--machine '2x rtx3090 nvlink, 1x rtx4060ti pcie4x8'"

static json_t *topo_json(const char *arguments)
{
    char line[512];
    snprintf(line, sizeof line, "topo --json %s", arguments);
    return program_json(line);
}

/* The value at a path of keys and indices, "topology.gpus.0.name". */
static const json_t *at(const json_t *root, const char *path)
{
    char copy[128];
    const json_t *value = root;
    snprintf(copy, sizeof copy, "%s", path);
    for (char *key = strtok(copy, "."); key; key = strtok(NULL, ".")) {
        value = json_is_array(value) ? json_array_get(value, strtoul(key, NULL, 10))
                                     : json_object_get(value, key);
        if (!value)
            fail_msg("no %s at '%s'", path, key);
    }
    return value;
}

static void json_has_every_fact_of_the_gpus(void **state)
{
    (void)state;
    json_t *root = topo_json(TWO_CARDS " --devices cuda:0,mem=20GiB,cuda:1,host:1");
    assert_int_equal(json_array_size(at(root, "topology.gpus")), 3);
    assert_int_equal(json_integer_value(at(root, "topology.gpus.2.ordinal")), 2);
    assert_string_equal(json_string_value(at(root, "topology.gpus.0.name")), "NVIDIA GeForce RTX 3090");
    assert_int_equal(json_integer_value(at(root, "topology.gpus.0.compute_capability")), 86);
    assert_true(json_real_value(at(root, "topology.gpus.0.memory_bytes_per_s")) > 9e11);
    assert_true(json_real_value(at(root, "topology.gpus.0.tensor_flops")) > 5e13);
    assert_string_equal(json_string_value(at(root, "topology.gpus.0.guessed.0")), "memory");
    assert_true(json_is_null(at(root, "topology.gpus.0.uuid")));
    assert_true(json_is_null(at(root, "topology.gpus.0.memory_free_bytes")));
    assert_true(json_is_false(at(root, "topology.gpus.0.is_mig")));
    assert_int_equal(json_integer_value(at(root, "topology.gpus.2.pcie_max.width")), 8);
    assert_string_equal(json_string_value(at(root, "topology.gpus.0.nvlink_ends.0.kind")), "gpu");
    assert_int_equal(json_integer_value(at(root, "topology.gpus.0.nvlink_ends.0.gpu")), 1);
    assert_int_equal(json_integer_value(at(root, "topology.gpu_pairs.0.1.n_nvlinks")), 4);
    assert_true(json_real_value(at(root, "topology.gpu_pairs.1.0.nvlink_bytes_per_s")) > 5e10);
    assert_string_equal(json_string_value(at(root, "topology.gpu_pairs.0.0.path")), "same");
    assert_true(json_is_true(at(root, "topology.gpu_pairs.2.2.peer_access")));
    assert_true(json_array_size(at(root, "topology.notes")) > 0);
    assert_true(json_is_null(at(root, "topology.gpu_note")));

    assert_int_equal(json_array_size(at(root, "devices")), 3);
    assert_string_equal(json_string_value(at(root, "devices.0.kind")), "cuda");
    assert_int_equal(json_integer_value(at(root, "devices.0.mem_cap_bytes")), INT64_C(20) << 30);
    assert_int_equal(json_integer_value(at(root, "devices.1.gpu")), 1);
    assert_int_equal(json_integer_value(at(root, "devices.1.n_threads")), 0);
    assert_true(json_array_size(at(root, "devices.1.pus")) > 0);
    assert_string_equal(json_string_value(at(root, "devices.2.kind")), "host");
    assert_int_equal(json_integer_value(at(root, "devices.2.gpu")), -1);
    json_decref(root);
}

static void a_machine_without_gpus_has_the_same_keys(void **state)
{
    (void)state;
    json_t *root = topo_json("--machine-file synthetic:pu:2");
    assert_int_equal(json_array_size(at(root, "topology.gpus")), 0);
    assert_int_equal(json_array_size(at(root, "topology.gpu_pairs")), 0);
    assert_true(json_is_null(at(root, "topology.driver_version")));
    assert_string_equal(json_string_value(at(root, "devices.0.name")), "host0");
    json_decref(root);
    root = topo_json(""); /* this machine, whatever it has */
    size_t n = json_array_size(at(root, "topology.gpus"));
    assert_int_equal(json_array_size(at(root, "topology.gpu_pairs")), n);
    assert_true(n > 0 || json_is_string(at(root, "topology.gpu_note")));
    json_decref(root);
}

/* GPUs by default, and host devices only where they are asked for. */
static void devices_are_the_gpus_unless_asked_otherwise(void **state)
{
    (void)state;
    static const program_case cases[] = {
        {TWO_CARDS, 0, "\ncuda2 "},
        {TWO_CARDS " --devices cuda:1,cuda:1,cuda:1", 0, "\ncuda1.2 "},
        {TWO_CARDS " --devices cuda:0,host:1", 0, "\nhost0 "},
        {TWO_CARDS " --devices cuda:7", 1, "'cuda:7' does not exist; the machine has 3 usable GPUs: 0-2"},
        {TWO_CARDS " --devices cuda:0,mem=200GiB", 2, "asks for 200 GiB on GPU 0, which has 24 GiB"},
        {TWO_CARDS " --devices cuda:0,cpus=99", 2, "names CPU 99"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[16384], line[512];
        snprintf(line, sizeof line, "topo %s", cases[i].arguments);
        program_check(line, cases[i].code, cases[i].phrase, text, sizeof text);
        if (i == 0)
            assert_null(strstr(text, "\nhost0"));
    }
}

static void a_plan_for_described_gpus_names_them(void **state)
{
    (void)state;
    static const char model[] = "examples/models/glossary-7m-Q8_0.gguf";
    char text[16384], line[512];
    json_error_t error;
    if (access(model, R_OK) != 0) {
        print_message("skipped: no %s\n", model);
        skip();
    }
    snprintf(line, sizeof line,
             "plan -m %s --json " TWO_CARDS " --devices cuda:0,cuda:2,mem=1GiB,host:1 2>&1", model);
    assert_int_equal(program_run(line, text, sizeof text), 0);
    json_t *root = json_loads(text, 0, &error);
    assert_non_null(root);
    assert_int_equal(json_array_size(at(root, "devices")), 3);
    assert_string_equal(json_string_value(at(root, "devices.0.name")), "cuda0");
    assert_string_equal(json_string_value(at(root, "devices.1.name")), "cuda2");
    assert_int_equal(json_integer_value(at(root, "devices.1.memory_cap_bytes")), 1 << 30);
    assert_string_equal(json_string_value(at(root, "devices.2.name")), "host0");
    json_decref(root);
}

static void the_kernels_of_this_machine_are_shown(void **state)
{
    (void)state;
    char text[65536];
    setenv("TSR_ISA", "generic", 1);
    program_check("topo", 0, "kernels of host devices: generic (TSR_ISA); this machine runs ", text,
                  sizeof text);
    json_t *root = topo_json("");
    const json_t *levels = at(root, "isa.levels"),
                 *last = json_array_get(levels, json_array_size(levels) - 1);
    assert_string_equal(json_string_value(at(root, "isa.chosen")), "generic");
    assert_true(json_is_true(at(root, "isa.by_environment")));
    assert_string_equal(json_string_value(json_object_get(last, "name")), "generic");
    assert_true(json_is_null(json_object_get(last, "lacking")));
    json_decref(root);

    setenv("TSR_ISA", "sse9", 1);
    program_check("topo", 2, "'sse9'", text, sizeof text);
    assert_non_null(strstr(text, "TSR_ISA"));
    root = topo_json("--machine-file synthetic:pu:2"); /* says nothing of kernels */
    assert_true(json_is_null(at(root, "isa")));
    json_decref(root);
    unsetenv("TSR_ISA");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_has_every_fact_of_the_gpus),
        cmocka_unit_test(a_machine_without_gpus_has_the_same_keys),
        cmocka_unit_test(a_plan_for_described_gpus_names_them),
        cmocka_unit_test(devices_are_the_gpus_unless_asked_otherwise),
        cmocka_unit_test(the_kernels_of_this_machine_are_shown),
    };
    return cmocka_run_group_tests_name("tsr topo", tests, NULL, NULL);
}

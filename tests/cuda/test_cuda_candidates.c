/* The likeliest tokens in place of all logits: on GPUs, alone and beside a host device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>
#include <cudasim.h>

#include "support/candidates_check.h"
#include "support/directory.h"
#include "support/synth_model.h"

static void candidates_do_not_depend_on_the_split(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"cuda:0", NULL},
                                           {"cuda:0,cuda:1", "3,1"},
                                           {"cuda:0,cuda:1,cuda:2", "1,4,2"},
                                           {"cuda:0,host", "2,1"}};
    struct synth_model_config model = SYNTH_MODEL_CONFIG_INIT;
    cudasim_config machine = CUDASIM_CONFIG_INIT;
    char path[DIRECTORY_PATH];
    model.n_layers = 1;
    machine.n_devices = 3;
    machine.peer_access = true;
    cudasim_configure(&machine);
    close(directory_new(path));
    synth_model_write(&model, path);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        candidates_check(path, cases[i][0], cases[i][1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(candidates_do_not_depend_on_the_split)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

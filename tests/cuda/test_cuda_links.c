/* Measuring what simulated GPUs exchange, through each kind of collectives, and with a host device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <cudasim.h>

#include "cuda/simulated.h"
#include "support/links_check.h"

static void machine(int n_devices, bool peer_access)
{
    cudasim_config config = CUDASIM_CONFIG_INIT;
    config.n_devices = n_devices;
    config.peer_access = peer_access;
    cudasim_configure(&config);
}

static void check(const char *devices)
{
    links_check_measured(devices);
    nothing_is_left();
}

static void links_of_peers_are_measured(void **state)
{
    (void)state;
    machine(2, true);
    check("cuda");
}

static void links_through_host_memory_are_measured(void **state)
{
    (void)state;
    machine(2, false);
    check("cuda:1,host:1,threads=1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(links_of_peers_are_measured),
        cmocka_unit_test(links_through_host_memory_are_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

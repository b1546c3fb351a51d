/* This machine, as this process may use it: processors, memory limits, pinning, and several threads at it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tsr/topology.h>

#include "support/directory.h"
#include "support/topology.h"
#include "topo/network.h"
#include "topo/pin.h"
#include "topo/topo.h"

static void this_machine_is_sound(void **state)
{
    (void)state;
    tsr_topology *topo = NULL;
    assert_int_equal(tsr_topology_discover(NULL, &topo), TSR_OK);
    assert_null(topology_fault(topo));
    assert_string_equal(topo->source, "this machine");
    cpu_set_t allowed;
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    if (topo->is_this_machine) {
        assert_int_equal(topo->n_pus, CPU_COUNT(&allowed));
        for (int i = 0; i < topo->n_pus; i++)
            assert_true(CPU_ISSET(topo->pus[i].os_index, &allowed));
    }
    tsr_topology_destroy(topo);
}

static void write_text(const char *name, const char *text)
{
    directory_write(name, text, strlen(text));
}

static void write_port(const char *port, const char *state, const char *rate, const char *layer)
{
    char name[128];
    const char *const files[][2] = {{"state", state}, {"rate", rate}, {"link_layer", layer}};
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "net/sys/class/infiniband/%s/%s", port, files[i][0]);
        write_text(name, files[i][1]);
    }
}

static void the_fastest_network_of_the_kernel_is_found(void **state)
{
    (void)state;
    char root[64];
    tsr_machine found;
    snprintf(root, sizeof root, "%s", directory_file("net"));
    assert_false(tsr_network_find(root, &found));
    write_text("net/sys/class/net/docker0/speed", "40000\n"); /* without hardware */
    write_text("net/sys/class/net/docker0/operstate", "up\n");
    write_text("net/sys/class/net/eno1/device/vendor", "0x8086\n");
    write_text("net/sys/class/net/eno1/operstate", "up\n");
    write_text("net/sys/class/net/eno1/speed", "-1\n"); /* not known */
    assert_false(tsr_network_find(root, &found));
    write_text("net/sys/class/net/eno1/speed", "25000\n");
    write_text("net/sys/class/net/eno2/device/vendor", "0x8086\n");
    write_text("net/sys/class/net/eno2/operstate", "down\n");
    write_text("net/sys/class/net/eno2/speed", "100000\n");
    assert_true(tsr_network_find(root, &found));
    assert_true(found.network == TSR_NETWORK_ETHERNET && found.n_adapters == 1);
    assert_true(found.network_bytes_per_s == 25e9 / 8 && found.network_latency_ns == 25000);
    write_port("mlx5_0/ports/1", "4: ACTIVE\n", "100 Gb/sec (2X HDR)\n", "Ethernet\n");
    assert_true(tsr_network_find(root, &found));
    assert_true(found.network == TSR_NETWORK_ROCE && found.network_bytes_per_s == 12.5e9);
    write_port("mlx5_1/ports/1", "4: ACTIVE\n", "400 Gb/sec (4X NDR)\n", "InfiniBand\n");
    write_port("mlx5_2/ports/2", "4: ACTIVE\n", "400 Gb/sec (4X NDR)\n", "InfiniBand\n");
    write_port("mlx5_3/ports/1", "1: DOWN\n", "800 Gb/sec (4X XDR)\n", "InfiniBand\n");
    assert_true(tsr_network_find(root, &found));
    assert_true(found.network == TSR_NETWORK_INFINIBAND && found.n_adapters == 2);
    assert_true(found.network_bytes_per_s == 100e9 && found.network_latency_ns == 2700);
}

static void the_least_memory_limit_of_the_cgroups_counts(void **state)
{
    (void)state;
    char root[64];
    snprintf(root, sizeof root, "%s", directory_file("v2"));
    assert_int_equal(tsr_topo_cgroup_memory_limit(root), 0); /* not Linux, or no /proc */
    write_text("v2/proc/self/cgroup", "0::/a/b\n");
    assert_int_equal(tsr_topo_cgroup_memory_limit(root), 0);
    write_text("v2/sys/fs/cgroup/a/b/memory.max", "max\n");
    assert_int_equal(tsr_topo_cgroup_memory_limit(root), 0);
    write_text("v2/sys/fs/cgroup/a/memory.max", "2000000\n"); /* the parent's holds too */
    assert_int_equal(tsr_topo_cgroup_memory_limit(root), 2000000);
    write_text("v2/sys/fs/cgroup/a/b/memory.max", "3000000\n");
    assert_int_equal(tsr_topo_cgroup_memory_limit(root), 2000000);

    snprintf(root, sizeof root, "%s", directory_file("v1"));
    write_text("v1/proc/self/cgroup", "nonsense\n9:cpu,cpuacct:/x\n4:memory:/docker/123\n0::/\n");
    write_text("v1/sys/fs/cgroup/memory/memory.limit_in_bytes", "5000000\n"); /* the container's root */
    assert_int_equal(tsr_topo_cgroup_memory_limit(root), 5000000);
}

static void a_covered_folder_of_nodes_is_noticed(void **state)
{
    (void)state;
    char root[64];
    snprintf(root, sizeof root, "%s", directory_file("probe"));
    assert_false(tsr_topo_sysfs_shows_processors(root));
    write_text("probe/sys/devices/system/cpu/cpu0/topology/core_id", "0\n");
    assert_true(tsr_topo_sysfs_shows_processors(root)); /* a kernel without NUMA */
    write_text("probe/sys/devices/system/node/online", "0\n");
    assert_false(tsr_topo_sysfs_shows_processors(root));
    write_text("probe/sys/devices/system/node/nodes", "0\n");
    assert_false(tsr_topo_sysfs_shows_processors(root));
    write_text("probe/sys/devices/system/node/node0/cpumap", "1\n");
    assert_true(tsr_topo_sysfs_shows_processors(root));
}

/* hwloc aborts on this tree. */
static void a_crash_of_hwloc_is_an_error(void **state)
{
    (void)state;
    tsr_topology *topo = NULL;
    write_text("crash/sys/devices/system/cpu/cpu0/topology/core_id", "0\n");
    write_text("crash/sys/devices/system/cpu/cpu0/topology/thread_siblings", "1\n");
    write_text("crash/sys/devices/system/cpu/online", "0\n");
    write_text("crash/sys/devices/system/node/x", "");
    unlink(directory_file("crash/sys/devices/system/node/x"));
    setenv("HWLOC_FSROOT", directory_file("crash"), 1);
    tsr_status status = tsr_topology_discover(NULL, &topo);
    unsetenv("HWLOC_FSROOT");
    assert_int_equal(status, TSR_ERR_FORMAT);
    assert_non_null(strstr(tsr_last_error(), "hwloc crashed while reading"));
    assert_non_null(strstr(tsr_last_error(), "crash"));
    assert_null(topo);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
}

/* In a mount namespace of its own, which takes root, as a container may show it. 0: as it should be. */
static int discover_below(const char *covered)
{
    tsr_topology *topo = NULL;
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", covered, "tmpfs", 0, NULL) != 0)
        return 77;
    if (tsr_topology_discover(NULL, &topo) != TSR_OK)
        return 2;
    cpu_set_t allowed;
    bool good = !topology_fault(topo) && topo->is_this_machine && topo->memory_bytes > 0 &&
                sched_getaffinity(0, sizeof allowed, &allowed) == 0 && topo->n_pus == CPU_COUNT(&allowed);
    tsr_topology_destroy(topo);
    return good && waitpid(-1, NULL, WNOHANG) == -1 ? 0 : 3;
}

static void covered_parts_of_sys_are_no_fault(void **state)
{
    (void)state;
    static const char *const covered[] = {"/sys/devices/system/node", "/sys/devices/system/cpu",
                                          "/sys/bus/pci/devices", "/sys"};
    for (size_t i = 0; i < sizeof covered / sizeof *covered; i++) {
        int how = -1;
        pid_t child = access(covered[i], F_OK) == 0 ? fork() : -1;
        if (child == 0)
            _exit(discover_below(covered[i]));
        if (child > 0)
            assert_int_equal(waitpid(child, &how, 0), child);
        if (child < 0 || (WIFEXITED(how) && WEXITSTATUS(how) == 77)) {
            print_message("skipped: no %s, or it cannot be covered (not root)\n", covered[i]);
            continue;
        }
        if (!WIFEXITED(how) || WEXITSTATUS(how) != 0)
            fail_msg("%s covered: signal %d, code %d", covered[i], how & 127, how >> 8);
    }
}

/* In a process of its own: affinity is the whole process's business. */
static void a_process_confined_to_one_cpu_sees_one(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    print_message("skipped: ThreadSanitizer's own thread keeps the whole machine\n");
    skip();
#endif
    pid_t child = fork();
    if (child == 0) {
        cpu_set_t set;
        if (sched_getaffinity(0, sizeof set, &set) != 0)
            _exit(1);
        int last = CPU_SETSIZE - 1;
        while (!CPU_ISSET(last, &set))
            last--;
        CPU_ZERO(&set);
        CPU_SET(last, &set);
        tsr_topology *topo = NULL;
        if (sched_setaffinity(0, sizeof set, &set) != 0 || tsr_topology_discover(NULL, &topo) != TSR_OK)
            _exit(2);
        bool good = !topology_fault(topo) && topo->n_pus == 1 && topo->pus[0].os_index == last;
        tsr_topology_destroy(topo);
        _exit(good ? 0 : 3);
    }
    int how = -1;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 0);
}

static void *pin_one_thread(void *good_out)
{
    cpu_set_t set;
    bool good = sched_getaffinity(0, sizeof set, &set) == 0;
    int first = 0, last = CPU_SETSIZE - 1, nonsense = 1000000;
    while (!CPU_ISSET(first, &set))
        first++;
    while (!CPU_ISSET(last, &set))
        last--;
    good = good && tsr_topo_pin_thread(&last, 1) == TSR_OK && sched_getcpu() == last;
    good = good && tsr_topo_pin_thread(&nonsense, 1) == TSR_ERR_INVALID && sched_getcpu() == last;

    /* Three threads on one processor: the first has it alone, the others any of the set. */
    tsr_device_desc desc = {.name = "host0", .n_threads = 3, .n_pus = 2};
    desc.pus = (int[]){first, last};
    desc.thread_pus = (int[]){first, -1, -1};
    good = good && tsr_topo_pin_team_thread(&desc, 0) == TSR_OK && sched_getcpu() == first;
    good =
        good && tsr_topo_pin_team_thread(&desc, 2) == TSR_OK && sched_getaffinity(0, sizeof set, &set) == 0;
    good = good && CPU_ISSET(first, &set) && CPU_ISSET(last, &set);
    good = good && tsr_topo_pin_team_thread(&desc, 3) == TSR_ERR_INVALID;

    /* The one host thread of a GPU may use any of its processors. */
    tsr_device_desc gpu = {.name = "cuda0", .kind = TSR_DEVICE_CUDA, .n_pus = 1, .pus = &last};
    good = good && tsr_topo_pin_team_thread(&gpu, 0) == TSR_OK && sched_getcpu() == last;
    good = good && tsr_topo_pin_team_thread(&gpu, 1) == TSR_ERR_INVALID;
    *(bool *)good_out = good;
    return NULL;
}

static void threads_are_pinned_where_asked(void **state)
{
    (void)state;
    pthread_t thread; /* so that the test itself stays unpinned */
    bool good = false;
    assert_int_equal(pthread_create(&thread, NULL, pin_one_thread, &good), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(good);
}

static void *load_many(void *good)
{
    for (int i = 0; i < 5; i++) {
        tsr_topology *topo = NULL;
        if (tsr_topology_load("synthetic:pack:2 l3:2 core:4 pu:2", NULL, &topo) != TSR_OK ||
            topo->n_cores != 16)
            *(bool *)good = false;
        tsr_topology_destroy(topo);
    }
    return NULL;
}

static void several_threads_load_at_once(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    /* Loading forks. A sanitizer's allocator, unlike the C library's, may then stay locked in the
     * child. */
    print_message("skipped: sanitizers do not survive a fork while other threads allocate\n");
    skip();
#endif
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    bool good[THREADS] = {true, true, true, true};
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, load_many, &good[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_true(good[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(this_machine_is_sound),
        cmocka_unit_test(the_fastest_network_of_the_kernel_is_found),
        cmocka_unit_test(the_least_memory_limit_of_the_cgroups_counts),
        cmocka_unit_test(a_covered_folder_of_nodes_is_noticed),
        cmocka_unit_test(a_crash_of_hwloc_is_an_error),
        cmocka_unit_test(covered_parts_of_sys_are_no_fault),
        cmocka_unit_test(a_process_confined_to_one_cpu_sees_one),
        cmocka_unit_test(threads_are_pinned_where_asked),
        cmocka_unit_test(several_threads_load_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

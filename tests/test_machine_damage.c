/* Damaged descriptions: seeded flips, cuts, repetitions and absurd numbers in every sample give a sound
 * topology or one line of error, whichever reader they meet. hwloc's own files are damaged in
 * test_topology.c, since each of them costs a process. TSR_TEST_ROUNDS scales the number of rounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <unistd.h>

#include <tsr/links.h>
#include <tsr/topology.h>

#include "core/mem.h"
#include "support/random.h"
#include "support/topology.h"
#include "topo/import/builder.h"
#include "topo/import/machine_file.h"

#define SHARED "../shared/topo/nccl"

/* Each reader meets its own kind whole, so that damage goes past the look at the first element. */
typedef tsr_status (*reader)(const char *text, size_t bytes, const char *name, tsr_topology **topo_out);

static const char nccl_xml[] =
    "<system version=\"1\"><cpu numaid=\"0\" affinity=\"ff,000000ff\" arch=\"x86_64\" "
    "vendor=\"AuthenticAMD\">"
    "<pci busid=\"0000:10:00.0\" class=\"0x060400\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">"
    "<pci busid=\"0000:11:00.0\" class=\"0x030200\" vendor=\"0x10de\" device=\"0x2330\" link_speed=\"16 "
    "GT/s\""
    " link_width=\"16\"><gpu dev=\"0\" sm=\"90\" rank=\"0\"><nvlink target=\"0000:12:00.0\" count=\"18\""
    " tclass=\"0x030200\"/><c2c count=\"2\" bw=\"25000\"/></gpu></pci>"
    "<pci busid=\"0000:12:00.0\" class=\"0x030200\" vendor=\"0x10de\" device=\"0x2330\" link_speed=\"\""
    " link_width=\"0\"><gpu dev=\"1\" sm=\"90\" rank=\"1\"><nvlink target=\"0000:11:00.0\" count=\"18\""
    " tclass=\"0x030200\"/><nvlink target=\"fffffff:ff:ff.0\" count=\"1\" "
    "tclass=\"0x068000\"/></gpu></pci></pci>"
    "</cpu><cpu numaid=\"1\"><pci busid=\"0000:81:00.0\" class=\"0x020000\"/></cpu></system>\n";

static const char smi_text[] = "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\n"
                               "\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\n"
                               "GPU0\t X \tNV4\tSYS\tPXB\t0-3,8\t0\n"
                               "GPU1\tNV4\t X \tPIX\tSYS\t0-3,8\t0\n"
                               "GPU2\tSYS\tPIX\t X \tNODE\t4-7\t1\n"
                               "NIC0\tPXB\tSYS\tNODE\t X \n";

static const char machine_text[] =
    "2x rtx3090 nvlink pcie4x8, 4x a100 nvswitch 40GiB 1500GB/s node 1, 2x l4 switch, "
    "2x host 16 cores 64GiB 100GB/s";

static size_t damage(char *text, size_t bytes, size_t room, uint64_t *seed)
{
    for (uint64_t n = 1 + random_below(seed, 4); n > 0 && bytes > 8; n--) {
        size_t at = random_below(seed, bytes - 1);
        size_t length = 1 + random_below(seed, TSR_MIN(bytes - at, (size_t)60));
        switch (random_below(seed, 8)) {
        case 0: /* a byte */
            text[at] = (char)random_below(seed, 256);
            break;
        case 1: /* a bit */
            text[at] = (char)(text[at] ^ (1 << random_below(seed, 8)));
            break;
        case 2: /* a stretch is gone */
            memmove(text + at, text + at + length, bytes - at - length);
            bytes -= length;
            break;
        case 3: /* a stretch is there twice */
            if (bytes + length < room) {
                memmove(text + at + length, text + at, bytes - at);
                bytes += length;
            }
            break;
        case 4: /* cut off */
            if (random_below(seed, 4) == 0)
                bytes = at + 1;
            break;
        default: /* numbers do the most harm */
            at += strcspn(text + at, "0123456789");
            for (bool all = random_below(seed, 2); at < bytes && text[at] >= '0' && text[at] <= '9'; at++) {
                text[at] = all ? '9' : (char)('0' + random_below(seed, 10));
                if (!all)
                    break;
            }
        }
        text[bytes] = '\0';
    }
    return bytes;
}

/* What planning does next with a machine must survive it, too. */
static const char *use(tsr_topology *topo)
{
    tsr_device_list *devices = NULL;
    tsr_links *links = NULL;
    const char *fault = topology_fault(topo);
    /* a GPU of unknown model takes no device */
    const char *which = *topo->gpu_note ? "host" : NULL;
    if (!fault && tsr_device_list_create(topo, which, NULL, &devices) != TSR_OK)
        fault = "a machine has devices";
    if (!fault && tsr_links_create(topo, devices, &links) == TSR_OK)
        for (int n = tsr_links_n_devices(links); n > 0 && !fault; n--)
            if (!(tsr_links_all_reduce_ns(links, (UINT64_C(1) << (n - 1)) | 1, 4096) >= 0))
                fault = "an all-reduce takes a time";
    tsr_links_destroy(links);
    tsr_device_list_destroy(devices);
    return fault;
}

static const char *try_one(reader read, const char *text, size_t bytes, int *n_loaded)
{
    tsr_topology *topo = NULL;
    const char *fault = NULL;
    tsr_status status = read(text, bytes, "damaged", &topo);
    if (status == TSR_OK)
        status = tsr_topo_complete(topo, NULL);
    if (status == TSR_OK) {
        fault = use(topo);
        ++*n_loaded;
    } else if (!tsr_last_error()[0] || strchr(tsr_last_error(), '\n')) {
        fault = "a failure leaves one line";
    } else if (status != TSR_ERR_FORMAT && status != TSR_ERR_UNSUPPORTED && status != TSR_ERR_INVALID) {
        fault = "a failure of the file's";
    }
    tsr_topology_destroy(topo);
    return fault;
}

static int rounds(int by_default)
{
    const char *text = getenv("TSR_TEST_ROUNDS");
    return text && atoi(text) > 0 ? TSR_MIN(by_default, 20 * atoi(text)) : by_default;
}

static void damage_often(reader read, const char *sample, const char *name, int n)
{
    size_t bytes = strlen(sample), room = 2 * bytes + 1024;
    char *text = malloc(room);
    int n_loaded = 0;
    uint64_t seed = 20240229 + bytes;
    assert_non_null(text);
    for (int round = 0; round < n; round++) {
        memcpy(text, sample, bytes + 1);
        size_t left = damage(text, bytes, room, &seed);
        const char *fault = try_one(read, text, left, &n_loaded);
        if (fault)
            fail_msg("%s, round %d: does not hold: %s\n%s", name, round, fault, text);
    }
    free(text);
    print_message("%s: %d of %d still loaded\n", name, n_loaded, n);
    assert_in_range(n_loaded, n / 100, n - n / 20); /* else the damage tests nothing */
}

static void damaged_nccl_files_are_refused_or_sound(void **state)
{
    (void)state;
    damage_often(tsr_topo_read_nccl_xml, nccl_xml, "nccl", rounds(4000));
}

static void damaged_recorded_nccl_files_are_refused_or_sound(void **state)
{
    (void)state;
    DIR *listing = opendir(SHARED);
    if (!listing) {
        print_message("skipped: no recorded machines at " SHARED "\n");
        skip();
    }
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        char path[600], text[16384];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, SHARED "/%s", entry->d_name);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        fclose(file);
        damage_often(tsr_topo_read_nccl_xml, text, entry->d_name, rounds(400));
    }
    closedir(listing);
}

static void damaged_matrices_are_refused_or_sound(void **state)
{
    (void)state;
    damage_often(tsr_topo_read_nvidia_smi, smi_text, "nvidia-smi", rounds(4000));
}

static tsr_status read_words(const char *text, size_t bytes, const char *name, tsr_topology **topo_out)
{
    (void)bytes, (void)name;
    return tsr_topo_read_machine_spec(text, topo_out);
}

static void damaged_machine_texts_are_refused_or_sound(void **state)
{
    (void)state;
    damage_often(read_words, machine_text, "--machine", rounds(4000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_nccl_files_are_refused_or_sound),
        cmocka_unit_test(damaged_recorded_nccl_files_are_refused_or_sound),
        cmocka_unit_test(damaged_matrices_are_refused_or_sound),
        cmocka_unit_test(damaged_machine_texts_are_refused_or_sound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

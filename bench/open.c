/* Opening and planning a large model, warm:
 *
 *     build/bench/open [MODEL.gguf]
 *
 * Without a file, a 2 GB F16 model with the shape of Llama 3.2 1B is made in a temporary folder; its weights
 * are holes (zeros that take no disk), which makes no difference to what is measured, since opening reads no
 * weight. Finding out about the machine (hwloc) is not part of it. Three figures: reading the header and
 * planning, opening the model (which plans and places the weights), each the median of many rounds; and how
 * much resident memory (VmRSS) has grown, as a share of the file, when a session is ready for its first
 * token. */
#include <stdio.h>
#include <stdlib.h>

#include <tsr/device_list.h>
#include <tsr/gguf.h>
#include <tsr/plan.h>
#include <tsr/runtime.h>

#include "support/measured.h"
#include "support/opened.h"

enum { N_ROUNDS = 31 };

#define DEVICES "host:2,threads=1"

/* Bytes resident, file pages included. */
static double resident(void)
{
    char line[128];
    double kib = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmRSS: %lf kB", &kib) == 1)
            break;
    if (file)
        fclose(file);
    if (kib < 0) {
        fprintf(stderr, "open: no VmRSS in /proc/self/status\n");
        exit(1);
    }
    return 1024 * kib;
}

static void report(const char *what, double *ms)
{
    const double middle = bench_median(ms, N_ROUNDS);
    printf("%-28s %7.2f ms   (%.2f to %.2f over %d rounds)\n", what, middle, ms[0], ms[N_ROUNDS - 1],
           N_ROUNDS);
}

static void time_plan(const char *path, const tsr_device_list *devices)
{
    double ms[N_ROUNDS];
    for (int i = -1; i < N_ROUNDS; i++) { /* the first one warms up */
        tsr_gguf *gguf;
        tsr_plan *plan;
        double begin = bench_now();
        bench_check(tsr_gguf_open(path, NULL, &gguf));
        bench_check(tsr_plan_create(gguf, devices, NULL, &plan));
        ms[i < 0 ? 0 : i] = 1e3 * (bench_now() - begin);
        tsr_plan_destroy(plan);
        tsr_gguf_close(gguf);
    }
    report("gguf_open + plan_create", ms);
}

static void time_open(const char *path, tsr_runtime *rt)
{
    double ms[N_ROUNDS];
    for (int i = -1; i < N_ROUNDS; i++) {
        tsr_model *model;
        double begin = bench_now();
        bench_check(tsr_model_open(rt, path, NULL, &model));
        ms[i < 0 ? 0 : i] = 1e3 * (bench_now() - begin);
        tsr_model_close(model);
    }
    report("model_open", ms);
}

static void measure_growth(const char *path, tsr_runtime *rt)
{
    tsr_gguf *gguf;
    tsr_model *model;
    tsr_session *session;
    bench_check(tsr_gguf_open(path, NULL, &gguf));
    double file = (double)tsr_gguf_file_bytes(gguf);
    tsr_gguf_close(gguf);
    double before = resident();
    bench_check(tsr_model_open(rt, path, NULL, &model));
    bench_check(tsr_session_create(model, &session));
    double growth = resident() - before;
    printf("%-28s %7.3f %%    (%.1f MB of %.0f MB)\n", "resident before a token", 100 * growth / file,
           1e-6 * growth, 1e-6 * file);
    tsr_session_destroy(session);
    tsr_model_close(model);
}

int main(int argc, char **argv)
{
    const struct synth_model_config shape = BENCH_LLAMA_1B_HOLES;
    const bench_file made = argc > 1 ? (bench_file){0} : bench_make(&shape);
    const char *path = argc > 1 ? argv[1] : made.path;
    tsr_runtime_config config = tsr_runtime_config_default();
    tsr_topology *topo;
    tsr_device_list *devices;
    tsr_runtime *rt;
    bench_check(tsr_topology_discover(NULL, &topo));
    bench_check(tsr_device_list_create(topo, DEVICES, NULL, &devices));
    config.devices = DEVICES;
    config.topology = topo;
    bench_check(tsr_runtime_open(&config, &rt));
    measure_growth(path, rt); /* first, while nothing of the file is mapped yet */
    time_plan(path, devices);
    time_open(path, rt);
    tsr_runtime_close(rt);
    tsr_device_list_destroy(devices);
    tsr_topology_destroy(topo);
    if (argc <= 1)
        bench_unmake(&made);
    return 0;
}

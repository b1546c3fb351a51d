/* 03: planning without running: what would this model take on that machine?
 *
 * A plan needs a GGUF file's header and a description of devices. The devices may belong to a machine that is
 * not here, and nothing is allocated on any of them, so an installer, a scheduler or a curious person can ask
 * before there is anything to run on. The bytes are not an estimate: planning runs the loader itself on
 * devices that only count.
 *
 *     build/bin/03_plan_only
 *     build/bin/03_plan_only model.gguf server.xml host:4,mem=24GiB 2,1,1,1
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tsr/tsr.h>

#define TRY(call)                                                        \
    do {                                                                 \
        if ((call) != TSR_OK) {                                          \
            fprintf(stderr, "%s failed: %s\n", #call, tsr_last_error()); \
            goto out;                                                    \
        }                                                                \
    } while (0)

static void print(const char *text, void *user)
{
    (void)user;
    fputs(text, stdout);
}

/* Plan for the devices that `spec` makes of a machine. The caller destroys the plan; on failure the sentence
 * is in tsr_last_error(). */
static tsr_status make_plan(const tsr_gguf *gguf, const tsr_topology *machine, const char *spec,
                            const char *split_text, tsr_plan **plan)
{
    float split[TSR_MAX_DEVICES];
    tsr_model_config config = tsr_model_config_default();
    tsr_device_list *devices = NULL;
    tsr_status status = tsr_split_parse(split_text, split, TSR_MAX_DEVICES, &config.split.n_tensor_split);
    config.split.tensor_split = split;
    if (status == TSR_OK)
        status = tsr_device_list_create(machine, spec, NULL, &devices);
    if (status == TSR_OK)
        status = tsr_plan_create(gguf, devices, &config, plan);
    tsr_device_list_destroy(devices);
    return status;
}

/* The plan as tables, then one of its numbers as a program would use it. */
static int show_plan(const tsr_gguf *gguf, const tsr_topology *machine, const char *spec,
                     const char *split_text)
{
    int failed = 1;
    tsr_plan *plan = NULL;
    tsr_plan_info info;
    tsr_plan_device device;
    size_t most = 0;
    printf("--devices %s, tensor_split %s\n", spec, split_text);
    TRY(make_plan(gguf, machine, spec, split_text, &plan));
    tsr_plan_print(plan, print, NULL);
    tsr_plan_get_info(plan, &info);
    for (int d = 0; d < info.n_devices; d++) {
        TRY(tsr_plan_get_device(plan, d, &device));
        if (device.total_bytes > most)
            most = device.total_bytes;
    }
    printf("The largest part takes %zu bytes.\n\n", most);
    failed = 0;
out:
    tsr_plan_destroy(plan);
    return failed;
}

/* A model that does not fit is an answer, not an accident: a status, and a sentence that names device and
 * bytes. */
static int show_refusal(const tsr_gguf *gguf, const tsr_topology *machine, const char *spec,
                        const char *split_text)
{
    tsr_plan *plan = NULL;
    tsr_status status = make_plan(gguf, machine, spec, split_text, &plan);
    tsr_plan_destroy(plan);
    printf("--devices %s, tensor_split %s\n%s: %s\n", spec, split_text, tsr_status_name(status),
           status == TSR_OK ? "it fits, which is a surprise" : tsr_last_error());
    return status != TSR_ERR_MEMORY;
}

int main(int argc, char **argv)
{
    int failed = 1;
    tsr_gguf *gguf = NULL;
    tsr_topology *machine = NULL;
    tsr_gguf_config header = tsr_gguf_config_default();
    const char *path = argc > 1 ? argv[1] : "examples/models/glossary-7m-Q8_0.gguf";
    const char *machine_file = argc > 2 ? argv[2] : "synthetic:pack:2 [numa(memory=64GiB)] core:8 pu:2";
    header.header_only = true; /* the tensors' bytes may be missing: a file cut after its header will do */

    TRY(tsr_gguf_open(path, &header, &gguf));
    TRY(tsr_topology_load(machine_file, NULL, &machine));
    tsr_topology_print(machine, print, NULL);
    printf("\n");
    if (argc > 3) {
        failed = show_plan(gguf, machine, argv[3], argc > 4 ? argv[4] : "0");
    } else {
        /* As asked; then with a cap that makes the planner give the second device less than was asked; then
         * with caps under which there is no way to place the model. */
        failed = show_plan(gguf, machine, "host:2", "3,1") ||
                 show_plan(gguf, machine, "host:1,host:1,mem=4MiB", "1,1") ||
                 show_refusal(gguf, machine, "host:2,mem=4MiB", "1,1");
    }
out:
    tsr_topology_destroy(machine);
    tsr_gguf_close(gguf);
    return failed;
}

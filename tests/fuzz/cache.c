/* The files of measured rates and links, and a plan made from them. The input is the JSON of an entry; its
 * first byte chooses the file. */
#include "fuzz.h"

#include <tsr/tsr.h>

#include "cache_file.h"
#include "fuzz/model.h"
#include "links_file.h"
#include "rates_file.h"

enum { N_DEVICES = 3 };
static const tool_processes alone;

static struct {
    tsr_topology *topo;
    tsr_device_list *list;
    tsr_gguf *gguf;
    char rates_path[TOOL_PATH], links_path[TOOL_PATH];
    char entry[32]; /* the name of these devices' entry */
} it;

/* The name of the entry is whatever the tool calls it. */
static void find_entry(void)
{
    json_t *root = json_load_file(it.rates_path, 0, NULL);
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) snprintf(it.entry, sizeof it.entry, "%s", key);
    json_decref(root);
}

static void set_up(void)
{
    char folder[] = "/tmp/tsr-fuzz-XXXXXX", path[64];
    tsr_device_rates rates[N_DEVICES];
    struct synth_model_config synth = fuzz_model(NULL);
    synth.header_only = true;
    tsr_gguf_config header = tsr_gguf_config_default();
    header.header_only = true;
    int fd = fuzz_file("", 0, path);
    synth_model_write(&synth, path);
    if (!mkdtemp(folder) || setenv("XDG_CACHE_HOME", folder, 1) != 0 ||
        tsr_topology_parse("2x rtx3090 nvlink, 1x host 8 cores 64GiB", NULL, &it.topo) != TSR_OK ||
        tsr_device_list_create(it.topo, "cuda,host:1", NULL, &it.list) != TSR_OK ||
        tsr_gguf_open(path, &header, &it.gguf) != TSR_OK)
        abort();
    close(fd);
    tsr_device_rates_guess(it.list->devices, N_DEVICES, rates);
    if (!tool_rates_save(&alone, it.topo, it.list, it.list, rates) ||
        !tool_cache_path(TOOL_RATES_FILE, it.rates_path) || !tool_cache_path(TOOL_LINKS_FILE, it.links_path))
        abort();
    find_entry();
    if (!*it.entry)
        abort();
}

static void write_file(const char *path, const uint8_t *json, size_t bytes)
{
    FILE *file = fopen(path, "w");
    if (!file)
        abort();
    fprintf(file, "{\"%s\": {\"date\": \"2100-01-01T00:00:00Z\", \"values\": ", it.entry);
    fwrite(json, 1, bytes, file);
    fputs("}}", file);
    if (fclose(file) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    tsr_device_rates rates[N_DEVICES];
    tsr_links *links = NULL;
    tsr_plan *plan = NULL;
    tsr_model_config config = tsr_model_config_default();
    size_t written = 0;
    if (!it.topo)
        set_up();
    if (bytes < 1)
        return 0;
    write_file(data[0] & 1 ? it.links_path : it.rates_path, data + 1, bytes - 1);
    if (tool_rates_load(&alone, it.topo, it.list, N_DEVICES, rates))
        config.plan.rates = rates;
    if (tsr_links_create(it.topo, it.list, &links) != TSR_OK)
        abort();
    tool_links_load(it.topo, it.list, links);
    config.plan.links = links;
    if (fuzz_ok(tsr_plan_create(it.gguf, it.list, &config, &plan)))
        tsr_plan_explain(plan, fuzz_discard, &written);
    tsr_plan_destroy(plan);
    tsr_links_destroy(links);
    return 0;
}

/* program_invocation_short_name is of <errno.h> with GNU extensions. */
#include "support/opened.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tsr/device_list.h>
#include <tsr/runtime.h>

#include "support/measured.h"

void bench_check(tsr_status status)
{
    if (status == TSR_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, tsr_status_name(status), tsr_last_error());
    exit(1);
}

/* To the disk and out of the page cache: written pages are small, those read again huge where the file system
 * has such, and from these one core decodes up to a seventh faster. */
static void settle(const char *path)
{
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fsync(fd) != 0) {
        fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, path, strerror(errno));
        exit(1);
    }
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

bench_file bench_make(const struct synth_model_config *config)
{
    bench_file file = {.folder = "/tmp/tsr_bench_XXXXXX"};
    if (!mkdtemp(file.folder)) {
        fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, file.folder, strerror(errno));
        exit(1);
    }
    snprintf(file.path, sizeof file.path, "%s/model.gguf", file.folder);
    synth_model_write(config, file.path);
    settle(file.path);
    return file;
}

void bench_unmake(const bench_file *file)
{
    unlink(file->path);
    rmdir(file->folder);
}

/* On the runtime that is open. */
static void open_model(bench_opened *o, const char *path, const tsr_model_config *config)
{
    tsr_model_info info;
    bench_check(tsr_model_open(o->rt, path, config, &o->model));
    bench_check(tsr_session_create(o->model, &o->session));
    tsr_model_get_info(o->model, &info);
    o->logits = malloc((size_t)info.n_vocab * sizeof(float));
    if (!o->logits)
        abort();
}

static bench_opened open_as(const char *path, const char *devices, const char *collectives, int64_t n_ctx,
                            bool copy_weights)
{
    bench_opened o = {0};
    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    tsr_model_config config = tsr_model_config_default();
    runtime_config.devices = devices;
    runtime_config.collectives = collectives;
    config.session.n_ctx = n_ctx;
    config.load.copy_weights = copy_weights;
    bench_check(tsr_runtime_open(&runtime_config, &o.rt));
    open_model(&o, path, &config);
    return o;
}

bench_opened bench_open(const char *path, const char *devices, int64_t n_ctx)
{
    return open_as(path, devices, NULL, n_ctx, false);
}

bench_opened bench_open_with(const char *path, const char *devices, const char *collectives, int64_t n_ctx)
{
    return open_as(path, devices, collectives, n_ctx, false);
}

bench_opened bench_open_copies(const char *path, const char *devices, int64_t n_ctx)
{
    return open_as(path, devices, NULL, n_ctx, true);
}

static bench_opened open_divided(const char *path, const char *devices, const tsr_transport *transport,
                                 int64_t n_ctx, int n_layers)
{
    bench_opened o = {0};
    float even[TSR_MAX_DEVICES];
    tsr_runtime_config runtime_config = tsr_runtime_config_default();
    tsr_model_config config = tsr_model_config_default();
    runtime_config.devices = devices;
    runtime_config.transport = transport;
    bench_check(tsr_runtime_open(&runtime_config, &o.rt));
    config.session.n_ctx = n_ctx;
    config.split.tensor_split = even;
    config.split.n_tensor_split = tsr_runtime_n_devices(o.rt);
    for (int d = 0; d < config.split.n_tensor_split; d++)
        even[d] = 1;
    if (n_layers > 0) { /* the output counts as one more layer */
        config.split.mode = TSR_SPLIT_MODE_LAYER;
        for (int d = 0; d < config.split.n_tensor_split; d++)
            even[d] = (float)n_layers / (float)config.split.n_tensor_split;
        even[config.split.n_tensor_split - 1]++;
    }
    open_model(&o, path, &config);
    return o;
}

bench_opened bench_open_evenly(const char *path, const char *devices, const tsr_transport *transport,
                               int64_t n_ctx)
{
    return open_divided(path, devices, transport, n_ctx, 0);
}

bench_opened bench_open_layers(const char *path, const char *devices, int64_t n_ctx, int n_layers)
{
    return open_divided(path, devices, NULL, n_ctx, n_layers);
}

void bench_close(bench_opened *o)
{
    free(o->logits);
    tsr_session_destroy(o->session);
    tsr_model_close(o->model);
    tsr_runtime_close(o->rt);
}

double bench_decode(bench_opened *o, int n, int64_t depth)
{
    const double begin = bench_now();
    for (int i = 0; i < n; i++) {
        int32_t token = 7 + i;
        tsr_batch batch = {.n_tokens = 1, .tokens = &token};
        bench_check(tsr_session_decode(o->session, &batch, o->logits));
    }
    const double seconds = (bench_now() - begin) / n;
    bench_check(tsr_session_trim(o->session, 0, depth));
    return seconds;
}

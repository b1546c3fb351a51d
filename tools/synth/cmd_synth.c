/* tsr synth: a model of a published shape with random weights, as a file. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "interrupt.h"
#include "options.h"
#include "replace_file.h"
#include "synth/synth.h"
#include "tsr.h"

typedef struct request {
    synth_model model;
    uint64_t seed;
    tool_progress *progress;
} request;

/* Written to the disk and dropped from the page cache: written data is cached in small pages, read data in
 * huge pages where the file system has them, and from huge pages one core decodes up to a seventh faster. No
 * effect on pipes and devices. */
static bool write_model(FILE *file, const void *user)
{
    const request *r = user;
    struct stat about;
    if (!synth_write(&r->model, r->seed, r->progress, file))
        return false;
    if (fstat(fileno(file), &about) != 0 || !S_ISREG(about.st_mode))
        return true;
    if (fsync(fileno(file)) != 0)
        return false;
    (void)posix_fadvise(fileno(file), 0, 0, POSIX_FADV_DONTNEED);
    return true;
}

int tsr_cmd_synth(int argc, char **argv)
{
    const char *text = NULL, *path = NULL;
    int n_layers = 0;
    uint64_t seed = 1;
    tool_progress progress = {.what = "writing"};
    synth_model model;
    const tool_option options[] = {
        {"-s", "--shape", TOOL_STRING, &text, "SHAPE[:TYPE]",
         "e.g. llama-3-8b:q4_k_m; help lists shapes and types", 0, 0},
        {"-o", "--output", TOOL_STRING, &path, "FILE", "the GGUF file to write", 0, 0},
        {NULL, "--layers", TOOL_INT, &n_layers, "N", "write only N layers of the shape", 1, 10000},
        {NULL, "--seed", TOOL_U64, &seed, "N", "seed of the random weights (default 1)", 0, 0},
        {"-q", "--quiet", TOOL_FLAG, &progress.quiet, NULL, "show no progress", 0, 0},
    };
    const tool_command command = {
        .name = "synth",
        .summary = TOOL_SYNTH_SUMMARY,
        .options = options,
        .n_options = TOOL_COUNT(options),
        .description =
            "The file has no vocabulary, so the model reads and writes tokens, not text. `tsr synth --shape "
            "help` lists the shapes.",
        .examples = "tsr synth --shape llama-3.2-1b:q8_0 -o 1b.gguf",
        .pages = "benchmarking"};
    int code = tool_options_parse(&command, argc, argv, stdout, stderr);
    if (code != TOOL_GO_ON)
        return code;
    if (text)
        code = synth_parse("synth", text, &model);
    if (code != TOOL_GO_ON)
        return code;
    if (!text || !path) {
        fprintf(stderr,
                "tsr synth: --shape and -o are required; `tsr synth --shape help` lists the shapes\n");
        return TOOL_EXIT_USAGE;
    }
    if (n_layers > model.shape.n_layers) {
        fprintf(stderr, "tsr synth: '%s' has %d layers; --layers takes no more\n", text,
                model.shape.n_layers);
        return TOOL_EXIT_USAGE;
    }
    if (n_layers)
        model.shape.n_layers = n_layers;
    tool_hear_interrupts(true, true, NULL); /* the draft of the file is removed */
    bool written = tool_file_replace(path, write_model, &(request){model, seed, &progress});
    const char *why = strerror(errno);
    tool_progress_end(&progress);
    if (written)
        return TOOL_EXIT_OK;
    if (tool_interrupted) {
        fprintf(stderr, "\ntsr synth: interrupted; %s is not written\n", path);
        return TOOL_EXIT_INTERRUPTED;
    }
    fprintf(stderr, "tsr synth: %s cannot be written: %s\n", path, why);
    return TOOL_EXIT_FAILED;
}

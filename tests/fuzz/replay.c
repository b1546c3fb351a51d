/* Runs a fuzz target over files and folders of stored inputs, one after the other: what was found once
 * stays mended, under every compiler and sanitizer.
 *
 *     fuzz_gguf_replay FILE|FOLDER ... */
#include "fuzz.h"

#include <ftw.h>

static int n_inputs;

static int run(const char *path, const struct stat *about, int kind, struct FTW *place)
{
    (void)place;
    if (kind != FTW_F)
        return 0;
    FILE *file = fopen(path, "rb");
    uint8_t *data = malloc((size_t)about->st_size + 1);
    if (!file || !data || fread(data, 1, (size_t)about->st_size, file) != (size_t)about->st_size) {
        perror(path);
        return 1;
    }
    fclose(file);
    printf("%s\n", path); /* the last line names the input that ended the program */
    fflush(stdout);
    LLVMFuzzerTestOneInput(data, (size_t)about->st_size);
    free(data);
    n_inputs++;
    return 0;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (nftw(argv[i], run, 8, FTW_PHYS) != 0)
            return 1;
    printf("%d inputs\n", n_inputs);
    return n_inputs == 0;
}

/* Writes inputs from which fuzzing starts, one folder per target: models of every architecture, a saved
 * session, texts and machines that are valid. What fuzzing finds is added in tests/fuzz/corpus.
 *
 *     fuzz_seeds FOLDER */
#include "fuzz.h"

#include <errno.h>
#include <sys/stat.h>

#include "alloc/kv/saved.h"
#include "fuzz/model.h"

static const char *folder;

static void path_of(const char *target, const char *name, int number, char path[4096])
{
    snprintf(path, 4096, "%s/%s", folder, target);
    if (mkdir(path, 0777) != 0 && errno != EEXIST) {
        perror(path);
        exit(1);
    }
    snprintf(path, 4096, "%s/%s/%s%d", folder, target, name, number);
}

static void write_seed(const char *target, const char *name, int number, const void *bytes, size_t n)
{
    char path[4096];
    path_of(target, name, number, path);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, n, file) != n || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

/* Models whole, for opening and decoding, and headers, for planning; one with a vocabulary for the reader. */
static void write_models(void)
{
    char path[4096];
    for (size_t i = 0; i <= n_synth_archs; i++) {
        struct synth_model_config config = fuzz_model(i ? &synth_archs[i - 1] : NULL);
        path_of("decode", "model", (int)i, path);
        synth_model_write(&config, path);
        config.header_only = true;
        path_of("plan", "header", (int)i, path);
        synth_model_write(&config, path);
    }
    struct synth_model_config vocabulary = fuzz_model(NULL);
    vocabulary.tokenizer = true;
    vocabulary.n_vocab = 260;
    vocabulary.n_embd = 4;
    vocabulary.n_heads = vocabulary.n_kv_heads = 1;
    path_of("gguf", "vocabulary", 0, path);
    synth_model_write(&vocabulary, path);
}

static void write_texts(const char *target, const char *const *texts, size_t n, int first_byte)
{
    for (size_t i = 0; i < n; i++) {
        char seed[512];
        int length = snprintf(seed, sizeof seed, "%c%s", first_byte >= 0 ? first_byte : '.', texts[i]);
        int skip = first_byte < 0; /* the text alone */
        write_seed(target, "text", (int)i + 100 * (first_byte + 1), seed + skip, (size_t)(length - skip));
    }
}

#define TEXTS(target, first_byte, ...)                                          \
    do {                                                                        \
        static const char *const texts[] = {__VA_ARGS__};                       \
        write_texts(target, texts, sizeof texts / sizeof *texts, (first_byte)); \
    } while (0)

static void write_session(void)
{
    unsigned char seed[1 + 2 * sizeof(tsr_saved_sequence) + 4096] = {2};
    tsr_saved_sequence sequences[2] = {{.id = 0, .parent = -1, .length = 5},
                                       {.id = 1, .parent = 0, .shared = 5, .length = 5}};
    memcpy(seed + 1, sequences, sizeof sequences);
    write_seed("session", "two", 0, seed, sizeof seed);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: fuzz_seeds FOLDER\n");
        return 2;
    }
    folder = argv[1];
    write_models();
    write_session();
    TEXTS("machine", -1, "2 nodes of 4x h100 nvswitch, 2x host 8 cores, 2x ib 400Gb/s 2us",
          "1 node of 2x t4 node 1, 2x host, 1 node of l4, roce 100Gb/s",
          "2x rtx3090 nvlink, 1x rtx4060ti pcie4x8, 1x host 16 cores 64GiB 80GB/s", "2x host 8 cores 64GiB",
          "8x h100 nvswitch, 2x host 32 cores 512GiB");
    TEXTS("text", 0, "cuda:0,cuda:1", "host:2,threads=4,isa=avx2,duty=50%", "host", "cuda,host:1,mem=4GiB");
    TEXTS("text", 1, "3,1", "0.5,0.25,0.25", "1,0,1");
    TEXTS("text", 2, "200MiB", "1.5G", "4096");
    TEXTS("text", 3, "Q4_K", "layer", "experts");
    for (int i = 0; i < 48; i++)
        TEXTS("tokenizer", i, "Hello wor1d 12345 don't\n\n  \xd0\x96\xe4\xb8\xad <|im_end|>[tool]abab");
    for (int i = 0; i < 64; i++) {
        unsigned char seed[] = {(unsigned char)i,
                                'b',
                                'B',
                                'e',
                                ' ',
                                'b',
                                'r',
                                'i',
                                'e',
                                'f',
                                0,
                                '`',
                                'H',
                                'i',
                                0,
                                'a',
                                'Y',
                                'o'};
        write_seed("chat", "talk", i, seed, sizeof seed);
    }
    TEXTS("cache", 0,
          "[{\"op_ns\": 1000, \"sync_ns\": 100, \"sync_bytes_per_s\": 1e9, \"read_bytes_per_s\": {}, "
          "\"flops_per_s\": {}}]");
    TEXTS("cache", 1,
          "[{\"devices\": [0, 1], \"bytes\": 4096, \"ns\": 5210.0}, {\"from\": 0, \"devices\": [1], "
          "\"bytes\": 1048576, \"ns\": 9e4}]");
    return 0;
}

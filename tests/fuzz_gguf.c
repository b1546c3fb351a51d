/* A libFuzzer entry for the GGUF reader, built where the compiler is clang:
 *
 *     cmake -B build-fuzz -DCMAKE_C_COMPILER=clang -DTSR_SANITIZE=address,undefined,fuzzer-no-link
 *     cmake --build build-fuzz --target fuzz_gguf
 *     mkdir corpus && cp some-small.gguf corpus && build-fuzz/tests/fuzz_gguf -max_len=8192 corpus
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <tsr/gguf.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Every tensor byte is summed, so that a tensor placed outside its file is noticed. */
static uint64_t sum_tensors(const tsr_gguf *gguf)
{
    uint64_t sum = 0;
    for (int64_t t = 0; t < tsr_gguf_n_tensors(gguf); t++) {
        const tsr_gguf_tensor *tensor = tsr_gguf_tensor_at(gguf, t);
        for (size_t i = 0; i < tensor->bytes; i++)
            sum += ((const uint8_t *)tensor->data)[i];
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static volatile uint64_t sink;
    char path[64];
    tsr_gguf *gguf = NULL;
    int fd = memfd_create("fuzz_gguf", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes)
        abort(); /* the machine's fault, not the reader's: stop the run */
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (tsr_gguf_open(path, NULL, &gguf) == TSR_OK)
        sink += sum_tensors(gguf);
    tsr_gguf_close(gguf);
    close(fd);
    return 0;
}

/* What the fuzz targets share. Each target is one source with LLVMFuzzerTestOneInput(), built twice: with
 * libFuzzer where the compiler is clang and TSR_SANITIZE has fuzzer-no-link (scripts/fuzz), and everywhere
 * with replay.c, as a test that runs the target over the stored inputs.
 *
 * A target ends the program (abort, a sanitizer's report, a timeout) on a defect of the library, and where
 * the machine fails it: a run that cannot do its work must not look like a success. */
#ifndef TSR_TESTS_FUZZ_FUZZ_H
#define TSR_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <tsr/status.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* A file in memory with these contents; close(fd) removes it. */
static inline int fuzz_file(const void *data, size_t bytes, char path[64])
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes)
        abort();
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

/* The input as a string, in memory of its exact size, so that a sanitizer notices a read past its end. */
static inline char *fuzz_string(const uint8_t *data, size_t bytes)
{
    char *text = malloc(bytes + 1);
    if (!text)
        abort();
    if (bytes)
        memcpy(text, data, bytes);
    text[bytes] = '\0';
    return text;
}

/* A failure comes with a message. */
static inline int fuzz_ok(tsr_status status)
{
    if (status != TSR_OK && !*tsr_last_error())
        abort();
    return status == TSR_OK;
}

static inline void fuzz_discard(const char *text, void *user)
{
    *(size_t *)user += strlen(text);
}

#endif

/* Reading back what a gguf_writer has; see gguf_open.h. */
#include "support/gguf_open.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/memory_file.h"

tsr_gguf *gguf_writer_open(gguf_writer *writer)
{
    tsr_gguf *gguf = NULL;
    size_t bytes;
    uint8_t *data = gguf_writer_bytes(writer, &bytes);
    struct memory_file file = memory_file_create(data, bytes);
    if (tsr_gguf_open(file.path, NULL, &gguf) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    memory_file_destroy(&file); /* the map keeps it alive */
    free(data);
    gguf_writer_destroy(writer);
    return gguf;
}

size_t gguf_bytes_after(const uint8_t *data, size_t bytes, const char *name)
{
    const uint8_t *at = memmem(data, bytes, name, strlen(name));
    assert_non_null(at);
    return (size_t)(at - data) + strlen(name);
}

/* Reading back what a gguf_writer has, without a file on disk. */
#ifndef TSR_TESTS_GGUF_OPEN_H
#define TSR_TESTS_GGUF_OPEN_H

#include <tsr/gguf.h>

#include "support/gguf_writer.h"

/* Write the model to memory, open it with the library, and destroy the writer. Fails the test if it is
 * refused. */
tsr_gguf *gguf_writer_open(gguf_writer *writer);

/* The byte after the first occurrence of `name`: there a tensor's n_dims or a key's value type is. Fails the
 * test if the name is not there. */
size_t gguf_bytes_after(const uint8_t *data, size_t bytes, const char *name);

#endif

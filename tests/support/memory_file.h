/* A file that exists in memory only but has a path, for code that opens files by name (Linux:
 * memfd_create). */
#ifndef TSR_TESTS_MEMORY_FILE_H
#define TSR_TESTS_MEMORY_FILE_H

#include <stddef.h>
#include <stdint.h>

struct memory_file {
    int fd;
    char path[64];
};

/* A file with these bytes. Fails the test if the system refuses. */
struct memory_file memory_file_create(const void *data, size_t bytes);

/* Grow with zeros that take no memory, or cut off the end. */
void memory_file_resize(struct memory_file *file, uint64_t bytes);

/* The path is gone after this; maps of the file stay. */
void memory_file_destroy(struct memory_file *file);

#endif

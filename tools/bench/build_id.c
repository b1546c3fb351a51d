/* The identity of a build: versions are the same for all builds of a day of work, build IDs are a checksum
 * of the program. */
#include "bench/build_id.h"

#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <tsr/version.h>

typedef struct build_id {
    char *text;
    size_t used, capacity;
    bool has_program;
} build_id;

static size_t aligned(size_t bytes)
{
    return (bytes + 3) & ~(size_t)3;
}

/* Append the build ID of a segment of notes, if it has one. */
static void read_notes(const char *at, size_t bytes, build_id *id)
{
    while (bytes >= sizeof(ElfW(Nhdr))) {
        const ElfW(Nhdr) *note = (const void *)at;
        const char *name = at + sizeof *note;
        size_t whole = sizeof *note + aligned(note->n_namesz) + aligned(note->n_descsz);
        if (whole > bytes)
            return;
        if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 && memcmp(name, "GNU", 4) == 0) {
            const char *separator = id->used ? "+" : "";
            for (size_t i = 0; i < note->n_descsz && i < 6 && id->used + 4 < id->capacity;
                 i++, separator = "")
                id->used += (size_t)snprintf(id->text + id->used, id->capacity - id->used, "%s%02x",
                                             separator, (unsigned char)name[aligned(note->n_namesz) + i]);
        }
        at += whole;
        bytes -= whole;
    }
}

/* The program comes first; of the other objects only the library counts. */
static int visit_object(struct dl_phdr_info *object, size_t bytes, void *user)
{
    build_id *id = user;
    const uintptr_t library = (uintptr_t)tsr_version;
    bool counts = !id->has_program;
    (void)bytes;
    id->has_program = true;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        uintptr_t first = object->dlpi_addr + segment->p_vaddr;
        counts =
            counts || (segment->p_type == PT_LOAD && library >= first && library < first + segment->p_memsz);
    }
    for (int i = 0; i < object->dlpi_phnum && counts; i++)
        if (object->dlpi_phdr[i].p_type == PT_NOTE)
            read_notes((const char *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr),
                       object->dlpi_phdr[i].p_memsz, id);
    return 0;
}

void bench_build_id(char *text, size_t capacity)
{
    build_id id = {.text = text, .capacity = capacity};
    text[0] = '\0';
    dl_iterate_phdr(visit_object, &id);
}

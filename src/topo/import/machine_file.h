/* The readers of machine descriptions, and the detection of a file's kind. The topology of a reader has to
 * be completed by tsr_topo_complete(). */
#ifndef TSR_TOPO_IMPORT_MACHINE_FILE_H
#define TSR_TOPO_IMPORT_MACHINE_FILE_H

#include "topo/topo.h"

/* Largest machine file that is read; the largest recorded machines are about 1 MB. */
enum { TSR_MACHINE_FILE_BYTES = 64 << 20 };

typedef enum tsr_machine_kind {
    TSR_MACHINE_UNKNOWN,
    TSR_MACHINE_HWLOC_XML,
    TSR_MACHINE_NCCL_XML,
    TSR_MACHINE_NVIDIA_SMI, /* `nvidia-smi topo -m` */
    TSR_MACHINE_ARCHIVE     /* tar, plain or compressed */
} tsr_machine_kind;

/* By content; `text` is NUL-terminated after `bytes` bytes. */
tsr_machine_kind tsr_machine_kind_of(const char *text, size_t bytes);

/* The first element of XML text after declarations and comments; NULL if there is none. */
const char *tsr_xml_root_text(const char *text);

/* For all: `name` is the file's, for messages. TSR_ERR_FORMAT, TSR_ERR_UNSUPPORTED, TSR_ERR_MEMORY. */
tsr_status tsr_topo_read_nccl_xml(const char *text, size_t bytes, const char *name, tsr_topology **topo_out);
tsr_status tsr_topo_read_nvidia_smi(const char *text, size_t bytes, const char *name,
                                    tsr_topology **topo_out);

/* A --machine text; grammar at tsr_topology_parse(). TSR_ERR_INVALID, TSR_ERR_MEMORY. */
tsr_status tsr_topo_read_machine_spec(const char *text, tsr_topology **topo_out);

/* An archive of a Linux root directory, unpacked into a temporary folder, which is removed. deadline_ms as in
 * tsr_topo_source. */
tsr_status tsr_topo_read_archive(const char *path, int deadline_ms, tsr_topology **topo_out);

#endif

/* What was measured is kept from one command to the next in JSON files in the user's cache folder: an object
 * with an entry per machine and set of devices. An entry's name stands for everything that the values depend
 * on, so other cards, another driver, other cores or another version of the library find no entry and
 * measure anew. What lies in the cache can make no command fail: what cannot be read is not there. */
#ifndef TSR_TOOLS_CACHE_FILE_H
#define TSR_TOOLS_CACHE_FILE_H

#include <stdbool.h>

#include <jansson.h>

#include <tsr/topology.h>

enum { TOOL_PATH = 4096 };

/* $XDG_CACHE_HOME/tsr/FILE, or below ~/.cache; false where there is neither. */
bool tool_cache_path(const char *file, char path[TOOL_PATH]);

/* The values of these devices' entry, a new reference; NULL where there are none. */
json_t *tool_cache_load(const char *file, const tsr_topology *topo, const tsr_device_list *list);

/* Add or replace the entry; takes over the reference to `values`, which may be NULL where memory ran out.
 * False where the file cannot be written: errno tells why. */
bool tool_cache_save(const char *file, const tsr_topology *topo, const tsr_device_list *list, json_t *values);

/* A non-negative number of an object. */
bool tool_cache_number(const json_t *object, const char *key, double *out);

#endif

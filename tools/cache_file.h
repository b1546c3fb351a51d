/* Measured values are stored in JSON files in the user's cache folder: an object with an entry per machine
 * and set of devices. An entry's name is derived from everything that the values depend on, so other
 * cards, another driver, other cores or another version of the library have no entry and are measured
 * again. Unreadable files are treated as missing, so the cache cannot make a command fail. */
#ifndef TSR_TOOLS_CACHE_FILE_H
#define TSR_TOOLS_CACHE_FILE_H

#include <stdbool.h>

#include <jansson.h>

#include <tsr/device_list.h>
#include <tsr/topology.h>

#include "user_file.h"

/* $XDG_CACHE_HOME/tsr/FILE, or below ~/.cache; false if neither variable is set. */
bool tool_cache_path(const char *file, char path[TOOL_PATH]);

/* The values of these devices' entry, a new reference; NULL if there are none. */
json_t *tool_cache_load(const char *file, const tsr_topology *topo, const tsr_device_list *list);

/* Add or replace the entry; takes ownership of `values`, which is NULL after a shortage of memory. False
 * if the file cannot be written; errno has the reason. */
bool tool_cache_save(const char *file, const tsr_topology *topo, const tsr_device_list *list, json_t *values);

/* A non-negative number of an object. */
bool tool_cache_number(const json_t *object, const char *key, double *out);

#endif

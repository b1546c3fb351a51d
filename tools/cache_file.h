/* Measured values are stored in JSON files in the user's cache folder: an object with an entry per machine
 * and set of devices. An entry's name is derived from everything that the values depend on, so other
 * cards, another driver or kernel, other cores or another version of the library have no entry and are
 * measured again. So are entries without a date, or older than TOOL_CACHE_DAYS: cooling, firmware and memory
 * of a machine change unseen. Unreadable files are treated as missing, so the cache cannot make a command
 * fail. */
#ifndef TSR_TOOLS_CACHE_FILE_H
#define TSR_TOOLS_CACHE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include <tsr/device_list.h>
#include <tsr/topology.h>

#include "processes.h"
#include "user_file.h"

enum { TOOL_CACHE_DAYS = 30 };

/* $XDG_CACHE_HOME/tsr/FILE, or below ~/.cache; false if neither variable is set. */
bool tool_cache_path(const char *file, char path[TOOL_PATH]);

/* The name of the entry of these devices; with those of other processes, each of which calls this with its
 * own topology and list. False, after an error message, if they cannot be reached. */
typedef struct tool_cache_key {
    char text[20];
} tool_cache_key;
bool tool_cache_key_of(const tool_processes *processes, const tsr_topology *topo, const tsr_device_list *list,
                       tool_cache_key *key_out);

/* The values of an entry, a new reference; NULL if there are none. *date_out (unless NULL) is the time of the
 * measurement, in seconds since 1970. */
json_t *tool_cache_load(const char *file, const tool_cache_key *key, int64_t *date_out);

/* Add or replace the entry, with descriptions of machine and devices for readers of the file; takes
 * ownership of `values`, which is NULL after a shortage of memory. False if the file cannot be written; errno
 * has the reason. */
bool tool_cache_save(const char *file, const tool_cache_key *key, const tsr_topology *topo,
                     const tsr_device_list *list, json_t *values);

/* Delete a file. False if that fails; errno has the reason. A file that does not exist is no failure. */
bool tool_cache_forget(const char *file);

/* A non-negative number of an object. */
bool tool_cache_number(const json_t *object, const char *key, double *out);

#endif

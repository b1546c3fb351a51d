/* Stop strings (--stop): the text up to the first of them, from text that arrives in pieces.
 *
 * Text that may be the beginning of a stop string is held back until the next pieces decide. Held back text
 * is itself the beginning of a stop string, hence no copy of it is kept. */
#ifndef TSR_TOOLS_RUN_STOP_H
#define TSR_TOOLS_RUN_STOP_H

#include <tsr/tokenizer.h>

#include "options.h"

typedef struct run_stop {
    const tool_list *strings;         /* borrowed; none of them empty */
    size_t matched[TOOL_LIST_LENGTH]; /* bytes at the beginning of each string that are the end of the text */
} run_stop;

/* Append `text`. The text that can be written now is parts_out[0] and then parts_out[1]: one ends in a stop
 * string, the other in `text`. True: a stop string is complete, the parts are the last text before it, and
 * the rest is dropped. */
bool run_stop_push(run_stop *stop, tsr_bytes text, tsr_bytes parts_out[2]);

/* The held back text, which is no longer held: at the end of all text. */
tsr_bytes run_stop_finish(run_stop *stop);

#endif

/* The identity of a build. */
#ifndef TSR_TOOLS_BENCH_BUILD_ID_H
#define TSR_TOOLS_BENCH_BUILD_ID_H

#include <stddef.h>

/* The first digits of the linker's build IDs of this program and, where that is another file, of the library:
 * "1a2b3c4d5e6f" or "1a2b3c4d5e6f+6f5e4d3c2b1a". Empty where the linker wrote none. */
void bench_build_id(char *text, size_t capacity);

#endif

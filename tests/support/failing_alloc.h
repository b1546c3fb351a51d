/* Makes the n-th allocation fail, so that a test can walk through every error path of a call.
 *
 * Every test program is linked with the linker's --wrap for the functions below (tests/CMakeLists.txt), so
 * nothing in the library knows about this. What counts as an allocation:
 *
 *     tsr_mem_calloc, tsr_mem_realloc (and tsr_mem_strdup, tsr_mem_array through them)  -> NULL
 *     mmap, mprotect                                                                    -> ENOMEM
 *     posix_memalign, aligned_alloc                                                     -> ENOMEM, NULL
 *     pthread_create                                                                    -> EAGAIN
 *
 * when called from the library or the test itself; calls inside shared libraries (libc, hwloc) are not seen.
 * All of them share one counter, whatever the thread. The idiom:
 *
 *     for (int n = 1;; n++) {
 *         int64_t blocks = failing_alloc_live(), maps = failing_alloc_live_maps();
 *         tsr_thing *thing = NULL;
 *         failing_alloc_set(n);
 *         tsr_status status = tsr_thing_create(&thing);
 *         bool fired = failing_alloc_fired();
 *         failing_alloc_set(0);
 *         if (!fired) {                                (fewer than n allocations: every one has been tried)
 *             assert_int_equal(status, TSR_OK);
 *             tsr_thing_destroy(thing);
 *             break;
 *         }
 *         assert_int_equal(status, TSR_ERR_MEMORY);    (unless this call may do without that allocation)
 *         assert_null(thing);
 *         assert_int_equal(failing_alloc_live(), blocks);
 *         assert_int_equal(failing_alloc_live_maps(), maps);
 *     }
 */
#ifndef TSR_TESTS_FAILING_ALLOC_H
#define TSR_TESTS_FAILING_ALLOC_H

#include <stdbool.h>
#include <stdint.h>

/* Let the n-th allocation from now fail (1 = the very next one), once; the ones after it succeed again.
 * 0 = off. Also forgets whether an earlier one fired and restarts failing_alloc_count(). */
void failing_alloc_set(int64_t n);

/* Like failing_alloc_set(), but every allocation from the n-th on fails: memory has run out for good. */
void failing_alloc_set_from(int64_t n);

/* Whether an allocation has been made to fail since failing_alloc_set(). */
bool failing_alloc_fired(void);

/* Allocations tried since failing_alloc_set(). */
int64_t failing_alloc_count(void);

/* Blocks from tsr_mem_* that are not freed yet, in the whole program. */
int64_t failing_alloc_live(void);

/* Successful mmap calls (MAP_FIXED ones aside: they replace pages of an existing map) less munmap calls. */
int64_t failing_alloc_live_maps(void);

#endif

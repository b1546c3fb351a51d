/* Every test finds its leaks. tests/CMakeLists.txt links all test programs with --wrap for
 * tsr_runtime_close(): a runtime that is closed while something exists on it, or while bytes are in use on
 * its devices, fails the running test and says what it was. And a program that ends well with blocks of
 * tsr_mem_*() not freed exits with 1. */
#ifndef TSR_TESTS_LEAK_CHECK_H
#define TSR_TESTS_LEAK_CHECK_H

#include <tsr/runtime.h>

/* The next closing of this runtime is about what is left over. */
void leak_check_expect(const tsr_runtime *rt);

/* A test ended in the middle and left its objects behind: blocks at the end of the program are no finding. */
void leak_check_abandon(void);

#endif

/* TSR_TEST_SANITIZED: 1 under a sanitizer that slows programs down or limits what they may allocate.
 *
 * TSR_TEST_EVERY(n): the step of a loop over cases that differ in numbers and share their code: n under a
 * sanitizer, which looks at the code, and where TSR_TEST_ROUNDS asks for few (30 or less); 1 otherwise.
 * TSR_TEST_FIRST(n): the first of these cases, below that step. It follows TSR_TEST_OFFSET, so that runs with
 * other offsets come to the other cases. */
#ifndef TSR_TESTS_SANITIZED_H
#define TSR_TESTS_SANITIZED_H

#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) /* gcc */
#define TSR_TEST_SANITIZED 1
#elif defined(__has_feature) /* clang */
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define TSR_TEST_SANITIZED 1
#endif
#endif
#ifndef TSR_TEST_SANITIZED
#define TSR_TEST_SANITIZED 0
#endif

static inline int test_every(int n)
{
    const char *rounds = getenv("TSR_TEST_ROUNDS");
    return TSR_TEST_SANITIZED || (rounds && atoi(rounds) <= 30) ? n : 1;
}

static inline int test_first(int n)
{
    const char *offset = getenv("TSR_TEST_OFFSET");
    return (offset ? abs(atoi(offset)) : 0) % test_every(n);
}

#define TSR_TEST_EVERY(n) test_every(n)
#define TSR_TEST_FIRST(n) test_first(n)

#endif

/* TSR_TEST_SANITIZED: 1 under a sanitizer that slows programs down or limits what they may allocate.
 *
 * TSR_TEST_EVERY(n): the step of a loop over cases that differ in numbers and share their code: n under a
 * sanitizer, which looks at the code, 1 otherwise. */
#ifndef TSR_TESTS_SANITIZED_H
#define TSR_TESTS_SANITIZED_H

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

#define TSR_TEST_EVERY(n) (TSR_TEST_SANITIZED ? (n) : 1)

#endif

/* Tests that need a process of their own: it may hang, keep threads, or leak. The body calls CHECK()
 * instead of cmocka's assertions, which belong to the parent. */
#ifndef TSR_TESTS_CHILD_H
#define TSR_TESTS_CHILD_H

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include <tsr/status.h>

/* End the child with its failure, together with the library's last sentence. */
#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, tsr_last_error()); \
            _exit(1);                                                                             \
        }                                                                                         \
    } while (0)

/* Fork, run `body` in the child, and wait for its end. Returns its exit status, 0 if `body` returns, or -1 if
 * a signal ends it or it does not end within limit_s seconds and is then killed. */
int child_result(void (*body)(void *argument), void *argument, int limit_s);

/* Whether that is 0. */
bool child_succeeds(void (*body)(void *argument), void *argument, int limit_s);

#endif

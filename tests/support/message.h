/* What the message of the last error must say. Include after cmocka.h. */
#ifndef TSR_TESTS_MESSAGE_H
#define TSR_TESTS_MESSAGE_H

#include <string.h>

#include <tsr/status.h>

#define assert_message_has(text)                                                     \
    do {                                                                             \
        if (!strstr(tsr_last_error(), (text)))                                       \
            fail_msg("\"%s\" is not in the message \"%s\"", text, tsr_last_error()); \
    } while (0)

#endif

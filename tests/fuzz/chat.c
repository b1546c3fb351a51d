/* Conversations in every chat template. The first byte chooses the template and whether a prompt for the
 * assistant is added; messages are separated by zero bytes, and the first character of each chooses its
 * role. */
#include "fuzz.h"

#include <tsr/chat.h>

enum { MAX_MESSAGES = 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const roles[] = {"user", "assistant", "system", "tool"};
    tsr_chat_message messages[MAX_MESSAGES];
    size_t n = 0, n_counted, n_written;
    const tsr_chat *chat = bytes ? tsr_chat_at(data[0] >> 1) : NULL;
    if (!chat)
        return 0;
    char *text = fuzz_string(data + 1, bytes - 1), *end = text + bytes - 1;
    for (char *message = text; message < end && n < MAX_MESSAGES; n++) {
        size_t length = strlen(message);
        messages[n] = (tsr_chat_message){roles[*message & 3], message + (length > 0), length - (length > 0)};
        message += length + 1;
    }
    unsigned flags = data[0] & 1 ? TSR_CHAT_ADD_GENERATION_PROMPT : TSR_CHAT_PLAIN;
    if (fuzz_ok(tsr_chat_format(chat, NULL, messages, n, flags, NULL, 0, &n_counted))) {
        char *written = malloc(n_counted + 1);
        if (!written ||
            tsr_chat_format(chat, NULL, messages, n, flags, written, n_counted, &n_written) != TSR_OK ||
            n_written != n_counted)
            abort();
        free(written);
    }
    free(text);
    return 0;
}

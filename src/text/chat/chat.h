/* What a chat template is made of. */
#ifndef TSR_TEXT_CHAT_CHAT_H
#define TSR_TEXT_CHAT_CHAT_H

#include <stdbool.h>

#include <tsr/chat.h>

/* What stands around a message. In these texts "{bos}" and "{eos}" are the model's tokens of that kind. */
typedef struct tsr_chat_frame {
    const char *before, *behind;
} tsr_chat_frame;

struct tsr_chat {
    const char *name;
    const char *aliases; /* other names, separated by spaces; NULL: none */
    const char *has[3];  /* marks: a file's template of this family has all of these ... */
    const char *lacks;   /* ... and not this; NULL: whatever */
    const char *begin;   /* in front of everything; NULL: nothing */
    tsr_chat_frame system, user, assistant;
    const char *again;   /* in front of a user's message behind an assistant's; NULL: nothing */
    const char *prompt;  /* the generation prompt; NULL: assistant.before */
    bool system_in_user; /* the system message stands in the user's that follows it, before its text */
    bool trims;          /* white space at the ends of messages is left out */
};

#endif

/* The structure of a chat template. */
#ifndef TSR_TEXT_CHAT_CHAT_H
#define TSR_TEXT_CHAT_CHAT_H

#include <stdbool.h>

#include <tsr/chat.h>

/* Texts before and after a message. In these texts "{bos}" and "{eos}" are the model's tokens of that
 * kind. */
typedef struct tsr_chat_frame {
    const char *before, *behind;
} tsr_chat_frame;

struct tsr_chat {
    const char *name;
    const char *aliases; /* other names, separated by spaces; NULL: none */
    const char *has[3];  /* marks: a file's template of this family has all of these ... */
    const char *lacks;   /* ... and not this one; NULL: no condition */
    const char *begin;   /* before the conversation; NULL: nothing */
    tsr_chat_frame system, user, assistant;
    const char *again;   /* before a user's message after an assistant's; NULL: nothing */
    const char *prompt;  /* the generation prompt; NULL: assistant.before */
    bool system_in_user; /* the system message is written inside the following user's message, before its
                          * text */
    bool trims;          /* white space at both ends of messages is removed */
};

#endif

/** @file
 * Chat templates: how a family of models writes a conversation as text.
 *
 *     const tsr_chat *chat;
 *     TRY(tsr_chat_guess(gguf, &chat));                      or tsr_chat_find("llama3", &chat)
 *     tsr_chat_message messages[] = {
 *         {"system", "Be brief.", 9},
 *         {"user", question, strlen(question)},
 *     };
 *     size_t n;
 *     TRY(tsr_chat_encode(chat, tokenizer, messages, 2, 0, TSR_CHAT_ADD_GENERATION_PROMPT, NULL, 0, &n));
 *     ...                                      as tsr_tokenizer_encode(): count, allocate, again
 *
 * A model's file has a program (in Jinja) that prints such a text. The library does not run the program. It
 * has a table of the published formats, and recognises the format by the text of the program. Control tokens
 * are recognised in the text of the template, never in the text of a message: "<|im_end|>" in a message does
 * not end the message.
 *
 * Templates are constants of the library; any number of threads may use them at the same time.
 */
#ifndef TSR_CHAT_H
#define TSR_CHAT_H

#include <stddef.h>
#include <stdint.h>

#include <tsr/gguf.h>
#include <tsr/status.h>
#include <tsr/tokenizer.h>

TSR_BEGIN_DECLS

/** A chat template; constant, owned by the library. */
typedef struct tsr_chat tsr_chat;

/** One message; borrowed for the length of a call. */
typedef struct tsr_chat_message {
    const char *role;  /**< "system", "user" or "assistant" */
    const char *text;  /**< [text_bytes] */
    size_t text_bytes; /**< length of `text` */
} tsr_chat_message;

/** Flags of tsr_chat_format() and tsr_chat_encode(), or-ed together. */
typedef enum tsr_chat_flags {
    TSR_CHAT_PLAIN = 0,
    TSR_CHAT_ADD_GENERATION_PROMPT = 1 /**< end with the start of the assistant's next message */
} tsr_chat_flags;

/** The template of that name. TSR_ERR_NOT_FOUND: there is none (message: those that exist). */
TSR_NODISCARD TSR_API tsr_status tsr_chat_find(const char *name, const tsr_chat **chat_out);

/** The template of a file, recognised by marks in tokenizer.chat_template that only one family has.
 * TSR_ERR_NOT_FOUND: the file has no template; it may be a base model. TSR_ERR_UNSUPPORTED: the file's
 * template is of no known family. Both messages name the templates that exist. */
TSR_NODISCARD TSR_API tsr_status tsr_chat_guess(const tsr_gguf *gguf, const tsr_chat **chat_out);

/** The template's name, e.g. "chatml"; never NULL. */
TSR_API const char *tsr_chat_name(const tsr_chat *chat);

/** Template number i, counted from 0; NULL past the last. */
TSR_API const tsr_chat *tsr_chat_at(int i);

/** Write messages[n] to text[capacity], without a terminating NUL, and the length to *bytes_out. `text` NULL:
 * only the length is computed. `tokenizer` has the names of the tokens that begin and end a text; NULL: "<s>"
 * and "</s>". The token that tsr_tokenizer_encode() puts in front of every text is not written. TSR_ERR_FULL:
 * `capacity` is too small (message: the size needed). TSR_ERR_INVALID: an argument is wrong, a role is not
 * one of the three (message: the role), or no user message follows a system message, in a family that writes
 * the system message inside the user message. */
TSR_NODISCARD TSR_API tsr_status tsr_chat_format(const tsr_chat *chat, const tsr_tokenizer *tokenizer,
                                                 const tsr_chat_message *messages, size_t n, unsigned flags,
                                                 char *text, size_t capacity, size_t *bytes_out);

/** Write the tokens of messages[n_done] to messages[n - 1] to tokens[capacity]. The session already has the
 * tokens up to the end of the text of messages[n_done - 1]; the tokens that close that message come first.
 * n_done 0: all tokens of all messages, after the token that the tokenizer puts in front. Counting and errors
 * as tsr_tokenizer_encode(); further errors as tsr_chat_format(). */
TSR_NODISCARD TSR_API tsr_status tsr_chat_encode(const tsr_chat *chat, const tsr_tokenizer *tokenizer,
                                                 const tsr_chat_message *messages, size_t n, size_t n_done,
                                                 unsigned flags, int32_t *tokens, size_t capacity,
                                                 size_t *n_out);

TSR_END_DECLS
#endif

/** @file
 * Chat templates: how a family of models wants a conversation written down.
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
 * What a model's file carries is a program (in Jinja) that prints such a text. It is not run: the families
 * are few, their formats are published and stand in a table, and the file's program serves to tell which one
 * it is. Encoding keeps the two kinds of text apart: control tokens are recognised in what the template
 * writes, never in what a message says, so a user who writes "<|im_end|>" has ended nothing.
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
    TSR_CHAT_ADD_GENERATION_PROMPT = 1 /**< end with what introduces the assistant's next message */
} tsr_chat_flags;

/** The template of that name. TSR_ERR_NOT_FOUND: there is none (message: those that exist). */
TSR_NODISCARD TSR_API tsr_status tsr_chat_find(const char *name, const tsr_chat **chat_out);

/** The template that a file's tokenizer.chat_template is most like, by marks that only that family has.
 * TSR_ERR_NOT_FOUND: the file has no template, so it may be a base model. TSR_ERR_UNSUPPORTED: it has one of
 * no family that is known. Both messages name the templates that exist. */
TSR_NODISCARD TSR_API tsr_status tsr_chat_guess(const tsr_gguf *gguf, const tsr_chat **chat_out);

/** The template's name, e.g. "chatml"; never NULL. */
TSR_API const char *tsr_chat_name(const tsr_chat *chat);

/** The i-th template from 0 on; NULL past the last. */
TSR_API const tsr_chat *tsr_chat_at(int i);

/** Write messages[n] to text[capacity], no terminating NUL; with text == NULL only counts. *bytes_out is the
 * length. `tokenizer` says how the model spells its tokens for the beginning and the end of a text; NULL:
 * "<s>" and "</s>". The token that tsr_tokenizer_encode() puts in front of everything is not part of the
 * text. TSR_ERR_FULL: capacity is too small (message: what is needed). TSR_ERR_INVALID: an argument is wrong,
 * a role is not one of the three (message: which), or a system message is followed by no user's in a family
 * that has it inside of that. */
TSR_NODISCARD TSR_API tsr_status tsr_chat_format(const tsr_chat *chat, const tsr_tokenizer *tokenizer,
                                                 const tsr_chat_message *messages, size_t n, unsigned flags,
                                                 char *text, size_t capacity, size_t *bytes_out);

/** The tokens of messages[n], without those up to the end of the text of messages[n_done - 1], which are in a
 * session already: what closes that message comes first. With n_done == 0 all of them, and what the tokenizer
 * puts in front. Counting, tokens[capacity] and errors as tsr_tokenizer_encode(), and those of
 * tsr_chat_format(). */
TSR_NODISCARD TSR_API tsr_status tsr_chat_encode(const tsr_chat *chat, const tsr_tokenizer *tokenizer,
                                                 const tsr_chat_message *messages, size_t n, size_t n_done,
                                                 unsigned flags, int32_t *tokens, size_t capacity,
                                                 size_t *n_out);

TSR_END_DECLS
#endif

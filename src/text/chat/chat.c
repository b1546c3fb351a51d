/* Formatting conversations as text or as tokens.
 *
 * The same code iterates over the messages for both and passes pieces of text to a sink: pieces of the
 * template, and pieces of messages, in which encoding must not find control tokens. Encoding works on the
 * whole text, not on pieces, since words and SentencePiece's spaces extend across the ends of messages. */
#include "text/chat/chat.h"

#include <string.h>

#include "core/mem.h"
#include "core/status.h"
#include "text/tokenizer/tokenizer.h"

/* Destination of the text; text beyond the capacity is only counted. */
typedef struct sink {
    char *text; /* [capacity]; NULL: only count */
    size_t capacity, bytes;
    tsr_text_range *plain; /* [n] ranges of the messages' texts; NULL: not wanted */
    size_t n_plain;
} sink;

static void put(sink *s, const char *text, size_t bytes)
{
    if (s->text && bytes && s->bytes + bytes <= s->capacity)
        memcpy(s->text + s->bytes, text, bytes);
    s->bytes += bytes;
}

/* One iteration over a conversation. */
typedef struct walk {
    const tsr_chat *chat;
    const tsr_tokenizer *tokenizer; /* may be NULL */
    const tsr_chat_message *messages;
    sink *sink;
} walk;

static tsr_bytes token_name(const tsr_tokenizer *tokenizer, int32_t token, const char *otherwise)
{
    tsr_bytes name = {otherwise, strlen(otherwise)};
    return tokenizer ? tsr_tokenizer_token_text(tokenizer, token) : name;
}

/* A text of the template, with the names of tokens in place of "{bos}" and "{eos}". */
static void put_template(const walk *w, const char *text)
{
    while (text && *text) {
        size_t bytes = strcspn(text, "{");
        bool bos = !strncmp(text, "{bos}", 5), eos = !strncmp(text, "{eos}", 5);
        if (bos || eos) {
            tsr_bytes name =
                bos ? token_name(w->tokenizer, w->tokenizer ? tsr_tokenizer_bos(w->tokenizer) : 0, "<s>")
                    : token_name(w->tokenizer, w->tokenizer ? tsr_tokenizer_eos(w->tokenizer) : 0, "</s>");
            put(w->sink, name.data, name.bytes);
            text += 5;
        } else {
            bytes += bytes == 0; /* a literal brace */
            put(w->sink, text, bytes);
            text += bytes;
        }
    }
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void put_message(const walk *w, const tsr_chat_message *message)
{
    const char *text = message->text;
    size_t bytes = message->text_bytes;

    while (w->chat->trims && bytes && is_space(*text)) {
        text++;
        bytes--;
    }
    while (w->chat->trims && bytes && is_space(text[bytes - 1]))
        bytes--;
    if (w->sink->plain)
        w->sink->plain[w->sink->n_plain++] = (tsr_text_range){w->sink->bytes, w->sink->bytes + bytes};
    put(w->sink, text, bytes);
}

static bool is_role(const tsr_chat_message *message, const char *role)
{
    return !strcmp(message->role, role);
}

static const tsr_chat_frame *frame_of(const tsr_chat *chat, const tsr_chat_message *message)
{
    return is_role(message, "system") ? &chat->system
           : is_role(message, "user") ? &chat->user
                                      : &chat->assistant;
}

/* Whether a message is written inside the next one. */
static bool is_inside_next(const walk *w, size_t i)
{
    return w->chat->system_in_user && is_role(&w->messages[i], "system");
}

static void write_messages(const walk *w, size_t n, size_t n_done, unsigned flags)
{
    const tsr_chat *chat = w->chat;

    if (n_done == 0)
        put_template(w, chat->begin);
    else if (!is_inside_next(w, n_done - 1))
        put_template(w, frame_of(chat, &w->messages[n_done - 1])->behind);
    for (size_t i = n_done; i < n; i++) {
        const tsr_chat_frame *frame = frame_of(chat, &w->messages[i]);
        if (is_inside_next(w, i))
            continue;
        if (i > 0 && is_role(&w->messages[i], "user") && is_role(&w->messages[i - 1], "assistant"))
            put_template(w, chat->again);
        put_template(w, frame->before);
        if (i > 0 && is_inside_next(w, i - 1)) {
            put_template(w, chat->system.before);
            put_message(w, &w->messages[i - 1]);
            put_template(w, chat->system.behind);
        }
        put_message(w, &w->messages[i]);
        put_template(w, frame->behind);
    }
    if (flags & TSR_CHAT_ADD_GENERATION_PROMPT)
        put_template(w, chat->prompt ? chat->prompt : chat->assistant.before);
}

static tsr_status check_messages(const tsr_chat *chat, const tsr_chat_message *messages, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const tsr_chat_message *m = &messages[i];
        if (!m->role || (!m->text && m->text_bytes))
            return tsr_fail(TSR_ERR_INVALID, "messages[%zu]: role and text must not be NULL", i);
        if (!is_role(m, "system") && !is_role(m, "user") && !is_role(m, "assistant"))
            return tsr_fail(TSR_ERR_INVALID,
                            "messages[%zu] has the role \"%.40s\"; roles are system, user, assistant", i,
                            m->role);
        if (chat->system_in_user && is_role(m, "system") && (i + 1 == n || !is_role(&m[1], "user")))
            return tsr_fail(TSR_ERR_INVALID,
                            "messages[%zu] is a system message without a user's message after it, into which "
                            "template %s puts it",
                            i, chat->name);
    }
    return TSR_OK;
}

tsr_status tsr_chat_format(const tsr_chat *chat, const tsr_tokenizer *tokenizer,
                           const tsr_chat_message *messages, size_t n, unsigned flags, char *text,
                           size_t capacity, size_t *bytes_out)
{
    tsr_status status = TSR_OK;
    sink s = {.text = text, .capacity = capacity};

    if (!chat || (!messages && n) || !bytes_out)
        return tsr_fail(TSR_ERR_INVALID, "tsr_chat_format: chat, messages and bytes_out must not be NULL");
    TSR_TRY(check_messages(chat, messages, n));
    const walk w = {chat, tokenizer, messages, &s};
    write_messages(&w, n, 0, flags);
    if (text && s.bytes > capacity)
        TSR_TRY(
            tsr_fail(TSR_ERR_FULL, "the conversation needs room for %zu bytes, not %zu", s.bytes, capacity));
    *bytes_out = s.bytes;
out:
    return status;
}

tsr_status tsr_chat_encode(const tsr_chat *chat, const tsr_tokenizer *tokenizer,
                           const tsr_chat_message *messages, size_t n, size_t n_done, unsigned flags,
                           int32_t *tokens, size_t capacity, size_t *n_out)
{
    tsr_status status = TSR_OK;
    sink s = {0};

    if (!chat || !tokenizer || (!messages && n) || n_done > n || !n_out)
        return tsr_fail(TSR_ERR_INVALID,
                        "tsr_chat_encode: chat, tokenizer, messages and n_out must not be NULL, and "
                        "n_done not more than n");
    TSR_TRY(check_messages(chat, messages, n));
    const walk w = {chat, tokenizer, messages, &s};
    write_messages(&w, n, n_done, flags);
    TSR_TRY(tsr_mem_array(s.bytes + 1, 1, "the conversation", &s.text));
    TSR_TRY(tsr_mem_array(n + 1, sizeof *s.plain, "the conversation", &s.plain));
    s.capacity = s.bytes;
    s.bytes = 0;
    write_messages(&w, n, n_done, flags);
    TSR_TRY(tsr_tokenizer_encode_ranges(tokenizer, s.text, s.bytes, s.plain, s.n_plain,
                                        TSR_ENCODE_PARSE_SPECIAL | (n_done == 0 ? TSR_ENCODE_ADD_BOS : 0),
                                        tokens, capacity, n_out));
out:
    tsr_mem_free(s.plain);
    tsr_mem_free(s.text);
    return status;
}

const char *tsr_chat_name(const tsr_chat *chat)
{
    return chat->name;
}

/** @file
 * Tokenizer: text to token ids and back, by the vocabulary of a GGUF file.
 *
 * Kinds of vocabulary (key tokenizer.ggml.model): "gpt2", byte-level BPE whose text is first cut into words
 * by the pattern named in tokenizer.ggml.pre; "gemma4", BPE over characters; "llama", SentencePiece-style BPE
 * with scores and byte fallback; "t5", SentencePiece's unigram model; and "bert", WordPiece. A tokenizer
 * copies the vocabulary: the tsr_gguf may be closed after tsr_tokenizer_create().
 *
 *     tsr_tokenizer *tokenizer;
 *     TRY(tsr_tokenizer_create(gguf, &tokenizer));
 *     size_t n;
 *     TRY(tsr_tokenizer_encode(tokenizer, text, strlen(text), TSR_ENCODE_ADD_SPECIAL, NULL, 0, &n));
 *     int32_t *tokens = malloc(n * sizeof *tokens);
 *     TRY(tsr_tokenizer_encode(tokenizer, text, strlen(text), TSR_ENCODE_ADD_SPECIAL, tokens, n, &n));
 *
 *     tsr_detokenizer *stream;                              printing tokens as they are generated
 *     TRY(tsr_detokenizer_create(tokenizer, &stream));
 *     while (!tsr_tokenizer_is_eog(tokenizer, token = next())) {
 *         tsr_bytes text = tsr_detokenizer_push(stream, token);
 *         fwrite(text.data, 1, text.bytes, stdout);         always whole UTF-8 characters
 *     }
 *
 * Threads: a tsr_tokenizer is read-only after its creation; any number of threads may use one at the same
 * time. A tsr_detokenizer belongs to one thread at a time. Token ids are 0 .. tsr_tokenizer_n_vocab() - 1.
 *
 * Text is a byte array with a length. It should be UTF-8, but any bytes are accepted: bytes that are not
 * valid UTF-8 are encoded one by one, and decode to the same bytes. Only "t5" (as its file says) and "bert"
 * apply Unicode normalization; their vocabularies lose bytes that are not UTF-8.
 */
#ifndef TSR_TOKENIZER_H
#define TSR_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tsr/gguf.h>
#include <tsr/status.h>

TSR_BEGIN_DECLS

/** A model's vocabulary and the rules that cut text into its tokens; read-only. */
typedef struct tsr_tokenizer tsr_tokenizer;
/** A stream of text from tokens. */
typedef struct tsr_detokenizer tsr_detokenizer;

/** `bytes` bytes at `data`, not NUL-terminated. Each function that returns one names its owner. */
typedef struct tsr_bytes {
    const char *data; /**< [bytes], not NUL-terminated */
    size_t bytes;     /**< length of `data` */
} tsr_bytes;

/** Stands for the id of a token that the model does not have. */
#define TSR_TOKEN_NONE (-1)

/** Flags of tsr_tokenizer_encode(), or-ed together. */
typedef enum tsr_encode_flags {
    TSR_ENCODE_PLAIN = 0,
    TSR_ENCODE_ADD_SPECIAL = 1,  /**< put BOS in front and EOS at the end, each if the model's file says so */
    TSR_ENCODE_PARSE_SPECIAL = 2 /**< the text of a control token ("<|im_end|>") becomes that token. For
                                      text that the program wrote; not for text from users */
} tsr_encode_flags;

/** Flags of tsr_tokenizer_decode(), or-ed together. */
typedef enum tsr_decode_flags {
    TSR_DECODE_PLAIN = 0,
    TSR_DECODE_SHOW_SPECIAL = 1 /**< control and unknown tokens give their text instead of nothing */
} tsr_decode_flags;

/** Read the vocabulary of an opened file (keys tokenizer.ggml.*). `gguf` is not needed afterwards.
 * TSR_ERR_NOT_FOUND: the file has no vocabulary (message: the missing key). TSR_ERR_FORMAT: the vocabulary
 * contradicts itself (message: key and index). TSR_ERR_UNSUPPORTED: the library lacks this tokenizer model or
 * pre-tokenizer (message: its name and the supported names). TSR_ERR_MEMORY. */
TSR_NODISCARD TSR_API tsr_status tsr_tokenizer_create(const tsr_gguf *gguf, tsr_tokenizer **tokenizer_out);

/** NULL is fine. Destroy the tokenizer's detokenizers first. No tsr_bytes obtained from the tokenizer is
 * valid afterwards. */
TSR_API void tsr_tokenizer_destroy(tsr_tokenizer *tokenizer);

/** Encode text[text_bytes] to tokens[capacity] and write the number of tokens to *n_out. `tokens` NULL: only
 * the number is computed. A capacity of text_bytes + 2 is enough for every "gpt2" vocabulary. User-defined
 * tokens are always recognised in the text, control tokens with TSR_ENCODE_PARSE_SPECIAL only; the leftmost
 * longest token wins. Takes O(n log n) time for any text of n bytes. TSR_ERR_FULL: `capacity` is too small
 * (message: the number needed); *n_out is not written and tokens[] is unspecified. TSR_ERR_INVALID: an
 * argument is wrong, or the text is 1 GiB or more. TSR_ERR_UNSUPPORTED: the vocabulary has neither a token
 * for some byte of the text nor an unknown token. TSR_ERR_MEMORY. */
TSR_NODISCARD TSR_API tsr_status tsr_tokenizer_encode(const tsr_tokenizer *tokenizer, const char *text,
                                                      size_t text_bytes, unsigned flags, int32_t *tokens,
                                                      size_t capacity, size_t *n_out);

/** Decode tokens[n] into text[capacity], without a terminating NUL, and write the length to *bytes_out.
 * `text` NULL: only the length is computed. Decoding is the inverse of encoding, except for "bert" and "t5",
 * which normalize: bytes that are not UTF-8 come back unchanged, and the space that a "llama" or "t5"
 * vocabulary puts at the beginning and after special tokens is removed. TSR_ERR_FULL: as
 * tsr_tokenizer_encode(). TSR_ERR_INVALID: an argument is wrong, or an id is out of range (message: the
 * id). */
TSR_NODISCARD TSR_API tsr_status tsr_tokenizer_decode(const tsr_tokenizer *tokenizer, const int32_t *tokens,
                                                      size_t n, unsigned flags, char *text, size_t capacity,
                                                      size_t *bytes_out);

/** The bytes that one token stands for; possibly a part of a UTF-8 character. Empty for control tokens,
 * unknown tokens and ids out of range. Owned by the tokenizer. */
TSR_API tsr_bytes tsr_tokenizer_piece(const tsr_tokenizer *tokenizer, int32_t token);

/** The token's name as the file spells it ("Ġworld", "<|im_end|>"); empty for ids out of range. Owned by the
 * tokenizer. */
TSR_API tsr_bytes tsr_tokenizer_token_text(const tsr_tokenizer *tokenizer, int32_t token);

/** The token whose name is text[text_bytes], as the file spells it, or TSR_TOKEN_NONE. */
TSR_API int32_t tsr_tokenizer_find(const tsr_tokenizer *tokenizer, const char *text, size_t text_bytes);

/** Tokens of the vocabulary. */
TSR_API int32_t tsr_tokenizer_n_vocab(const tsr_tokenizer *tokenizer);

/** The token that begins a sequence; TSR_TOKEN_NONE where the model has none. */
TSR_API int32_t tsr_tokenizer_bos(const tsr_tokenizer *tokenizer);
/** The token that ends a sequence, or TSR_TOKEN_NONE. */
TSR_API int32_t tsr_tokenizer_eos(const tsr_tokenizer *tokenizer);
/** The token that ends a turn in a dialogue, or TSR_TOKEN_NONE. */
TSR_API int32_t tsr_tokenizer_eot(const tsr_tokenizer *tokenizer);
/** The token that ends a message in a dialogue, or TSR_TOKEN_NONE. */
TSR_API int32_t tsr_tokenizer_eom(const tsr_tokenizer *tokenizer);
/** The token for text that the vocabulary does not have, or TSR_TOKEN_NONE. */
TSR_API int32_t tsr_tokenizer_unk(const tsr_tokenizer *tokenizer);
/** The token for padding, or TSR_TOKEN_NONE. */
TSR_API int32_t tsr_tokenizer_pad(const tsr_tokenizer *tokenizer);

/** Whether TSR_ENCODE_ADD_SPECIAL puts the BOS token in front for this model. */
TSR_API bool tsr_tokenizer_adds_bos(const tsr_tokenizer *tokenizer);
/** Whether TSR_ENCODE_ADD_SPECIAL puts the EOS token at the end for this model. */
TSR_API bool tsr_tokenizer_adds_eos(const tsr_tokenizer *tokenizer);

/** Whether a token controls the model instead of being text. False for ids out of range. */
TSR_API bool tsr_tokenizer_is_control(const tsr_tokenizer *tokenizer, int32_t token);

/** Whether generation ends with this token: EOS, EOT, EOM, or a token with one of the names that model
 * families use for them ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", ...). False for ids out of
 * range. */
TSR_API bool tsr_tokenizer_is_eog(const tsr_tokenizer *tokenizer, int32_t token);

/** A stream of text from tokens that arrive one at a time. `tokenizer` must outlive the detokenizer. The
 * space that a "llama" or "t5" vocabulary puts before the first word is kept, since generated text continues
 * a prompt. */
TSR_NODISCARD TSR_API tsr_status tsr_detokenizer_create(const tsr_tokenizer *tokenizer,
                                                        tsr_detokenizer **detokenizer_out);

/** NULL is fine. */
TSR_API void tsr_detokenizer_destroy(tsr_detokenizer *detokenizer);

/** Add one token and return the text that is complete now: valid UTF-8, possibly empty. A character whose
 * bytes are spread over several tokens is returned with the last of them. Each byte that cannot be part of a
 * character becomes U+FFFD. Control tokens, unknown tokens and ids out of range add nothing. The bytes belong
 * to the detokenizer and are valid until its next call. Never allocates. */
TSR_API tsr_bytes tsr_detokenizer_push(tsr_detokenizer *detokenizer, int32_t token);

/** End the stream. Returns U+FFFD in place of an incomplete character, otherwise nothing. Afterwards the
 * detokenizer is as after its creation. */
TSR_API tsr_bytes tsr_detokenizer_finish(tsr_detokenizer *detokenizer);

TSR_END_DECLS
#endif

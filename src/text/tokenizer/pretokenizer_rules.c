/* The table of pre-tokenizers: names in files and their patterns.
 *
 * The patterns are facts of the models: they must cut exactly as in training, otherwise the merges are
 * applied to words that did not occur in training. They are those of each model's tokenizer.json
 * (huggingface.co), with two exceptions. \s means the Unicode property White_Space in the engines that the
 * models were trained with, while PCRE2's \s adds U+180E and has that property by name only since 10.40;
 * so the table defines WS, and other characters by number. And \p{Han} means the script there and, since
 * 10.40, its extensions in PCRE2.
 *
 * The assignment of names to patterns is llama.cpp's (src/llama-vocab.cpp, llama_vocab::impl::load), since
 * files are made for it; so are the patterns of "default", for files without a name. */
#include "text/tokenizer/pretokenizer.h"

#include <stdio.h>
#include <string.h>

#include "core/mem.h"

/* White_Space in the Unicode Character Database (PropList.txt, unchanged since 6.3). */
#define WS "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define BEFORE_WORD "[^\\r\\n\\p{L}\\p{N}]?" /* included at the start of a word, mostly a space */
#define SIGNS       " ?[^" WS "\\p{L}\\p{N}]+"
#define SPACES      "[" WS "]+(?![^" WS "])|[" WS "]+" /* the last space is left to the next word */
#define LINES       "[" WS "]*[\\r\\n]+|" SPACES

/* github.com/openai/gpt-2, src/encoder.py */
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|" SIGNS "|" SPACES

/* github.com/meta-llama/llama3, llama/tokenizer.py. Qwen2's differs in the digits only: one at a time instead
 * of up to three. */
#define LLAMA3(digits) CONTRACTION "|" BEFORE_WORD "\\p{L}+|" digits "|" SIGNS "[\\r\\n]*|" LINES

/* Words end where small letters are followed by capitals (o200k in github.com/openai/tiktoken,
 * tiktoken_ext/openai_public.py; mistralai's tekken.json has no `tail`). */
#define CAPITAL "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define SMALL   "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define CAMEL(tail) \
    BEFORE_WORD "[" CAPITAL "]*[" SMALL "]+" tail "|" BEFORE_WORD "[" CAPITAL "]+[" SMALL "]*" tail
#define CAMEL_REST SIGNS "[\\r\\n/]*|" LINES
#define O200K      CAMEL(CONTRACTION "?") "|\\p{N}{1,3}|" CAMEL_REST

/* huggingface.co/moonshotai/Kimi-K2-Instruct, tokenization_kimi.py: o200k with Chinese cut separately. The
 * ranges are those of the script Han in Unicode 15 (Scripts.txt). */
#define HAN                                                                                          \
    "\\x{2E80}-\\x{2E99}\\x{2E9B}-\\x{2EF3}\\x{2F00}-\\x{2FD5}\\x{3005}\\x{3007}\\x{3021}-\\x{3029}" \
    "\\x{3038}-\\x{303B}\\x{3400}-\\x{4DBF}\\x{4E00}-\\x{9FFF}\\x{F900}-\\x{FA6D}"                   \
    "\\x{FA70}-\\x{FAD9}\\x{16FE2}\\x{16FE3}\\x{16FF0}\\x{16FF1}\\x{20000}-\\x{2A6DF}"               \
    "\\x{2A700}-\\x{2B739}\\x{2B740}-\\x{2B81D}\\x{2B820}-\\x{2CEA1}\\x{2CEB0}-\\x{2EBE0}"           \
    "\\x{2F800}-\\x{2FA1D}\\x{30000}-\\x{3134A}\\x{31350}-\\x{323AF}"
#define NOT_HAN(class) "(?:(?![" HAN "])[" class "])"
#define KIMI_CAPITAL   NOT_HAN(CAPITAL)
#define KIMI_SMALL     NOT_HAN(SMALL)
#define KIMI                                                                  \
    "[" HAN "]+|" BEFORE_WORD KIMI_CAPITAL "*" KIMI_SMALL "+" CONTRACTION "?" \
    "|" BEFORE_WORD KIMI_CAPITAL "+" KIMI_SMALL "*" CONTRACTION "?"           \
    "|\\p{N}{1,3}|" SIGNS "[\\r\\n]*|" LINES

/* huggingface.co/deepseek-ai: deepseek-llm-7b-base lists letters that have a case, deepseek-coder does
 * not; DeepSeek-V3 has a different pattern. */
#define CASED                                                                                         \
    "A-Za-z"                                                                                          \
    "\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}\\x{1C4}-\\x{293}"         \
    "\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}"             \
    "\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}"   \
    "\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}"   \
    "\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}" \
    "\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}"  \
    "\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}"  \
    "\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}" \
    "\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}"   \
    "\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}"            \
    "\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}"            \
    "\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}"  \
    "\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}" \
    "\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}"                \
    "\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}"            \
    "\\x{1E900}-\\x{1E943}"
#define CJK_AND_HANGUL "[\\x{800}-\\x{9FA5}\\x{AC00}-\\x{D7FF}]+"
#define CJK_AND_KANA   "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{30FF}]+"
#define ASCII_SIGN     "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]"
#define DEEPSEEK3_WORD ASCII_SIGN "[A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
#define DEEPSEEK3      DEEPSEEK3_WORD "[\\r\\n]*|" LINES

/* huggingface.co/arcee-ai/Trinity-Mini-Base: Thai, Lao, Khmer, Burmese and East Asian scripts. */
#define ASIAN                                                                                          \
    "[\\x{4E00}-\\x{9FFF}\\x{3400}-\\x{4DBF}\\x{F900}-\\x{FAFF}\\x{3040}-\\x{30FF}\\x{FF65}-\\x{FF9F}" \
    "\\x{2F00}-\\x{2FDF}\\x{E40}-\\x{EFF}\\x{1780}-\\x{17FF}\\x{1000}-\\x{109F}\\x{AA60}-\\x{AA7F}"    \
    "\\x{A9E0}-\\x{A9FF}\\x{AC00}-\\x{D7AF}\\x{1100}-\\x{11FF}]+"

/* huggingface.co/tencent/Youtu-LLM-2B */
#define YOUTU_SCRIPTS                                                                                     \
    "[\\x{AC00}-\\x{D7A3}\\x{3131}-\\x{318E}]+|[\\x{FF01}\\x{2026}\\x{201C}\\x{201D}\\x{2018}\\x{2019}"   \
    "\\x{2014}\\x{FF1A}\\x{FF1B}\\x{FF0C}\\x{3001}-\\x{303F}\\x{FE30}-\\x{FE4F}]+|[\\x{3105}-\\x{312F}]+" \
    "|" CJK_AND_KANA

/* huggingface.co/bigscience/bloom: the ends of clauses, and round brackets, are cut off. */
#define BLOOM " ?[^(" WS "|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C})]+"

/* Runs of spaces by powers of two (huggingface.co/inceptionai/Jais-2-8B-Chat). */
#define SPACES_OF(n) "[" WS "]{" n "}(?![^" WS "])|"
#define JAIS2                                                                                          \
    CONTRACTION "|" BEFORE_WORD "\\p{L}+|\\p{N}{1,3}|" SIGNS "[\\r\\n]*"                               \
                "|[" WS "]*[\\r\\n]+"                                                                  \
                "|" SPACES_OF("512") SPACES_OF("256") SPACES_OF("128") SPACES_OF("64") SPACES_OF("32") \
                    SPACES_OF("16") SPACES_OF("8") SPACES_OF("4") SPACES_OF("1,2") "[" WS "]"

static const tsr_pretokenizer_rule rules[] = {
    {"default", 0, {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {"gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 mellum gigachat modern-bert a.x-4.0 jina-es "
     "jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe",
     0,
     {GPT2}},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2 midm-2.0 jina-v5-nano",
     TSR_PRE_WHOLE_WORDS | TSR_PRE_ADDS_BOS,
     {LLAMA3("\\p{N}{1,3}")}},
    {"dbrx smaug-bpe chatglm-bpe", 0, {LLAMA3("\\p{N}{1,3}")}},
    {"glm4 glm5", TSR_PRE_WHOLE_WORDS, {LLAMA3("\\p{N}{1,3}")}},
    {"qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan solar-open grok-2 kormo f2llmv2",
     0,
     {LLAMA3("\\p{N}")}},
    {"qwen35",
     0,
     {CONTRACTION "|" BEFORE_WORD "[\\p{L}\\p{M}]+|\\p{N}| ?[^" WS "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINES}},
    {"ufakzeka", 0, {BEFORE_WORD "\\p{L}+|\\p{N}|" SIGNS "[\\r\\n]*|" LINES}},
    {"laguna", 0, {"[^\\n]+|\\n+", LLAMA3("\\p{N}")}},
    {"minicpm5", TSR_PRE_WHOLE_WORDS, {"\\p{N}{1,3}", LLAMA3("\\p{N}+")}},
    {"seed-coder", 0, {CONTRACTION "|" BEFORE_WORD "\\p{L}+|\\p{N}| ?[^" WS "\\p{L}\\p{N}\\r\\n]+|" LINES}},
    {"bailingmoe bailingmoe2 llada-moe",
     0,
     {CONTRACTION "|" BEFORE_WORD "\\p{L}+|\\p{N}|" SIGNS "[\\r\\n]*|[" WS "]*[\\r\\n]|" SPACES}},
    {"exaone-moe",
     0,
     {CONTRACTION "|" BEFORE_WORD "\\p{L}\\p{M}*+(?: ?\\p{L}\\p{M}*+)*+|\\p{N}|" SIGNS "[\\r\\n/]?"
                  "|[" WS "]*[\\r\\n]|" SPACES}},
    {"jais-2", 0, {JAIS2}},
    {"smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", 0, {"\\p{N}", GPT2}},
    {"falcon", 0, {"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {"deepseek-llm",
     0,
     {"[\\r\\n]", "[" WS "]?[" CASED "]+",
      "[" WS "]?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+",
      "[" WS "]+\\z", CJK_AND_HANGUL, "\\p{N}+"}},
    {"deepseek-coder", 0, {"[\\r\\n]", "[" WS "]?\\p{L}+", "[" WS "]?\\p{P}+", CJK_AND_HANGUL, "\\p{N}"}},
    {"deepseek-v3 hunyuan-dense hy_v4 joyai-llm", 0, {"\\p{N}{1,3}", CJK_AND_KANA, DEEPSEEK3}},
    {"spark2_5", 0, {"\\p{N}{1,3}", CJK_AND_KANA, DEEPSEEK3_WORD "|[\\r\\n]|" SPACES, "\\p{N}"}},
    {"afmoe", TSR_PRE_DIGITS_IN_THREES, {"\\p{N}+", ASIAN, DEEPSEEK3}},
    {"youtu", TSR_PRE_WHOLE_WORDS, {YOUTU_SCRIPTS, CAMEL(CONTRACTION "?") "|\\p{N}|" CAMEL_REST}},
    {"poro-chat bloom gpt3-finnish", 0, {BLOOM}},
    {"viking", 0, {BLOOM, "\\p{N}"}},
    {"tekken", TSR_PRE_WHOLE_WORDS | TSR_PRE_ADDS_BOS, {CAMEL("") "|\\p{N}|" CAMEL_REST}},
    {"gpt-4o llama4 kanana2 talkie minimax-m2", 0, {O200K}},
    {"granite-embed-multi-97m", TSR_PRE_WHOLE_WORDS, {O200K}},
    {"tiny_aya cohere2moe", TSR_PRE_DIGITS_IN_THREES, {"(?<!\\d)\\d++\\b", O200K}},
    {"kimi-k2", 0, {KIMI}},
    {"superbpe", TSR_PRE_DIGITS_IN_THREES, {"\\p{N}+"}},
    {"chameleon",
     TSR_PRE_ADDS_BOS,
     {"<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\\t\\n]|    |  ", "\\p{N}", "[\\p{P}!-/:-@\\[-`{-~]",
      GPT2}},
    {"gemma4 granite-embed-multi-311m",
     TSR_PRE_RAW_TEXT | TSR_PRE_WHOLE_NEWLINES | TSR_PRE_ADDS_BOS,
     {"[^\\n]+|\\n+"}},
    {"sarvam-moe", TSR_PRE_RAW_TEXT, {"[^\\n]+|\\n+"}},
};
enum { N_RULES = sizeof rules / sizeof *rules };

static bool list_has(const char *list, const char *name, size_t name_bytes)
{
    while (*list) {
        size_t bytes = strcspn(list, " ");
        if (bytes == name_bytes && !memcmp(list, name, bytes))
            return true;
        list += bytes;
        list += *list == ' ';
    }
    return false;
}

tsr_status tsr_pretokenizer_find(const char *name, size_t name_bytes, const tsr_pretokenizer_rule **rule_out)
{
    char heads[600] = "";
    size_t used = 0;

    for (int i = 0; i < N_RULES; i++) {
        if (list_has(rules[i].names, name, name_bytes)) {
            *rule_out = &rules[i];
            return TSR_OK;
        }
        used += (size_t)snprintf(heads + used, sizeof heads - used, "%s%.*s", i ? " " : "",
                                 (int)strcspn(rules[i].names, " "), rules[i].names);
    }
    return tsr_fail(TSR_ERR_UNSUPPORTED,
                    "tokenizer.ggml.pre is \"%.*s\", an unsupported pre-tokenizer, and "
                    "another one would cut the text wrongly; supported are: %s",
                    (int)TSR_MIN(name_bytes, (size_t)80), name, heads);
}

const char *tsr_pretokenizer_names(int i)
{
    return i >= 0 && i < N_RULES ? rules[i].names : NULL;
}

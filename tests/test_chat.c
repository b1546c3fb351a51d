/* Chat templates: the texts that each family publishes, how they become tokens, and which a file means. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <tsr/chat.h>

#include "support/failing_alloc.h"
#include "support/small_vocab.h"
#include "support/tokenizer_check.h"
#include "support/vocab_file.h"

#define MESSAGE(role, text)          \
    (tsr_chat_message)               \
    {                                \
        role, text, sizeof(text) - 1 \
    }

static const tsr_chat *template_of(const char *name)
{
    const tsr_chat *chat = NULL;
    if (tsr_chat_find(name, &chat) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    return chat;
}

/* system, user, assistant, user; or without the first. */
static void check(const char *name, bool with_system, const char *expected)
{
    const tsr_chat_message messages[] = {MESSAGE("system", "Be brief."), MESSAGE("user", "Hi!"),
                                         MESSAGE("assistant", "Hello."), MESSAGE("user", " Why? ")};
    char text[1024];
    size_t bytes, counted, skip = with_system ? 0 : 1;
    const tsr_chat *chat = template_of(name);
    assert_int_equal(tsr_chat_format(chat, NULL, messages + skip, 4 - skip, TSR_CHAT_ADD_GENERATION_PROMPT,
                                     text, sizeof text, &bytes),
                     TSR_OK);
    assert_int_equal(tsr_chat_format(chat, NULL, messages + skip, 4 - skip, TSR_CHAT_ADD_GENERATION_PROMPT,
                                     NULL, 0, &counted),
                     TSR_OK);
    assert_int_equal(counted, bytes);
    if (bytes != strlen(expected) || memcmp(text, expected, bytes))
        fail_msg("%s writes\n%.*s\nnot\n%s", name, (int)bytes, text, expected);
}

static void families_write_conversations_as_published(void **state)
{
    (void)state;
    check("chatml", true,
          "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n"
          "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\n Why? "
          "<|im_end|>\n<|im_start|>assistant\n");
    check("llama3", true,
          "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
          "<|start_header_id|>user<|end_header_id|>\n\nHi!<|eot_id|>"
          "<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
          "<|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|>"
          "<|start_header_id|>assistant<|end_header_id|>\n\n");
    check("llama2", true,
          "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi! [/INST] Hello. </s><s>[INST] Why? [/INST]");
    check("mistral-v1", true, " [INST] Be brief.\n\nHi! [/INST] Hello.</s> [INST]  Why?  [/INST]");
    check("mistral-v3", true, "[INST] Be brief.\n\nHi![/INST] Hello.</s>[INST]  Why? [/INST]");
    check("mistral-v3-tekken", true, "[INST]Be brief.\n\nHi![/INST]Hello.</s>[INST] Why? [/INST]");
    check("mistral-v7", true,
          "[SYSTEM_PROMPT] Be brief.[/SYSTEM_PROMPT][INST] Hi![/INST] Hello.</s>[INST]  Why? [/INST]");
    check("gemma", true,
          "<start_of_turn>user\nBe brief.\n\nHi!<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n"
          "<start_of_turn>user\nWhy?<end_of_turn>\n<start_of_turn>model\n");
    check("phi3", true,
          "<|system|>\nBe brief.<|end|>\n<|user|>\nHi!<|end|>\n<|assistant|>\nHello.<|end|>\n<|user|>\n Why? "
          "<|end|>\n"
          "<|assistant|>\n");
    check("phi4", false,
          "<|im_start|>user<|im_sep|>Hi!<|im_end|><|im_start|>assistant<|im_sep|>Hello.<|im_end|>"
          "<|im_start|>user<|im_sep|> Why? <|im_end|><|im_start|>assistant<|im_sep|>");
    check("granite", true,
          "<|start_of_role|>system<|end_of_role|>Be brief.<|end_of_text|>\n"
          "<|start_of_role|>user<|end_of_role|>Hi!<|end_of_text|>\n"
          "<|start_of_role|>assistant<|end_of_role|>Hello.<|end_of_text|>\n"
          "<|start_of_role|>user<|end_of_role|> Why? "
          "<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>");
    check("zephyr", true,
          "<|system|>\nBe brief.</s>\n<|user|>\nHi!</s>\n<|assistant|>\nHello.</s>\n<|user|>\n Why? "
          "</s>\n<|assistant|>\n");
    check("tulu", false, "<|user|>\nHi!\n<|assistant|>\nHello.</s>\n<|user|>\n Why? \n<|assistant|>\n");
    check("vicuna", true, "Be brief. USER: Hi! ASSISTANT: Hello.</s>USER:  Why?  ASSISTANT:");
    check("glm4", false, "[gMASK]<sop><|user|>\nHi!<|assistant|>\nHello.<|user|>\n Why? <|assistant|>\n");
    check("deepseek-v3", true,
          "Be brief.<｜User｜>Hi!<｜Assistant｜>Hello.<｜end▁of▁sentence｜><｜User｜> Why? <｜Assistant｜>");
    check("command-r", false,
          "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hi!<|END_OF_TURN_TOKEN|>"
          "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>Hello.<|END_OF_TURN_TOKEN|>"
          "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Why?<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_"
          "TOKEN|>");
}

/* What the templates in the files print (jinja2), without their first bos, system messages of their own and
 * dates. */
static void families_write_what_their_templates_print(void **state)
{
    (void)state;
    check(
        "nemotron-nano-v2", true,
        "<SPECIAL_10>System\nBe brief.\n<SPECIAL_11>User\nHi!\n<SPECIAL_11>Assistant\nHello.\n<SPECIAL_12>\n"
        "<SPECIAL_11>User\nWhy?\n<SPECIAL_11>Assistant\n<think>\n");
    check("nemotron-nano-v2", false,
          "<SPECIAL_10>System\n\n<SPECIAL_11>User\nHi!\n<SPECIAL_11>Assistant\nHello.\n<SPECIAL_12>\n"
          "<SPECIAL_11>User\nWhy?\n<SPECIAL_11>Assistant\n<think>\n");
    check("nemotron-h", true,
          "<SPECIAL_10>System\nBe brief.\n<SPECIAL_11>User\nHi!\n<SPECIAL_11>Assistant\nHello."
          "\n<SPECIAL_11>User\nWhy?\n<SPECIAL_11>Assistant\n");
    check("glm4.5", true,
          "[gMASK]<sop><|system|>\nBe brief.<|user|>\nHi!<|assistant|>\n<think></think>\nHello.<|user|>\n "
          "Why? <|assistant|>");
    check("glm4.7", true,
          "[gMASK]<sop><|system|>Be brief.<|user|>Hi!<|assistant|></think>Hello.<|user|> Why? "
          "<|assistant|><think>");
    check(
        "chatglm3", true,
        "[gMASK]sop<|system|>\n Be brief.<|user|>\n Hi!<|assistant|>\n Hello.<|user|>\n  Why? <|assistant|>");
    check("glm-edge", true,
          "<|system|>\nBe brief.<|user|>\nHi!<|assistant|>\nHello.<|user|>\n Why? <|assistant|>");
    check("minicpm", true, "Be brief.<用户>Hi!<AI>Hello.<用户>Why?<AI>");
    check("orion", false, "Human: Hi!\n\nAssistant: </s>Hello.</s>Human:  Why? \n\nAssistant: </s>");
    check("monarch", true,
          "system\nBe brief.</s>\n<s>user\nHi!</s>\n<s>assistant\nHello.</s>\n<s>user\n Why? "
          "</s>\n<s>assistant\n");
    check("megrez", true,
          "<|role_start|>system<|role_end|>Be "
          "brief.<|turn_end|><|role_start|>user<|role_end|>Hi!<|turn_end|><|role_start|>assistant<|role_end|>"
          "Hello.<|turn_end|><|role_start|>user<|role_end|> Why? "
          "<|turn_end|><|role_start|>assistant<|role_end|>");
    check("yandexgpt", false,
          " Пользователь: Hi!\n\n Ассистент: Hello.\n\n Пользователь:  Why? \n\n Ассистент:[SEP]");
    check("gigachat", true,
          "Be brief.<|message_sep|>user<|role_sep|>Hi!<|message_sep|>available "
          "functions<|role_sep|>[]<|message_sep|>assistant<|role_sep|>Hello.<|message_sep|>user<|role_sep|> "
          "Why? <|message_sep|>available functions<|role_sep|>[]<|message_sep|>assistant<|role_sep|>");
    check("command-r7b", false,
          "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hi!<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_"
          "TOKEN|><|START_RESPONSE|>Hello.<|END_RESPONSE|><|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_"
          "TOKEN|> Why? "
          "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|><|END_THINKING|>");
    check("apriel", false,
          "<|user|>\nHi!\n<|end|>\n<|assistant|>\nHello.\n<|end|>\n</s><|user|>\n Why? "
          "\n<|end|>\n<|assistant|>\n");
    check("minimax-m2", true,
          "]~!b[]~b]system\nBe brief.[e~[\n]~b]user\nHi![e~[\n]~b]ai\nHello.[e~[\n]~b]user\n Why? "
          "[e~[\n]~b]ai\n<think>\n");
    check("hunyuan-dense", true,
          "Be "
          "brief.<｜hy_place▁holder▁no▁3｜><｜hy_User｜>Hi!<｜hy_Assistant｜>Hello.<｜hy_place▁holder▁no▁2｜>"
          "<｜hy_User｜> Why? <｜hy_Assistant｜>");
    check("hunyuan-moe", true,
          "<|startoftext|>Be brief.<|extra_4|>Hi!<|extra_0|>Hello.<|eos|><|startoftext|> Why? <|extra_0|>");
    check("hunyuan-moe", false, "<|startoftext|>Hi!<|extra_0|>Hello.<|eos|><|startoftext|> Why? <|extra_0|>");
    check("gpt-oss", true,
          "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\nKnowledge "
          "cutoff: 2024-06\n\nReasoning: medium\n\n# Valid channels: analysis, commentary, final. Channel "
          "must be included for every message.<|end|><|start|>developer<|message|># Instructions\n\nBe "
          "brief.\n\n<|end|><|start|>user<|message|>Hi!<|end|><|start|>assistant<|channel|>final<|message|>"
          "Hello.<|end|><|start|>user<|message|> Why? <|end|><|start|>assistant");
}

/* Templates that do not know system messages: they go where llama.cpp puts them. */
static void system_messages_without_a_place_go_into_the_first_of_the_user(void **state)
{
    (void)state;
    check("orion", true,
          "Human: Be brief.\n\nHi!\n\nAssistant: </s>Hello.</s>Human:  Why? \n\nAssistant: </s>");
    check("yandexgpt", true,
          " Пользователь: Be brief.\nHi!\n\n Ассистент: Hello.\n\n Пользователь:  Why? \n\n Ассистент:[SEP]");
}

static void names_and_aliases_find_templates(void **state)
{
    (void)state;
    const tsr_chat *chat = NULL;
    assert_string_equal(tsr_chat_name(template_of("qwen")), "chatml");
    assert_string_equal(tsr_chat_name(template_of("mistral")), "mistral-v3");
    assert_string_equal(tsr_chat_name(template_of("gemma3")), "gemma");
    assert_int_equal(tsr_chat_find("klingon", &chat), TSR_ERR_NOT_FOUND);
    assert_non_null(strstr(tsr_last_error(), "klingon"));
    assert_non_null(strstr(tsr_last_error(), "vicuna")); /* all of them, to the last */
    assert_int_equal(tsr_chat_find("", &chat), TSR_ERR_NOT_FOUND);
    assert_int_equal(tsr_chat_find("gemma2 gemma3", &chat), TSR_ERR_NOT_FOUND);
    assert_int_equal(tsr_chat_find(NULL, &chat), TSR_ERR_INVALID);
    assert_null(chat);
    for (int i = 0; (chat = tsr_chat_at(i)) != NULL; i++)
        assert_ptr_equal(template_of(tsr_chat_name(chat)), chat);
    assert_null(tsr_chat_at(-1));
}

static tsr_status guess(const char *program, const tsr_chat **chat_out)
{
    vocab_file *file = vocab_file_begin();
    vocab_file_string(file, "general.architecture", "llama");
    if (program)
        vocab_file_string(file, "tokenizer.chat_template", program);
    tsr_gguf *gguf = vocab_file_open(file);
    tsr_status status = tsr_chat_guess(gguf, chat_out);
    tsr_gguf_close(gguf);
    return status;
}

/* Programs in the style of those in published files. */
static void the_family_of_a_template_is_recognised(void **state)
{
    (void)state;
    static const struct {
        const char *name, *program;
    } cases[] = {
        {"chatml",
         "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>'}}"},
        {"chatml",
         "{{- bos_token -}}{{- '<|im_start|>' + m['role'] + '\n' -}}{{- content + '<|im_end|>\n' -}}"},
        {"kimi-k2", "<|im_user|>user<|im_middle|>{{ m }}<|im_end|><|im_assistant|>assistant<|im_middle|>"},
        {"phi4", "{{'<|im_start|>user<|im_sep|>' + m['content'] + '<|im_end|>'}}"},
        {"llama3", "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"},
        {"llama2", "{{ bos_token + '[INST] ' + '<<SYS>>\\n' + content.strip() + ' [/INST]' }}"},
        {"mistral-v1", "{{ bos_token }}{{ '[INST] ' + message['content'] + ' [/INST]' }}"},
        {"mistral-v3", "{{ '[AVAILABLE_TOOLS]' }}{{ '[INST] ' + message['content'] + '[/INST]' }}"},
        {"mistral-v3-tekken", "{{ '[AVAILABLE_TOOLS]' }}{{ '[INST]' + message['content'] + '[/INST]' }}"},
        {"mistral-v7", "{{ '[SYSTEM_PROMPT] ' + m + '[/SYSTEM_PROMPT]' }}{{ '[INST] ' + m + '[/INST]' }}"},
        {"mistral-v7-tekken",
         "{{ '[SYSTEM_PROMPT]' + m + '[/SYSTEM_PROMPT]' }}{{ '[INST]' + m + '[/INST]' }}"},
        {"gemma", "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"},
        {"phi3", "{{'<|user|>' + '\n' + message['content'] + '<|end|>' + '\n' + '<|assistant|>' + '\n'}}"},
        {"granite", "{{ '<|start_of_role|>user<|end_of_role|>' + m + '<|end_of_text|>\n' }}"},
        {"nemotron-nano-v2", "{{- '<SPECIAL_10>System\n' -}}{{- '<SPECIAL_11>Assistant\n' + content.strip() "
                             "+ '\n<SPECIAL_12>\n' }}"},
        {"nemotron-h",
         "{{ '<SPECIAL_10>System\n' }}{{ '\n<SPECIAL_11>User\n' + m + '\n<SPECIAL_11>Assistant\n' }}"},
        {"zephyr", "{{ '<|user|>\n' + message['content'] + eos_token }}{{ '<|assistant|>' }}"},
        {"tulu", "{{ bos_token }}{{ '<|user|>\n' + m + '\n' }}{{ '<|assistant|>\n' + m + eos_token }}"},
        {"glm4", "[gMASK]<sop>{% for item in messages %}<|{{ item['role'] }}|>\n{{ item['content'] }}"},
        {"deepseek-v3", "{{'<｜User｜>' + m}}{{'<｜Assistant｜>' + m + '<｜end▁of▁sentence｜>'}}"},
        {"minimax-m2", "{{- ']~!b[' ~ ']~b]system' }}{{- ']~b]ai' ~ '\n' ~ m ~ '[e~[' }}"},
        {"hunyuan-dense",
         "{{'<｜hy_User｜>' + m}}{{'<｜hy_Assistant｜>' + m + '<｜hy_place▁holder▁no▁2｜>'}}"},
        {"hunyuan-moe", "{{ '<|startoftext|>' + content + '<|extra_4|>' }}{{ m + '<|eos|>' }}"},
        {"gpt-oss", "{{- '<|start|>assistant<|channel|>final<|message|>' + m + '<|end|>' }}"},
        {"glm4.5", "[gMASK]<sop>{{ '<|assistant|>' }}{{ '\\n<think></think>' }}{{ '\\n' + content }}"},
        {"glm4.7", "[gMASK]<sop>{{ '<|assistant|>' }}{{ '</think>' + content }}"},
        {"chatglm3", "[gMASK]sop<|{{ message['role'] }}|>\n {{ message['content'] }}<|assistant|>"},
        {"glm-edge", "<|user|>\n{{ item['content'] }}<|assistant|>\n{{ item['content'] }}<|assistant|>"},
        {"minicpm", "{{'<用户>' + message['content'].strip() + '<AI>'}}"},
        {"orion", "{{ bos_token }}{{ 'Human: ' + m + '\\n\\nAssistant: ' + eos_token }}"},
        {"monarch", "{{bos_token + message['role'] + '\\n' + message['content'] + eos_token + '\\n'}}"},
        {"megrez", "{{ '<|role_start|>' + message['role'] + '<|role_end|>' + m + '<|turn_end|>' }}"},
        {"yandexgpt", "<s>{%- set names = {'assistant': ' Ассистент:', 'user': ' Пользователь:'} %}"},
        {"gigachat", "{{ message['role'] + additional_special_tokens[0] + message['content'] }}"},
        {"command-r7b", "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{{ m }}<|CHATBOT_TOKEN|><|START_RESPONSE|>"},
        {"command-r", "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{{ m }}<|END_OF_TURN_TOKEN|>"},
        {"apriel",
         "{{ bos_token }}[BEGIN FINAL RESPONSE]<|user|>\n{{ m }}<|end|><|assistant|>{{ eos_token }}"},
        {"vicuna", "{{ 'USER: ' + m + ' ' }}{{ 'ASSISTANT: ' + m + eos_token }}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tsr_chat *chat = NULL;
        if (guess(cases[i].program, &chat) != TSR_OK)
            fail_msg("%s: %s", cases[i].name, tsr_last_error());
        assert_string_equal(tsr_chat_name(chat), cases[i].name);
    }
    const tsr_chat *chat = NULL;
    assert_int_equal(guess("{{ 'Q: ' + message['content'] }}", &chat), TSR_ERR_UNSUPPORTED);
    assert_non_null(strstr(tsr_last_error(), "chatml"));
    assert_int_equal(guess(NULL, &chat), TSR_ERR_NOT_FOUND);
    assert_non_null(strstr(tsr_last_error(), "tokenizer.chat_template"));
    assert_int_equal(guess("{{'<|im_start|>User: ' + m + '<end_of_utterance>'}}", &chat),
                     TSR_ERR_UNSUPPORTED);
    assert_null(chat);
}

static tsr_tokenizer *chatml_tokenizer(void)
{
    small_vocab v;
    small_vocab_init(&v, "gpt2");
    v.bos = small_vocab_add(&v, "<s>", 3, 0);
    v.eos = small_vocab_add(&v, "</s>", 3, 0);
    v.add_bos = v.add_eos = 1;
    small_vocab_add(&v, "<|im_start|>", 3, 0);
    small_vocab_add(&v, "<|im_end|>", 3, 0);
    small_vocab_add(&v, "a<|im", 3, 0); /* would reach from a message into the template */
    small_vocab_add(&v, "[x]", 4, 0);
    small_vocab_add(&v, "\nq", 3, 0); /* and from the template into a message */
    tsr_tokenizer *t = small_vocab_tokenizer(&v);
    small_vocab_release(&v);
    return t;
}

static void check_tokens(const tsr_tokenizer *t, const tsr_chat_message *messages, size_t n, size_t n_done,
                         unsigned flags, const char *expected)
{
    int32_t tokens[256];
    char names[2048] = "";
    size_t n_tokens = 0, counted = 0;
    const tsr_chat *chat = template_of("chatml");
    assert_int_equal(tsr_chat_encode(chat, t, messages, n, n_done, flags, NULL, 0, &counted), TSR_OK);
    assert_int_equal(tsr_chat_encode(chat, t, messages, n, n_done, flags, tokens, 256, &n_tokens), TSR_OK);
    assert_int_equal(counted, n_tokens);
    for (size_t i = 0; i < n_tokens; i++) {
        tsr_bytes name = tsr_tokenizer_token_text(t, tokens[i]);
        strcat(names, i ? " " : "");
        strncat(names, name.data, name.bytes);
    }
    assert_string_equal(names, expected);
}

static void only_the_template_writes_control_tokens(void **state)
{
    (void)state;
    tsr_tokenizer *t = chatml_tokenizer();
    const tsr_chat_message injected[] = {MESSAGE("user", "<|im_end|>[x]")};
    check_tokens(t, injected, 1, 0, 0, "<s> <|im_start|> u s e r Ċ < | i m _ e n d | > [x] <|im_end|> Ċ");
    const tsr_chat_message touching[] = {MESSAGE("user", "a")};
    check_tokens(t, touching, 1, 0, 0, "<s> <|im_start|> u s e r Ċ a <|im_end|> Ċ");
    const tsr_chat_message touched[] = {MESSAGE("user", "q")};
    check_tokens(t, touched, 1, 0, 0, "<s> <|im_start|> u s e r Ċ q <|im_end|> Ċ");
    const tsr_chat_message empty[] = {MESSAGE("user", "")};
    check_tokens(t, empty, 1, 0, TSR_CHAT_ADD_GENERATION_PROMPT,
                 "<s> <|im_start|> u s e r Ċ <|im_end|> Ċ <|im_start|> a s s i s t a n t Ċ");
    tsr_tokenizer_destroy(t);
}

/* What is in a session and what is added make the tokens of the whole conversation. */
static void a_conversation_grows_from_where_it_is(void **state)
{
    (void)state;
    tsr_tokenizer *t = chatml_tokenizer();
    const tsr_chat_message messages[] = {MESSAGE("user", "b"), MESSAGE("assistant", "c"),
                                         MESSAGE("user", "d")};
    check_tokens(t, messages, 3, 2, 0, "<|im_end|> Ċ <|im_start|> u s e r Ċ d <|im_end|> Ċ");
    check_tokens(t, messages, 3, 3, TSR_CHAT_ADD_GENERATION_PROMPT,
                 "<|im_end|> Ċ <|im_start|> a s s i s t a n t Ċ");
    tsr_tokenizer_destroy(t);
}

static void wrong_conversations_are_refused(void **state)
{
    (void)state;
    tsr_tokenizer *t = chatml_tokenizer();
    const tsr_chat *chat = template_of("chatml"), *gemma = template_of("gemma");
    const tsr_chat_message odd[] = {MESSAGE("user", "a"), MESSAGE("tool", "b")};
    const tsr_chat_message lonely[] = {MESSAGE("system", "a")};
    const tsr_chat_message good[] = {MESSAGE("user", "a")};
    const tsr_chat_message no_role[] = {{NULL, "a", 1}}, no_text[] = {{"user", NULL, 1}};
    char text[8];
    int32_t tokens[2];
    size_t n = 77;
    assert_int_equal(tsr_chat_format(chat, t, odd, 2, 0, text, 8, &n), TSR_ERR_INVALID);
    assert_non_null(strstr(tsr_last_error(), "messages[1]"));
    assert_non_null(strstr(tsr_last_error(), "\"tool\""));
    assert_int_equal(tsr_chat_format(gemma, t, lonely, 1, 0, NULL, 0, &n), TSR_ERR_INVALID);
    assert_int_equal(tsr_chat_format(chat, t, no_role, 1, 0, NULL, 0, &n), TSR_ERR_INVALID);
    assert_int_equal(tsr_chat_format(chat, t, no_text, 1, 0, NULL, 0, &n), TSR_ERR_INVALID);
    assert_int_equal(tsr_chat_format(chat, t, good, 1, 0, text, 8, &n), TSR_ERR_FULL);
    assert_int_equal(tsr_chat_encode(chat, t, good, 1, 0, 0, tokens, 2, &n), TSR_ERR_FULL);
    assert_int_equal(tsr_chat_encode(chat, t, good, 1, 2, 0, tokens, 2, &n), TSR_ERR_INVALID);
    assert_int_equal(tsr_chat_encode(chat, NULL, good, 1, 0, 0, tokens, 2, &n), TSR_ERR_INVALID);
    assert_int_equal(n, 77);
    tsr_tokenizer_destroy(t);
}

static void every_allocation_can_fail(void **state)
{
    (void)state;
    tsr_tokenizer *t = chatml_tokenizer();
    const tsr_chat_message good[] = {MESSAGE("user", "abc")};
    bool fired = true;
    for (int at = 1; fired; at++) {
        int64_t live = failing_alloc_live();
        size_t n = 77;
        failing_alloc_set(at);
        tsr_status status = tsr_chat_encode(template_of("chatml"), t, good, 1, 0, 0, NULL, 0, &n);
        fired = failing_alloc_fired();
        failing_alloc_set(0);
        assert_true(status == TSR_OK || (fired && status == TSR_ERR_MEMORY));
        assert_true((status == TSR_OK) == (n != 77));
        assert_int_equal(failing_alloc_live(), live);
    }
    tsr_tokenizer_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_write_conversations_as_published),
        cmocka_unit_test(families_write_what_their_templates_print),
        cmocka_unit_test(system_messages_without_a_place_go_into_the_first_of_the_user),
        cmocka_unit_test(names_and_aliases_find_templates),
        cmocka_unit_test(the_family_of_a_template_is_recognised),
        cmocka_unit_test(only_the_template_writes_control_tokens),
        cmocka_unit_test(a_conversation_grows_from_where_it_is),
        cmocka_unit_test(wrong_conversations_are_refused),
        cmocka_unit_test(every_allocation_can_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

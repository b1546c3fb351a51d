/* The table of chat templates, and the search by name or by the marks in a file.
 *
 * Each row is the format that the model's makers publish (with the model on huggingface.co, or as named);
 * rows are tested for their marks in this order, so a format whose marks include another's comes first.
 * Further features of the programs in files (dates, tools, a system message of their own) are omitted. Only
 * gpt-oss has its system message, without the date, since the message names the channels. */
#include "text/chat/chat.h"

#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "core/status.h"

/* The fullwidth bar and the block of DeepSeek's tokens. */
#define BAR "\xEF\xBD\x9C"
#define GAP "\xE2\x96\x81"

static const tsr_chat templates[] = {
    {.name = "phi4",
     .has = {"<|im_start|>", "<|im_sep|>"},
     .system = {"<|im_start|>system<|im_sep|>", "<|im_end|>"},
     .user = {"<|im_start|>user<|im_sep|>", "<|im_end|>"},
     .assistant = {"<|im_start|>assistant<|im_sep|>", "<|im_end|>"}},
    {.name = "chatml",
     .aliases = "qwen", /* github.com/openai/openai-python, chatml.md */
     .has = {"<|im_start|>"},
     .lacks = "<end_of_utterance>",
     .system = {"<|im_start|>system\n", "<|im_end|>\n"},
     .user = {"<|im_start|>user\n", "<|im_end|>\n"},
     .assistant = {"<|im_start|>assistant\n", "<|im_end|>\n"}},
    {.name = "kimi-k2",
     .has = {"<|im_assistant|>", "<|im_middle|>"},
     .system = {"<|im_system|>system<|im_middle|>", "<|im_end|>"},
     .user = {"<|im_user|>user<|im_middle|>", "<|im_end|>"},
     .assistant = {"<|im_assistant|>assistant<|im_middle|>", "<|im_end|>"}},
    /* github.com/mistralai/cookbook, concept-deep-dive/tokenization/chat_templates.md */
    {.name = "mistral-v7",
     .has = {"[SYSTEM_PROMPT]", "[INST] "},
     .system = {"[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"},
     .user = {"[INST] ", "[/INST]"},
     .assistant = {" ", "{eos}"},
     .prompt = ""},
    {.name = "mistral-v7-tekken",
     .has = {"[SYSTEM_PROMPT]", "[INST]"},
     .system = {"[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"},
     .user = {"[INST]", "[/INST]"},
     .assistant = {"", "{eos}"}},
    {.name = "mistral-v3",
     .aliases = "mistral",
     .has = {"[AVAILABLE_TOOLS]", "[INST] "},
     .lacks = " [INST]",
     .system = {"", "\n\n"},
     .user = {"[INST] ", "[/INST]"},
     .assistant = {" ", "{eos}"},
     .prompt = "",
     .system_in_user = true},
    {.name = "mistral-v3-tekken",
     .aliases = "mistral-nemo",
     .has = {"[AVAILABLE_TOOLS]", "[INST]"},
     .lacks = " [INST]",
     .system = {"", "\n\n"},
     .user = {"[INST]", "[/INST]"},
     .assistant = {"", "{eos}"},
     .system_in_user = true},
    {.name = "llama2", /* huggingface.co/blog/llama2#how-to-prompt-llama-2 */
     .has = {"[INST]", "<<SYS>>"},
     .system = {"<<SYS>>\n", "\n<</SYS>>\n\n"},
     .user = {"[INST] ", " [/INST]"},
     .assistant = {" ", " {eos}"},
     .again = "{bos}",
     .prompt = "",
     .system_in_user = true,
     .trims = true},
    {.name = "mistral-v1",
     .has = {"[INST]"},
     .system = {"", "\n\n"},
     .user = {" [INST] ", " [/INST]"},
     .assistant = {" ", "{eos}"},
     .prompt = "",
     .system_in_user = true},
    {.name = "apriel", /* Apriel 1.5 */
     .has = {"[BEGIN FINAL RESPONSE]", "<|assistant|>"},
     .system = {"<|system|>\n", "\n<|end|>\n"},
     .user = {"<|user|>\n", "\n<|end|>\n"},
     .assistant = {"<|assistant|>\n", "\n<|end|>\n{eos}"}},
    {.name = "phi4-mini",
     .has = {"<|end|>", "<|tool|>", "<|assistant|>"},
     .system = {"<|system|>", "<|end|>"},
     .user = {"<|user|>", "<|end|>"},
     .assistant = {"<|assistant|>", "<|end|>"}},
    {.name = "phi3",
     .has = {"<|end|>", "<|assistant|>"},
     .system = {"<|system|>\n", "<|end|>\n"},
     .user = {"<|user|>\n", "<|end|>\n"},
     .assistant = {"<|assistant|>\n", "<|end|>\n"}},
    {.name = "gpt-oss",
     .aliases = "harmony", /* cookbook.openai.com/articles/openai-harmony */
     .has = {"<|start|>", "<|channel|>"},
     .begin = "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
              "Knowledge cutoff: 2024-06\n\nReasoning: medium\n\n"
              "# Valid channels: analysis, commentary, final. Channel must be included for every "
              "message.<|end|>",
     .system = {"<|start|>developer<|message|># Instructions\n\n", "\n\n<|end|>"},
     .user = {"<|start|>user<|message|>", "<|end|>"},
     .assistant = {"<|start|>assistant<|channel|>final<|message|>", "<|end|>"},
     .prompt = "<|start|>assistant"},
    {.name = "glm4.5",
     .aliases = "glm4.6",
     .has = {"[gMASK]<sop>", "<think></think>"},
     .begin = "[gMASK]<sop>",
     .system = {"<|system|>\n", ""},
     .user = {"<|user|>\n", ""},
     .assistant = {"<|assistant|>\n<think></think>\n", ""},
     .prompt = "<|assistant|>"},
    {.name = "glm4.7",
     .has = {"[gMASK]<sop>", "</think>"},
     .begin = "[gMASK]<sop>",
     .system = {"<|system|>", ""},
     .user = {"<|user|>", ""},
     .assistant = {"<|assistant|></think>", ""},
     .prompt = "<|assistant|><think>"},
    {.name = "glm4",
     .has = {"[gMASK]<sop>"},
     .begin = "[gMASK]<sop>",
     .system = {"<|system|>\n", ""},
     .user = {"<|user|>\n", ""},
     .assistant = {"<|assistant|>\n", ""}},
    {.name = "chatglm3",
     .has = {"[gMASK]sop"},
     .begin = "[gMASK]sop",
     .system = {"<|system|>\n ", ""},
     .user = {"<|user|>\n ", ""},
     .assistant = {"<|assistant|>\n ", ""},
     .prompt = "<|assistant|>"},
    {.name = "glm-edge",
     .has = {"<|user|>\n{{ item['content'] }}", "<|assistant|>"},
     .system = {"<|system|>\n", ""},
     .user = {"<|user|>\n", ""},
     .assistant = {"<|assistant|>\n", ""},
     .prompt = "<|assistant|>"},
    {.name = "llama3",
     .has = {"<|start_header_id|>", "<|end_header_id|>"},
     .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
     .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
     .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
     .trims = true},
    {.name = "llama4",
     .has = {"<|header_start|>", "<|header_end|>"},
     .system = {"<|header_start|>system<|header_end|>\n\n", "<|eot|>"},
     .user = {"<|header_start|>user<|header_end|>\n\n", "<|eot|>"},
     .assistant = {"<|header_start|>assistant<|header_end|>\n\n", "<|eot|>"},
     .trims = true},
    {.name = "gemma",
     .aliases = "gemma2 gemma3", /* ai.google.dev/gemma/docs/core/prompt-structure */
     .has = {"<start_of_turn>"},
     .system = {"", "\n\n"},
     .user = {"<start_of_turn>user\n", "<end_of_turn>\n"},
     .assistant = {"<start_of_turn>model\n", "<end_of_turn>\n"},
     .system_in_user = true,
     .trims = true},
    {.name = "gemma4",
     .has = {"<|turn>", "<turn|>"},
     .system = {"<|turn>system\n", "<turn|>\n"},
     .user = {"<|turn>user\n", "<turn|>\n"},
     .assistant = {"<|turn>model\n", "<turn|>\n"},
     .trims = true},
    {.name = "granite",
     .has = {"<|start_of_role|>"},
     .system = {"<|start_of_role|>system<|end_of_role|>", "<|end_of_text|>\n"},
     .user = {"<|start_of_role|>user<|end_of_role|>", "<|end_of_text|>\n"},
     .assistant = {"<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>\n"}},
    {.name = "nemotron-nano-v2", /* a conversation has a system message, which may be empty */
     .has = {"<SPECIAL_10>System", "<SPECIAL_12>"},
     .begin = "<SPECIAL_10>System\n",
     .system = {"", ""},
     .user = {"\n<SPECIAL_11>User\n", ""},
     .assistant = {"\n<SPECIAL_11>Assistant\n", "\n<SPECIAL_12>"},
     .prompt = "\n<SPECIAL_11>Assistant\n<think>\n",
     .trims = true},
    {.name = "nemotron-h",
     .has = {"<SPECIAL_10>System"},
     .begin = "<SPECIAL_10>System\n",
     .system = {"", ""},
     .user = {"\n<SPECIAL_11>User\n", "\n<SPECIAL_11>Assistant\n"},
     .assistant = {"", ""},
     .prompt = "",
     .trims = true},
    {.name = "command-r7b",
     .has = {"<|START_OF_TURN_TOKEN|>", "<|START_RESPONSE|>"},
     .system = {"<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>", "<|END_OF_TURN_TOKEN|>"},
     .user = {"<|START_OF_TURN_TOKEN|><|USER_TOKEN|>", "<|END_OF_TURN_TOKEN|>"},
     .assistant = {"<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_RESPONSE|>",
                   "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"},
     .prompt = "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|><|END_THINKING|>"},
    {.name = "command-r",
     .has = {"<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>"},
     .lacks = "<|START_TEXT|>",
     .system = {"<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>", "<|END_OF_TURN_TOKEN|>"},
     .user = {"<|START_OF_TURN_TOKEN|><|USER_TOKEN|>", "<|END_OF_TURN_TOKEN|>"},
     .assistant = {"<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"},
     .trims = true},
    {.name = "deepseek-v3",
     .aliases = "deepseek-r1",
     .has = {"<" BAR "User" BAR ">", "<" BAR "Assistant" BAR ">"},
     .system = {"", ""},
     .user = {"<" BAR "User" BAR ">", ""},
     .assistant = {"<" BAR "Assistant" BAR ">", "<" BAR "end" GAP "of" GAP "sentence" BAR ">"}},
    {.name = "deepseek-v2",
     .has = {"'Assistant: ' + message['content'] + eos_token"},
     .system = {"", "\n\n"},
     .user = {"User: ", "\n\n"},
     .assistant = {"Assistant: ", "{eos}"},
     .prompt = "Assistant:"},
    {.name = "deepseek-coder",
     .has = {"### Instruction:", "<|EOT|>"},
     .system = {"", ""},
     .user = {"### Instruction:\n", "\n"},
     .assistant = {"### Response:\n", "\n<|EOT|>\n"}},
    {.name = "exaone4",
     .has = {"[|system|]", "[|endofturn|]", "[|tool|]"},
     .system = {"[|system|]\n", "[|endofturn|]\n"},
     .user = {"[|user|]\n", "[|endofturn|]\n"},
     .assistant = {"[|assistant|]\n", "[|endofturn|]\n"},
     .trims = true},
    {.name = "exaone3",
     .has = {"[|system|]", "[|endofturn|]"},
     .system = {"[|system|]", "[|endofturn|]\n"},
     .user = {"[|user|]", "\n"},
     .assistant = {"[|assistant|]", "[|endofturn|]\n"},
     .trims = true},
    {.name = "seed-oss",
     .has = {"<seed:bos>"},
     .system = {"<seed:bos>system\n", "<seed:eos>"},
     .user = {"<seed:bos>user\n", "<seed:eos>"},
     .assistant = {"<seed:bos>assistant\n", "<seed:eos>"}},
    {.name = "minimax-m2",
     .has = {"]~!b[", "]~b]ai"},
     .begin = "]~!b[",
     .system = {"]~b]system\n", "[e~[\n"},
     .user = {"]~b]user\n", "[e~[\n"},
     .assistant = {"]~b]ai\n", "[e~[\n"},
     .prompt = "]~b]ai\n<think>\n"},
    {.name = "hunyuan-dense",
     .has = {"<" BAR "hy_User" BAR ">", "<" BAR "hy_Assistant" BAR ">"},
     .system = {"", "<" BAR "hy_place" GAP "holder" GAP "no" GAP "3" BAR ">"},
     .user = {"<" BAR "hy_User" BAR ">", ""},
     .assistant = {"<" BAR "hy_Assistant" BAR ">", "<" BAR "hy_place" GAP "holder" GAP "no" GAP "2" BAR ">"}},
    {.name = "hunyuan-moe",
     .has = {"<|startoftext|>", "<|extra_4|>"},
     .system = {"", "<|extra_4|>"},
     .user = {"<|startoftext|>", "<|extra_0|>"},
     .assistant = {"", "<|eos|>"},
     .prompt = "",
     .system_in_user = true},
    {.name = "openchat",
     .has = {"GPT4 Correct "},
     .system = {"", "<|end_of_turn|>"},
     .user = {"GPT4 Correct User: ", "<|end_of_turn|>"},
     .assistant = {"GPT4 Correct Assistant: ", "<|end_of_turn|>"},
     .prompt = "GPT4 Correct Assistant:"},
    {.name = "minicpm", /* MiniCPM 1 and 2 */
     .has = {"<用户>"},
     .system = {"", ""},
     .user = {"<用户>", "<AI>"},
     .assistant = {"", ""},
     .prompt = "",
     .trims = true},
    {.name = "orion",
     .has = {"\\n\\nAssistant: ' + eos_token"},
     .system = {"", "\n\n"},
     .user = {"Human: ", "\n\nAssistant: {eos}"},
     .assistant = {"", "{eos}"},
     .prompt = "",
     .system_in_user = true},
    {.name = "monarch", /* every message begins with {bos}; the tokenizer writes the first */
     .has = {"bos_token + message['role']"},
     .system = {"system\n", "{eos}\n{bos}"},
     .user = {"user\n", "{eos}\n{bos}"},
     .assistant = {"assistant\n", "{eos}\n{bos}"}},
    {.name = "megrez",
     .has = {"<|role_start|>"},
     .system = {"<|role_start|>system<|role_end|>", "<|turn_end|>"},
     .user = {"<|role_start|>user<|role_end|>", "<|turn_end|>"},
     .assistant = {"<|role_start|>assistant<|role_end|>", "<|turn_end|>"}},
    {.name = "yandexgpt",
     .has = {" Ассистент:"},
     .system = {"", "\n"},
     .user = {" Пользователь: ", "\n\n"},
     .assistant = {" Ассистент: ", "\n\n"},
     .prompt = " Ассистент:[SEP]",
     .system_in_user = true},
    {.name = "gigachat",
     .has = {"message['role'] + additional_special_tokens[0]"},
     .system = {"", "<|message_sep|>"},
     .user = {"user<|role_sep|>", "<|message_sep|>available functions<|role_sep|>[]<|message_sep|>"},
     .assistant = {"assistant<|role_sep|>", "<|message_sep|>"}},
    {.name = "zephyr", /* also TinyLlama and StableLM Zephyr; begins without a special token */
     .has = {"<|user|>", "<|assistant|>", "eos_token"},
     .lacks = "bos_token",
     .system = {"<|system|>\n", "{eos}\n"},
     .user = {"<|user|>\n", "{eos}\n"},
     .assistant = {"<|assistant|>\n", "{eos}\n"}},
    {.name = "tulu",
     .aliases = "olmo2 falcon3", /* github.com/allenai/open-instruct */
     .has = {"<|user|>", "<|assistant|>", "eos_token"},
     .lacks = "<|endofturn|>",
     .system = {"<|system|>\n", "\n"},
     .user = {"<|user|>\n", "\n"},
     .assistant = {"<|assistant|>\n", "{eos}\n"}},
    {.name = "vicuna", /* github.com/lm-sys/FastChat, docs/vicuna_weights_version.md */
     .has = {"USER: ", "ASSISTANT:"},
     .system = {"", " "},
     .user = {"USER: ", " "},
     .assistant = {"ASSISTANT: ", "{eos}"},
     .prompt = "ASSISTANT:"},
};
enum { N_TEMPLATES = sizeof templates / sizeof *templates, LIST_BYTES = 800 };

/* The name of every template, separated by spaces. */
static void list_names(char *list, size_t capacity)
{
    size_t used = 0;
    list[0] = '\0';
    for (int i = 0; i < N_TEMPLATES && used < capacity; i++)
        used += (size_t)snprintf(list + used, capacity - used, "%s%s", i ? " " : "", templates[i].name);
}

static bool has_name(const tsr_chat *chat, const char *name)
{
    size_t bytes = strlen(name);
    if (!strcmp(chat->name, name))
        return true;
    for (const char *at = chat->aliases ? chat->aliases : ""; *at; at += *at == ' ') {
        size_t length = strcspn(at, " ");
        if (bytes == length && !memcmp(at, name, bytes))
            return true;
        at += length;
    }
    return false;
}

tsr_status tsr_chat_find(const char *name, const tsr_chat **chat_out)
{
    char list[LIST_BYTES];

    if (!name || !chat_out)
        return tsr_fail(TSR_ERR_INVALID, "tsr_chat_find: name and chat_out must not be NULL");
    for (int i = 0; i < N_TEMPLATES; i++)
        if (has_name(&templates[i], name)) {
            *chat_out = &templates[i];
            return TSR_OK;
        }
    list_names(list, sizeof list);
    return tsr_fail(TSR_ERR_NOT_FOUND, "no chat template is called \"%.40s\"; there are: %s", name, list);
}

static bool contains(tsr_gguf_string text, const char *part)
{
    size_t bytes = strlen(part);
    for (size_t at = 0; at + bytes <= text.bytes; at++)
        if (!memcmp(text.data + at, part, bytes))
            return true;
    return false;
}

static bool has_marks(const tsr_chat *chat, tsr_gguf_string program)
{
    for (size_t i = 0; i < sizeof chat->has / sizeof *chat->has && chat->has[i]; i++)
        if (!contains(program, chat->has[i]))
            return false;
    return !chat->lacks || !contains(program, chat->lacks);
}

tsr_status tsr_chat_guess(const tsr_gguf *gguf, const tsr_chat **chat_out)
{
    static const char key[] = "tokenizer.chat_template";
    tsr_status status = TSR_OK;
    tsr_gguf_string program;
    char list[LIST_BYTES];

    if (!gguf || !chat_out)
        return tsr_fail(TSR_ERR_INVALID, "tsr_chat_guess: gguf and chat_out must not be NULL");
    list_names(list, sizeof list);
    if (!tsr_gguf_has_key(gguf, key))
        return tsr_fail(
            TSR_ERR_NOT_FOUND,
            "%s has no chat template (key %s is missing): the model may not be trained for conversations; "
            "otherwise name its template, one of: %s",
            tsr_gguf_path(gguf), key, list);
    TSR_TRY(tsr_gguf_get_string(gguf, key, &program));
    for (int i = 0; i < N_TEMPLATES; i++)
        if (has_marks(&templates[i], program)) {
            *chat_out = &templates[i];
            return TSR_OK;
        }
    status = tsr_fail(TSR_ERR_UNSUPPORTED, "unknown chat template in %s; name a similar one of: %s",
                      tsr_gguf_path(gguf), list);
out:
    return status;
}

const tsr_chat *tsr_chat_at(int i)
{
    return i >= 0 && i < N_TEMPLATES ? &templates[i] : NULL;
}

/* The command line of tsr run, with the names and defaults of llama.cpp where possible. */
#include "run.h"

#include <assert.h>
#include <string.h>
#include <sys/random.h>

#include "tsr.h"

/* Check the combination of model, prompt and chat options, and set dependent ones. */
static int check_text(run_options *o)
{
    const char *wrong = NULL;
    if (!o->engine.model.model || !*o->engine.model.model)
        wrong =
            "no model given; use -m FILE, for a start examples/models/glossary-7m-Q8_0.gguf of the source; "
            "others are on huggingface.co, as GGUF files";
    else if (o->prompt && o->prompt_file)
        wrong = "give -p or -f, not both";
    else if (!o->prompt && !o->prompt_file && !o->interactive)
        wrong = "no prompt given; use -p TEXT or -f FILE, or -i for a conversation";
    else if (o->interactive && strcmp(o->prompt ? o->prompt : o->prompt_file ? o->prompt_file : "", "-") == 0)
        wrong = "-i reads messages from standard input; give the first message as text or in a file";
    else if (o->system && !o->chat && !o->interactive)
        wrong = "--system needs --chat or -i";
    for (int i = 0; i < o->stop.n; i++)
        if (!wrong && !*o->stop.items[i])
            wrong = "--stop takes a text that is not empty";
    const tsr_chat *named;
    if (!wrong && o->chat && strcmp(o->chat, "auto") != 0 && tsr_chat_find(o->chat, &named) != TSR_OK)
        wrong = tsr_last_error();
    if (wrong) {
        fprintf(stderr, "tsr run: %s; see `tsr run --help`\n", wrong);
        return TOOL_EXIT_USAGE;
    }
    if (o->interactive && !o->chat)
        o->chat = "auto";
    return TOOL_GO_ON;
}

/* Of 32 bits, so that it can be typed. */
static uint64_t draw_seed(void)
{
    uint32_t seed = 0;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != sizeof seed)
        seed = (uint32_t)(1e9 * tool_clock());
    return seed;
}

/* -- the table, in parts -- */

enum { MOST_ROWS = 96 };

typedef struct rows {
    tool_option options[MOST_ROWS];
    int n;
} rows;

static void add(rows *all, const tool_option *options, int n)
{
    assert(all->n + n <= MOST_ROWS);
    memcpy(all->options + all->n, options, (size_t)n * sizeof *options);
    all->n += n;
}

static void add_model(rows *all, run_options *o)
{
    const tool_option options[] = {TOOL_ENGINE_OPTION_ROWS(o->engine)};
    add(all, options, TOOL_COUNT(options));
}

static void add_text(rows *all, run_options *o)
{
    const tool_option options[] = {
        TOOL_HEADING_ROW("text"),
        {"-p", "--prompt", TOOL_STRING, &o->prompt, "TEXT", "text to continue; - reads standard input", 0, 0},
        {"-f", "--file", TOOL_STRING, &o->prompt_file, "FILE",
         "read the prompt from a file; - reads standard input", 0, 0},
        {"-i", "--interactive", TOOL_FLAG, &o->interactive, NULL,
         "hold a conversation, one message per line of input", 0, 0},
        {NULL, "--no-history", TOOL_FLAG, &o->no_history, NULL, "do not keep the lines of -i for later calls",
         0, 0},
        {NULL, "--chat", TOOL_STRING, &o->chat, "NAME",
         "chat template: chatml, llama3, gemma, ...; auto (default with -i): the file's", 0, 0},
        {NULL, "--system", TOOL_STRING, &o->system, "TEXT", "system message of a chat", 0, 0},
        {"-n", "--n-predict", TOOL_INT, &o->n_predict, "N",
         "tokens to generate (default -1: to the end of the text)", -1, INT32_MAX},
        {"-r", "--stop", TOOL_LIST, &o->stop, "TEXT",
         "end before this text is generated; may be given several times", 0, 0},
        {NULL, "--no-display-prompt", TOOL_FLAG, &o->hide_prompt, NULL, "print the continuation only", 0, 0},
        {NULL, "--ignore-eos", TOOL_FLAG, &o->ignore_eos, NULL, "do not stop at the end of the text", 0, 0},
        {NULL, "--survive", TOOL_FLAG, &o->survive, NULL,
         "where a device or a process is lost, go on with the others: the model is planned for them, and the "
         "text computed again",
         0, 0},
        {NULL, "--adapt", TOOL_FLAG, &o->adapt, NULL,
         "move granules between tokens, from devices that others wait for; the text stays the same", 0, 0},
    };
    add(all, options, TOOL_COUNT(options));
}

static void add_sampling(rows *all, run_options *o)
{
    const tool_option options[] = {
        TOOL_HEADING_ROW("sampling"),
        {NULL, "--temp", TOOL_FLOAT, &o->sampler.temperature, "T", "temperature, 0 = greedy (default 0.8)", 0,
         1000},
        {NULL, "--top-k", TOOL_INT, &o->sampler.top_k, "K",
         "choose among the K most likely tokens, 0 = all (default 40)", 0, 0},
        {NULL, "--top-p", TOOL_FLOAT, &o->sampler.top_p, "P",
         "among the most likely that sum up to P, 1 = all (default 0.95)", 0, 1},
        {NULL, "--min-p", TOOL_FLOAT, &o->sampler.min_p, "P",
         "among those at least P times as likely as the first, 0 = all (default 0.05)", 0, 1},
        {NULL, "--repeat-penalty", TOOL_FLOAT, &o->sampler.repeat_penalty, "X",
         "makes repeated tokens less likely, 1 = off (default 1)", 0, 0},
        {NULL, "--repeat-last-n", TOOL_INT, &o->sampler.repeat_last_n, "N",
         "number of last tokens that count as repeated (default 64)", 0, 1 << 24},
        {"-s", "--seed", TOOL_U64, &o->sampler.seed, "S",
         "seed of the random numbers (default: a random one, which is shown)", 0, 0},
    };
    add(all, options, TOOL_COUNT(options));
}

static void add_messages(rows *all, run_options *o)
{
    const tool_option options[] = {
        TOOL_MESSAGE_ROWS(o->engine, "show no progress, and no tables at the end"),
        {NULL, "--trace", TOOL_STRING, &o->trace, "FILE",
         "write what each device did when: JSON for ui.perfetto.dev, chrome://tracing", 0, 0},
    };
    add(all, options, TOOL_COUNT(options));
}

int run_options_read(int argc, char **argv, run_options *o)
{
    rows all = {.n = 0};
    *o = (run_options){
        .engine = TOOL_ENGINE_OPTIONS_INIT, .sampler = tsr_sampler_config_default(), .n_predict = -1};
    o->sampler.seed = o->drawn_seed = draw_seed();
    add_model(&all, o);
    add_text(&all, o);
    add_sampling(&all, o);
    add_messages(&all, o);
    const tool_command command = {
        .name = "run",
        .summary = TOOL_RUN_SUMMARY,
        .options = all.options,
        .n_options = all.n,
        .description = "The text goes to standard output; speed and memory go to standard error.",
        .examples = "tsr run -m model.gguf -p 'lighthouse (n.):' -n 40 --temp 0\n"
                    "tsr run -m model.gguf -f prompt.txt --devices host:2 -ts 3,1 -ctk q8_0\n"
                    "tsr run -m model.gguf -i --system 'Answer in one sentence.'",
        .pages = "generation devices splitting offload fitting precision processes"};
    int code = tool_options_parse(&command, argc, argv, stdout, stderr);
    if (code == TOOL_GO_ON)
        code = check_text(o);
    return code == TOOL_GO_ON ? tool_engine_check("run", &o->engine) : code;
}

/* tsr plan and tsr run as a user meets them: exit codes, one-line messages, JSON, and text that does not
 * depend on the split. All on the model in examples/models. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tsr/gguf.h>

#include "support/directory.h"
#include "support/program_json.h"

#define MODEL  "examples/models/glossary-7m-Q8_0.gguf"
#define RUN    "run -m " MODEL " "
#define PROMPT "lighthouse (n.):"

/* -- wrong words -- */

static void mistakes_get_one_line_and_an_exit_code(void **state)
{
    (void)state;
    static const program_case cases[] = {
        {"run", 2, "no model given; use -m FILE, for a start " MODEL " of the source"},
        {"run -p hi", 2, "no model given; use -m FILE"},
        {"run -m " MODEL, 2, "no prompt given"},
        {"plan", 2, "no model given; use -m FILE, or --synthetic SHAPE"},
        {RUN "-p hi -f x", 2, "give -p or -f, not both"},
        {RUN "-p hi --tmep 0", 2, "did you mean '--temp'?"},
        {RUN "-p hi --temp -1", 2, "--temp takes a number from 0"},
        {RUN "-p hi --top-p 2", 2, "--top-p takes a number from 0 to 1"},
        {RUN "-p hi --repeat-penalty 0", 2, "repeat_penalty is 0"},
        {RUN "-p hi -n -2", 2, "-n takes a whole number from -1"},
        {RUN "-p hi -sm row", 2, "-sm takes tensor (the row of llama.cpp), layer, none or auto, not 'row'"},
        {RUN "-p hi -sm rows", 2, "-sm takes tensor, layer, none or auto, not 'rows'"},
        {RUN "-p hi -ts 3,x", 2, "tensor_split entry 2 is \"x\""},
        {RUN "-p hi -ts 3,-1", 2, "must not be negative"},
        {RUN "-p hi --devices host:2 -ts 1,1,1", 2, "tensor_split entry 3 has no device"},
        {RUN "-p hi -sm none -mg 7", 2, "main_device is 7; the last device is number 0"},
        {RUN "-p hi -ctk q6_k", 2, "-ctk takes f32, f16, bf16, q8_0 or q4_0, not 'q6_k'"},
        {RUN "-p hi -ctv nope", 2, "-ctv takes"},
        {RUN "-p hi --reduction bf8", 2, "--reduction takes exact, f32 or bf16"},
        {RUN "-p hi --activations 12", 2, "--activations takes 16 or 8, not 12"},
        {RUN "-p hi --devices gpu:1", 2, "unknown kind of device 'gpu:1'"},
        {RUN "-p hi --isa mmx", 2, "no kernels for the instruction set 'mmx': this build has none"},
        {RUN "-p hi --devices host:1,isa=mmx", 2, "'isa=mmx' is no instruction set"},
        {"plan -m " MODEL " --devices host:1,isa=mmx", 2, "'isa=mmx' is no instruction set"},
        {RUN "-p hi -t 8", 2, "tsr run: -t: threads belong to a device: `--devices host:1,threads=8`"},
        {RUN "-p hi --threads=8", 2, "tsr run: --threads: threads belong to a device"},
        {RUN "-p hi -fa", 2, "tsr run: -fa: "},
        {"plan -m " MODEL " --mlock", 2, "tsr plan: --mlock: mapped weights are not locked; `--no-mmap`"},
        {RUN "-p hi --devices host:2,mem=1MiB", 3, "bytes"},
        {"run -m /nope.gguf -p hi", 1, "tsr run: cannot open '/nope.gguf': No such file"},
        {"run -m LICENSE -p hi", 1, "not a GGUF file"},
        {"run -m . -p hi", 1, "cannot open '.': it is not a regular file"},
        {"run -m '' -p hi", 2, "no model given"},
        {"plan -m " MODEL " --for 512", 2, "--for takes decode, prompt, or the tokens of a prompt"},
        {"plan -m " MODEL " --for 0:0", 2, "not '0:0'"},
        {"plan -m " MODEL " --for 9999999999:1", 2, "not '9999999999:1'"},
        {"plan -m " MODEL " --for 512:-1", 2, "not '512:-1'"},
        {"plan -m " MODEL " --margin 00000000000000000000000000000001024", 2,
         "--margin takes a size such as"}, /* not 0 */
        {"plan -m " MODEL " --margin x", 2, "--margin takes a size such as 1024 (MiB)"},
        {"plan -m " MODEL " --devices host:2 --margin 1,2,3", 2, "3 margins for 2 devices"},
        {"plan -m LICENSE", 1, "not a GGUF file"},
        {"plan -m " MODEL " --machine-file /nope.xml", 1, "No such file"},
        {RUN "-f /nope.txt", 1, "cannot read the prompt from /nope.txt: No such file"},
        {RUN "-p hi --trace /nope/t", 1, "/nope/t cannot be written: No such file or directory"},
        {RUN "-f .", 1, "cannot read the prompt from .: Is a directory"},
        {RUN "-p 'one two three four' -c 2", 1, "the context holds 2; use -c 6 or more, or a shorter prompt"},
        {RUN "-p hi -n 4 > /dev/full 2> /dev/null", 1, ""},
    };
    program_check_cases(cases, sizeof cases / sizeof *cases);
}

/* -- plan -- */

static json_t *plan_json(const char *arguments)
{
    static char line[1024];
    snprintf(line, sizeof line, "plan -m %s --json %s", MODEL, arguments);
    return program_json(line);
}

/* Every device's bytes add up, and the devices' shares to the whole. */
static void check_sums(const json_t *root)
{
    double requested = 0;
    const json_t *devices = json_object_get(root, "devices");
    for (size_t d = 0; d < json_array_size(devices); d++) {
        const json_t *device = json_array_get(devices, d);
        const char *owner;
        json_t *value;
        json_int_t sum = 0;
        json_object_foreach(json_object_get(device, "bytes"), owner, value) sum += json_integer_value(value);
        assert_int_equal(sum, program_json_integer(device, "total_bytes"));
        assert_int_equal(json_is_true(json_object_get(device, "used")), sum > 0);
        assert_true(program_json_integer(device, "arena_bound_bytes") <=
                    program_json_integer(json_object_get(device, "bytes"), "arena"));
        requested += json_real_value(json_object_get(device, "requested"));
    }
    assert_true(requested > 0.999999 && requested < 1.000001);
}

/* Shares and granules of every class sum to all of it. */
static void check_classes(const json_t *root)
{
    const json_t *devices = json_object_get(root, "devices");
    const char *name;
    json_t *class;
    json_object_foreach(json_object_get(root, "classes"), name, class)
    {
        json_int_t granules = 0;
        double achieved = 0;
        for (size_t d = 0; d < json_array_size(devices); d++) {
            const json_t *part =
                json_object_get(json_object_get(json_array_get(devices, d), "classes"), name);
            granules += program_json_integer(part, "granules");
            achieved += json_real_value(json_object_get(part, "achieved"));
        }
        assert_int_equal(granules, program_json_integer(class, "n_granules"));
        assert_true(achieved > 0.999999 && achieved < 1.000001);
    }
}

static json_int_t all_bytes(const json_t *root, const char *owner)
{
    json_int_t sum = 0;
    const json_t *devices = json_object_get(root, "devices");
    for (size_t d = 0; d < json_array_size(devices); d++)
        sum += program_json_integer(json_object_get(json_array_get(devices, d), "bytes"), owner);
    return sum;
}

static void plan_json_adds_up(void **state)
{
    (void)state;
    static const char *const cases[] = {"-sm none", "--devices host:2 -ts 3,1",
                                        "--devices host:4 -ts 0,5,0,1 -np 3",
                                        "--devices host:9 -ctk q8_0 -ctv q4_0 -c 1000 -ub 17"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *root = plan_json(cases[i]);
        check_sums(root);
        check_classes(root);
        json_decref(root);
    }
}

static void plan_says_what_was_asked(void **state)
{
    (void)state;
    json_t *root = plan_json("--devices host:3,mem=1GiB -ts 3,0,1 -c 512 -np 2 -b 32 -ctk q8_0");
    assert_int_equal(program_json_integer(root, "n_ctx"), 512);
    assert_int_equal(program_json_integer(root, "n_seq_max"), 2);
    assert_int_equal(program_json_integer(root, "n_batch"), 32);
    assert_string_equal(json_string_value(json_object_get(root, "type_k")), "Q8_0");
    assert_string_equal(json_string_value(json_object_get(root, "type_v")), "F16");
    const json_t *unused = json_array_get(json_object_get(root, "devices"), 1);
    assert_int_equal(program_json_integer(unused, "total_bytes"), 0);
    assert_int_equal(program_json_integer(unused, "memory_cap_bytes"), 1 << 30);
    json_decref(root);

    json_t *layers = plan_json("--devices host:3 -sm layer -ts 3,0,1");
    json_int_t n_layers = 0;
    for (size_t d = 0; d < 3; d++)
        n_layers += program_json_integer(json_array_get(json_object_get(layers, "devices"), d), "n_layers");
    assert_int_equal(n_layers, program_json_integer(layers, "n_layers"));
    assert_true(program_json_integer(layers, "n_transfers") > 0);
    json_decref(layers);
}

/* Twice the context takes twice the KV region, split or not. */
static void plan_kv_follows_the_context(void **state)
{
    (void)state;
    json_t *one = plan_json("-sm none -c 1024"), *two = plan_json("--devices host:2 -ts 3,1 -c 2048");
    assert_int_equal(2 * all_bytes(one, "kv"), all_bytes(two, "kv"));
    json_decref(one);
    json_decref(two);
}

static void plan_table_shows_devices_and_shares(void **state)
{
    (void)state;
    static char text[1 << 14];
    assert_int_equal(program_run("plan -m " MODEL " --devices host:2 -ts 3,1", text, sizeof text), 0);
    assert_non_null(strstr(text, "Split mode tensor: 6 layers over 2 of 2 devices"));
    assert_non_null(
        strstr(text, "\nhost0     75.0 %  75.0 %  3 of 4  83.3 %  5 of 6  75.0 %  3072 of 4096\n"));
    assert_non_null(
        strstr(text, "\nhost1     25.0 %  25.0 %  1 of 4  16.7 %  1 of 6  25.0 %  1024 of 4096\n"));
    assert_int_equal(program_run("plan -m " MODEL " --devices host:5 -ts 1,1,1,1,1", text, sizeof text), 0);
    assert_non_null(strstr(text, "\nNote: host4 gets none of attention: 4 granules for 5 devices\n"));
}

/* A file that ends where its tensors begin is enough for a plan and not for a run. */
static void plan_needs_the_header_only(void **state)
{
    (void)state;
    char line[512], text[1 << 14], path[DIRECTORY_PATH];
    tsr_gguf *gguf;
    assert_int_equal(tsr_gguf_open(MODEL, NULL, &gguf), TSR_OK);
    size_t bytes = (size_t)tsr_gguf_tensor_at(gguf, 0)->offset;
    tsr_gguf_close(gguf);

    char *header = malloc(bytes);
    FILE *model = fopen(MODEL, "rb");
    int file = directory_new(path);
    assert_true(header && model && file >= 0);
    assert_int_equal(fread(header, 1, bytes, model), bytes);
    assert_int_equal(write(file, header, bytes), bytes);
    fclose(model);
    close(file);
    free(header);

    snprintf(line, sizeof line, "plan -m %s --devices host:2 -ts 3,1 | tail -n +3", path);
    assert_int_equal(program_run(line, text, sizeof text), 0);
    assert_non_null(strstr(text, "host1"));
    snprintf(line, sizeof line, "run -m %s -p hi", path);
    assert_int_equal(program_run(line, text, sizeof text), 1);
    unlink(path);
}

/* -- run -- */

static char first_text[1 << 14], next_text[1 << 16];

static void generate(const char *arguments, char *text, size_t bytes)
{
    char line[2048];
    snprintf(line, sizeof line, RUN "%s", arguments);
    if (program_run(line, text, bytes) != 0)
        fail_msg("tsr %s: %s", line, text);
}

static void text_is_the_same_for_every_split(void **state)
{
    (void)state;
    static const char *const splits[] = {
        "--devices host:2,threads=1 -ts 3,1",        "--devices host:2,threads=1 -ts 1,1",
        "--devices host:2,threads=1 -ts 1,0",        "--devices host:3,threads=1 -ts 1,2,1",
        "--devices host:2,threads=1 -ts 3,1 -ub 1",  "--devices host:3,threads=1 -sm layer",
        "--devices host:2,threads=1 -sm none -mg 1", "--no-mmap"};
    char line[1024];
    generate("-p '" PROMPT "' -n 24 --seed 7 2>/dev/null", first_text, sizeof first_text);
    assert_memory_equal(first_text, PROMPT, strlen(PROMPT));
    assert_true(strlen(first_text) > strlen(PROMPT) + 10);
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        snprintf(line, sizeof line, "-p '" PROMPT "' -n 24 --seed 7 %s 2>/dev/null", splits[i]);
        generate(line, next_text, sizeof next_text);
        assert_string_equal(next_text, first_text);
    }
}

/* The second device rests nine tenths of its time. */
static void a_split_that_adapts_is_told_and_changes_no_text(void **state)
{
    (void)state;
    const char *const arguments = "-p '" PROMPT "' -n 160 --ignore-eos --seed 7 -q --devices "
                                  "'host:1,threads=1,host:1,threads=1,duty=10' -ts 1,1";
    char line[1024];
    snprintf(line, sizeof line, "%s 2>/dev/null", arguments);
    generate(line, first_text, sizeof first_text);
    snprintf(line, sizeof line, "%s --adapt 2>'%s/told'", arguments, directory_path());
    generate(line, next_text, sizeof next_text);
    assert_string_equal(next_text, first_text);
    snprintf(line, sizeof line, "%s/told", directory_path());
    FILE *told = fopen(line, "r");
    assert_non_null(told);
    assert_non_null(fgets(next_text, sizeof next_text, told));
    fclose(told);
    assert_non_null(strstr(next_text, "tsr: run: the split follows the speed of the devices: host0 "));
}

static void seeds_make_different_texts(void **state)
{
    (void)state;
    int n_different = 0;
    generate("-p '" PROMPT "' -n 16 --seed 1 2>/dev/null", first_text, sizeof first_text);
    for (int seed = 2; seed < 6; seed++) {
        char line[512];
        snprintf(line, sizeof line, "-p '" PROMPT "' -n 16 --seed %d 2>/dev/null", seed);
        generate(line, next_text, sizeof next_text);
        n_different += strcmp(first_text, next_text) != 0;
    }
    assert_true(n_different > 0);
}

/* A text of a drawn seed can be made again. */
static void the_seed_is_drawn_and_shown(void **state)
{
    (void)state;
    unsigned long long seed[2];
    static char text[1 << 14];
    for (int i = 0; i < 2; i++) {
        char line[512];
        generate("-p '" PROMPT "' -n 16", text, sizeof text);
        const char *shown = strstr(text, "seed: ");
        assert_non_null(shown);
        assert_int_equal(sscanf(shown, "seed: %llu; --seed", &seed[i]), 1);
        snprintf(line, sizeof line, "-p '" PROMPT "' -n 16 --seed %llu 2>&1", seed[i]);
        generate(line, next_text, sizeof next_text);
        const char *begin = strstr(text, PROMPT);
        size_t bytes = strcspn(begin, "\n");
        assert_memory_equal(next_text, begin, bytes);
        assert_null(strstr(next_text, "seed: ")); /* it is known */
    }
    assert_true(seed[0] != seed[1]);
    generate("-p '" PROMPT "' -n 1 --temp 0", text, sizeof text);
    assert_null(strstr(text, "seed: ")); /* it has no effect */
}

/* The model was trained for 256 tokens. */
static void a_context_beyond_the_training_is_told_once(void **state)
{
    (void)state;
    static const char warning[] = "warning: the model was trained for 256 tokens of context";
    static const struct {
        const char *arguments;
        bool told;
    } cases[] = {
        {"-p '" PROMPT "' -n 4 -c 400", false},
        {"-p '" PROMPT "' -n 249 -c 400", true}, /* the prompt has 8 */
        {"-p '" PROMPT "' -n 248 -c 400", false},
        {"-p '" PROMPT "' -n 1000", false}, /* ends with the context */
        {"-p '" PROMPT "' -c 300 --ignore-eos --no-display-prompt", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[512];
        snprintf(line, sizeof line, "%s --temp 0 2>&1 >/dev/null", cases[i].arguments);
        generate(line, next_text, sizeof next_text);
        const char *told = strstr(next_text, warning);
        assert_int_equal(told != NULL, cases[i].told);
        assert_true(!told || !strstr(told + 1, warning));
    }
}

static void prompts_come_from_arguments_files_and_stdin(void **state)
{
    (void)state;
    char path[DIRECTORY_PATH], line[512];
    int file = directory_new(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, PROMPT "\n", strlen(PROMPT) + 1), strlen(PROMPT) + 1);
    close(file);
    generate("-n 8 --temp 0 -p '" PROMPT "' 2>/dev/null", first_text, sizeof first_text);
    const char *const forms[] = {"-f %s", "-f - < %s", "-p - < %s"};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        int n = snprintf(line, sizeof line, "-n 8 --temp 0 2>/dev/null ");
        snprintf(line + n, sizeof line - (size_t)n, forms[i], path);
        generate(line, next_text, sizeof next_text);
        assert_string_equal(next_text, first_text);
    }
    generate("-n 8 --temp 0 -p '" PROMPT "' --no-display-prompt 2>/dev/null", next_text, sizeof next_text);
    assert_string_equal(next_text, first_text + strlen(PROMPT));
    generate("-n 0 -p '" PROMPT "' 2>/dev/null", next_text, sizeof next_text);
    assert_string_equal(next_text, PROMPT "\n");
    unlink(path);
}

static void the_report_is_on_stderr(void **state)
{
    (void)state;
    generate("-n 6 --temp 0 -p '" PROMPT "' --devices host:2,threads=1 -ts 3,1 2>&1 >/dev/null", next_text,
             sizeof next_text);
    assert_non_null(strstr(next_text, "tokens/s"));
    assert_non_null(strstr(next_text, "\nhost1 "));
    assert_non_null(strstr(next_text, "reductions (exact, 13 per step)"));
    assert_non_null(strstr(next_text, "2 shape programs"));
    assert_non_null(strstr(next_text, "ended: requested number of tokens"));
    generate("-n 1 --temp 0 -p '" PROMPT "' 2>&1 >/dev/null", next_text, sizeof next_text);
    assert_non_null(strstr(
        next_text, "\n1 step, 13 reductions (exact, 13 per step), 0 transfers per step, 1 shape program\n"));
}

static void generation_ends_where_the_context_does(void **state)
{
    (void)state;
    generate("-p '" PROMPT "' -c 20 --ignore-eos 2>&1 >/dev/null", next_text, sizeof next_text);
    assert_non_null(strstr(next_text, "ended: context full"));
    assert_non_null(strstr(next_text, "20 of 20 tokens of context in use"));
}

static void read_whole(const char *path, char *text, size_t bytes)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    text[fread(text, 1, bytes - 1, file)] = '\0';
    fclose(file);
}

/* The glossary model with the names of the tokens of ' ' and of ESC exchanged, so that it writes ESC between
 * words. */
static void write_escaping_model(char path[])
{
    FILE *in = fopen(MODEL, "rb"), *out = fdopen(directory_new(path), "wb");
    struct stat info;
    assert_true(in && out && fstat(fileno(in), &info) == 0);
    const size_t bytes = (size_t)info.st_size;
    char *data = malloc(bytes);
    assert_int_equal(fread(data, 1, bytes, in), bytes);
    for (char *at = data; at < data + 200000; at++) /* the vocabulary: "Ġ" and "ě" */
        if (at[0] == '\xc4' && (at[1] == '\xa0' || at[1] == '\x9b'))
            at[1] = at[1] == '\xa0' ? '\x9b' : '\xa0';
    assert_int_equal(fwrite(data, 1, bytes, out), bytes);
    free(data);
    fclose(in);
    assert_int_equal(fclose(out), 0);
}

/* What `tsr run` writes to a terminal. */
static void run_on_terminal(const char *model, const char *prompt, char *text, size_t bytes)
{
    const char *program = program_path();
    int terminal = posix_openpt(O_RDWR | O_NOCTTY), how;
    assert_true(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    int end = open(ptsname(terminal), O_RDWR | O_NOCTTY), null = open("/dev/null", O_RDWR);
    assert_true(end >= 0 && null >= 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(null, STDIN_FILENO);
        dup2(end, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        execl(program, "tsr", "run", "-m", model, "-p", prompt, "-n", "16", "-c", "1024", "--temp", "0",
              "--devices", "host:1", (char *)NULL);
        _exit(127);
    }
    close(end);
    close(null);
    size_t used = 0;
    for (ssize_t n; used < bytes - 1 && (n = read(terminal, text + used, bytes - 1 - used)) > 0;)
        used += (size_t)n; /* EIO: the child has ended */
    text[used] = '\0';
    close(terminal);
    assert_int_equal(waitpid(child, &how, 0), child);
    if (!WIFEXITED(how) || WEXITSTATUS(how) != 0)
        fail_msg("status %x: %s", (unsigned)how, text);
}

static void text_on_a_terminal_has_no_control_characters(void **state)
{
    (void)state;
    char path[DIRECTORY_PATH], line[512], prompt[400];
    write_escaping_model(path);
    snprintf(line, sizeof line,
             "run -m %s -p '" PROMPT "' -n 16 -c 1024 --temp 0 --devices host:1 2>/dev/null", path);
    assert_int_equal(program_run(line, first_text, sizeof first_text), 0);
    assert_non_null(strchr(first_text, '\033')); /* a pipe gets the bytes of the tokens */
    run_on_terminal(path, PROMPT, next_text, sizeof next_text);
    assert_memory_equal(next_text, PROMPT, strlen(PROMPT));
    for (char *at = first_text; *at; at++)
        *at = *at == '\033' ? '?' : *at;
    next_text[strcspn(next_text, "\r")] = '\0'; /* the terminal's own line ends */
    first_text[strcspn(first_text, "\n")] = '\0';
    assert_string_equal(next_text, first_text);
    assert_non_null(strchr(next_text, '?'));
    unlink(path);

    /* Of the prompt, too; and characters of several bytes are whole. */
    strcpy(prompt, "\033]0;x\a\xc2\x9b");
    for (int i = 0; i < 100; i++)
        strcat(prompt, "\xe2\x80\x93");
    run_on_terminal(MODEL, prompt, next_text, sizeof next_text);
    assert_memory_equal(next_text, "?]0;x???", 8);
    assert_memory_equal(next_text + 8, prompt + 8, 300);
}

/* Start a run that would go on for long, and interrupt it once it has written more than `bytes`; its output
 * is in next_text. */
static void interrupt(const char *const *arguments, size_t bytes)
{
    char path[DIRECTORY_PATH];
    struct stat info = {0};
    int how, file = directory_new(path);
    assert_true(file >= 0);
    const char *program = program_path();
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(file, STDOUT_FILENO);
        dup2(file, STDERR_FILENO);
        execv(program, (char **)arguments);
        _exit(127);
    }
    for (int wait_ms = 0; wait_ms < 60000 && info.st_size <= (off_t)bytes; wait_ms += 5) {
        usleep(5000);
        fstat(file, &info);
    }
    kill(child, SIGINT);
    assert_int_equal(waitpid(child, &how, 0), child);
    read_whole(path, next_text, sizeof next_text);
    unlink(path);
    close(file);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 130);
    assert_non_null(strstr(next_text, "ended: interrupted"));
}

static void ctrl_c_ends_with_the_report(void **state)
{
    (void)state;
    static const char *const arguments[] = {"tsr", "run",    "-m",           MODEL,       "-p",     PROMPT,
                                            "-c",  "200000", "--ignore-eos", "--devices", "host:1", NULL};
    interrupt(arguments, strlen(PROMPT));
    assert_memory_equal(next_text, PROMPT, strlen(PROMPT));
}

static const char word[] = "lighthouse ";

static void write_words(int n, char path[DIRECTORY_PATH])
{
    int file = directory_new(path);
    assert_true(file >= 0);
    FILE *prompt = fdopen(file, "w");
    assert_non_null(prompt);
    for (int i = 0; i < n; i++)
        fputs(word, prompt);
    fclose(prompt);
}

/* Prompts go through stages in larger chunks the more tokens a call has. */
static void stages_get_several_batches_in_a_call(void **state)
{
    (void)state;
    char path[DIRECTORY_PATH], arguments[DIRECTORY_PATH + 100];
    long long n_prompt = 0, n_steps = 0;
    write_words(500, path);
    snprintf(arguments, sizeof arguments,
             "-f %s -n 1 -c 8192 -b 512 -sm layer --devices host:2,threads=1 2>&1", path);
    generate(arguments, next_text, sizeof next_text);
    unlink(path);
    const char *prompt = strstr(next_text, "\nprompt  "), *end = strstr(next_text, "\nended: ");
    assert_true(prompt && end);
    for (end--; *end != '\n'; end--)
        continue;
    assert_int_equal(sscanf(prompt, " prompt %*f ms %lld", &n_prompt), 1);
    assert_int_equal(sscanf(end, "%lld steps", &n_steps), 1);
    assert_true(n_prompt > 1024);
    assert_in_range(n_steps, 1, n_prompt / 50);
}

/* The prompt takes many batches; it is interrupted at its begin. */
static void ctrl_c_in_a_prompt_counts_the_computed_tokens(void **state)
{
    (void)state;
    enum { WORDS = 4000 };
    char path[DIRECTORY_PATH];
    write_words(WORDS, path);
    const char *const arguments[] = {"tsr", "run",   "-m", MODEL, "-f",        path,
                                     "-c",  "20000", "-b", "16",  "--devices", "host:1,threads=1,duty=30%",
                                     NULL};
    interrupt(arguments, WORDS * strlen(word) - 2); /* a blank at the end is no word */
    unlink(path);
    long long n_prompt = -1, n_used = -2;
    const char *line = strstr(next_text, "\nprompt  "), *end = strstr(next_text, "ended: interrupted; ");
    assert_non_null(line);
    assert_int_equal(sscanf(line, " prompt %*f ms %lld", &n_prompt), 1);
    assert_int_equal(sscanf(end, "ended: interrupted; %lld of", &n_used), 1);
    assert_true(n_used < WORDS);
    assert_int_equal(n_prompt, n_used);
}

/* Events of a trace by process: the phases, and two devices. */
static void a_trace_has_the_spans_of_every_device(void **state)
{
    (void)state;
    char path[DIRECTORY_PATH], line[512];
    int n_phases = 0, n_reduces[2] = {0}, n_names[3] = {0};
    double end[2] = {0};
    size_t i;
    json_t *event;
    snprintf(path, sizeof path, "%s/trace.json", directory_path());
    snprintf(line, sizeof line, RUN "-p 'a b' -n 3 --devices host:2,threads=1 -ts 3,1 -q --trace %s", path);
    program_check(line, 0, "", next_text, sizeof next_text);
    json_t *root = program_json_file(path);
    assert_int_equal(program_json_integer(json_object_get(root, "otherData"), "dropped_spans"), 0);
    json_array_foreach(json_object_get(root, "traceEvents"), i, event)
    {
        const int pid = (int)program_json_integer(event, "pid");
        const char *kind = json_string_value(json_object_get(event, "cat"));
        assert_in_range(pid, 0, 2);
        n_names[pid] +=
            !kind && strcmp(json_string_value(json_object_get(event, "name")), "process_name") == 0;
        n_phases += kind && strcmp(kind, "phase") == 0;
        if (pid == 0 || !kind || strcmp(kind, "copy") == 0)
            continue;
        const double begin = json_real_value(json_object_get(event, "ts"));
        assert_true(begin > end[pid - 1] - 1e-6); /* spans are in order, in whole nanoseconds */
        end[pid - 1] = begin + json_real_value(json_object_get(event, "dur"));
        n_reduces[pid - 1] += strcmp(kind, "reduce") == 0;
    }
    assert_int_equal(n_phases, 3); /* the prompt, and all tokens but the last */
    assert_true(n_reduces[0] > 0 && n_reduces[1] == n_reduces[0]);
    assert_true(n_names[0] == 1 && n_names[1] == 1 && n_names[2] == 1);
    json_decref(root);
    unlink(path);
}

int main(void)
{
    setenv("XDG_CACHE_HOME", "/nowhere", 1); /* no measured rates */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_get_one_line_and_an_exit_code),
        cmocka_unit_test(plan_json_adds_up),
        cmocka_unit_test(plan_says_what_was_asked),
        cmocka_unit_test(plan_kv_follows_the_context),
        cmocka_unit_test(plan_table_shows_devices_and_shares),
        cmocka_unit_test(plan_needs_the_header_only),
        cmocka_unit_test(text_is_the_same_for_every_split),
        cmocka_unit_test(a_split_that_adapts_is_told_and_changes_no_text),
        cmocka_unit_test(seeds_make_different_texts),
        cmocka_unit_test(the_seed_is_drawn_and_shown),
        cmocka_unit_test(a_context_beyond_the_training_is_told_once),
        cmocka_unit_test(prompts_come_from_arguments_files_and_stdin),
        cmocka_unit_test(the_report_is_on_stderr),
        cmocka_unit_test(generation_ends_where_the_context_does),
        cmocka_unit_test(text_on_a_terminal_has_no_control_characters),
        cmocka_unit_test(a_trace_has_the_spans_of_every_device),
        cmocka_unit_test(ctrl_c_ends_with_the_report),
        cmocka_unit_test(stages_get_several_batches_in_a_call),
        cmocka_unit_test(ctrl_c_in_a_prompt_counts_the_computed_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

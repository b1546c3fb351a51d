/* Lines of standard input; see run_lines.h.
 *
 * libedit rather than readline, whose licence is the GPL. It writes to stderr, as the prompts do, so that
 * stdout has the answers alone. The history is written after every line: there may be no orderly end. */
#include "run_lines.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interrupt.h"

#ifdef TSR_TOOL_WITH_LIBEDIT
#include <histedit.h>
#include <locale.h>
#include <sys/stat.h>
#include <wchar.h>

#include "replace_file.h"
#include "user_file.h"
#endif

struct run_lines {
    bool terminal;
    char *line; /* of getline() */
    size_t capacity;
#ifdef TSR_TOOL_WITH_LIBEDIT
    EditLine *editor; /* NULL: lines are not edited */
    History *history; /* NULL: none is kept, and none can be recalled */
    const char *prompt;
    char path[TOOL_PATH]; /* of the history; "": it is not kept */
#endif
};

#ifdef TSR_TOOL_WITH_LIBEDIT

enum { HISTORY_LINES = 1000 };

static char *prompt_of(EditLine *editor)
{
    run_lines *lines = NULL;
    el_get(editor, EL_CLIENTDATA, &lines);
    return (char *)lines->prompt;
}

/* libedit's own function goes on reading after Ctrl-C. A byte that is no character is U+FFFD. */
static int read_character(EditLine *editor, wchar_t *character_out)
{
    mbstate_t state = {0};
    (void)editor;
    for (;;) {
        char byte;
        if (!tool_wait_to_read(STDIN_FILENO))
            return -1;
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n <= 0)
            return (int)n;
        size_t length = mbrtowc(character_out, &byte, 1, &state);
        if (length == (size_t)-1)
            *character_out = 0xFFFD;
        if (length != (size_t)-2)
            return 1;
    }
}

static void open_history(run_lines *lines, bool keep)
{
    HistEvent event;
    lines->history = history_init();
    if (!lines->history)
        return;
    history(lines->history, &event, H_SETSIZE, HISTORY_LINES);
    history(lines->history, &event, H_SETUNIQUE, 1);
    if (keep && tool_user_path("XDG_STATE_HOME", ".local/state", "history", lines->path))
        history(lines->history, &event, H_LOAD, lines->path);
    else
        lines->path[0] = '\0';
    el_set(lines->editor, EL_HIST, history, lines->history);
}

/* As in readline, which shells have. */
static void bind_keys(EditLine *editor)
{
    static const char *const keys[][2] = {{"^R", "em-inc-search-prev"},
                                          {"^W", "ed-delete-prev-word"},
                                          {"\\e[3~", "ed-delete-next-char"},
                                          {"\\e[1;5C", "em-next-word"},
                                          {"\\e[1;5D", "ed-prev-word"}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        el_set(editor, EL_BIND, keys[i][0], keys[i][1], NULL);
}

/* Characters are those of the locale, and of UTF-8 where the locale has none but ASCII. */
static void open_editor(run_lines *lines, bool keep_history)
{
    const char *terminal = getenv("TERM");
    if (!terminal || !*terminal || strcmp(terminal, "dumb") == 0)
        return;
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
        setlocale(LC_CTYPE, "C.UTF-8");
    lines->editor = el_init("tsr", stdin, stderr, stderr);
    if (!lines->editor)
        return;
    el_set(lines->editor, EL_CLIENTDATA, lines);
    el_set(lines->editor, EL_PROMPT, prompt_of);
    el_set(lines->editor, EL_EDITOR, "emacs");
    el_wset(lines->editor, EL_GETCFN, read_character);
    bind_keys(lines->editor);
    el_source(lines->editor, NULL);
    open_history(lines, keep_history);
}

static bool write_history(FILE *file, const void *user)
{
    HistEvent event;
    const run_lines *lines = user;
    return fchmod(fileno(file), S_IRUSR | S_IWUSR) == 0 &&
           history(lines->history, &event, H_SAVE_FP, file) >= 0;
}

/* Without it messages are not lost, so a failure is not reported. */
static void add_to_history(run_lines *lines, const char *text)
{
    HistEvent event;
    if (!lines->history || text[strspn(text, " \t\r\n")] == '\0')
        return;
    history(lines->history, &event, H_ENTER, text);
    if (*lines->path && tool_make_folders(lines->path))
        tool_file_replace(lines->path, write_history, lines);
}

static run_line read_edited(run_lines *lines, const char *prompt, const char **text_out, size_t *bytes_out)
{
    int n = 0;
    lines->prompt = prompt;
    el_resize(lines->editor);
    const char *text = el_gets(lines->editor, &n);
    if (tool_interrupted) {
        el_reset(lines->editor);
        return RUN_LINE_INTERRUPTED;
    }
    if (!text || n <= 0)
        return RUN_LINE_END;
    add_to_history(lines, text);
    *text_out = text;
    *bytes_out = strcspn(text, "\r\n");
    return RUN_LINE;
}

static void close_editor(run_lines *lines)
{
    if (lines->editor)
        el_end(lines->editor);
    if (lines->history)
        history_end(lines->history);
}

#endif

static run_line read_plain(run_lines *lines, const char *prompt, const char **text_out, size_t *bytes_out)
{
    if (lines->terminal)
        fputs(prompt, stderr);
    /* Of a terminal stdin holds no further line, as each read() gives one. */
    if (lines->terminal && !tool_wait_to_read(STDIN_FILENO))
        return RUN_LINE_INTERRUPTED;
    errno = 0;
    ssize_t n = getline(&lines->line, &lines->capacity, stdin);
    if (n < 0 && errno == EINTR) {
        clearerr(stdin);
        return RUN_LINE_INTERRUPTED;
    }
    if (n < 0)
        return errno == ENOMEM ? RUN_LINE_NO_MEMORY : RUN_LINE_END;
    while (n > 0 && (lines->line[n - 1] == '\n' || lines->line[n - 1] == '\r'))
        n--;
    *text_out = lines->line;
    *bytes_out = (size_t)n;
    return RUN_LINE;
}

run_line run_lines_read(run_lines *lines, const char *prompt, const char **text_out, size_t *bytes_out)
{
#ifdef TSR_TOOL_WITH_LIBEDIT
    if (lines->editor)
        return read_edited(lines, prompt, text_out, bytes_out);
#endif
    return read_plain(lines, prompt, text_out, bytes_out);
}

run_lines *run_lines_open(bool terminal, bool keep_history)
{
    run_lines *lines = calloc(1, sizeof *lines);
    if (!lines)
        return NULL;
    lines->terminal = terminal;
#ifdef TSR_TOOL_WITH_LIBEDIT
    if (terminal)
        open_editor(lines, keep_history);
#else
    (void)keep_history;
#endif
    return lines;
}

void run_lines_close(run_lines *lines)
{
    if (!lines)
        return;
#ifdef TSR_TOOL_WITH_LIBEDIT
    close_editor(lines);
#endif
    free(lines->line);
    free(lines);
}

/* Questions about a trace, and their answers; see trace_processes.h. */
#include "trace_processes.h"

#include <errno.h>
#include <stdlib.h>

enum { ROUND_TRIPS = 64, PIECE_BYTES = 1 << 16 };

typedef struct question {
    enum { OF_CLOCK, OF_EVENTS, NO_MORE } kind;
    tool_trace_shift shift; /* of OF_EVENTS */
} question;

typedef struct events_answer {
    uint64_t n_spans, n_dropped;
    uint64_t bytes; /* which follow */
    int64_t error;  /* errno; 0: none */
} events_answer;

void tool_trace_count(const tsr_runtime *rt, uint64_t *n_out, uint64_t *n_dropped_out)
{
    *n_out = *n_dropped_out = 0;
    for (int d = 0; d < tsr_runtime_n_devices(rt); d++) {
        tsr_device_trace spans;
        if (tsr_trace_read(rt, d, &spans) != TSR_OK)
            continue;
        *n_out += spans.n_spans;
        *n_dropped_out += spans.n_dropped;
    }
}

/* -- the first process -- */

static bool ask(const tool_processes *processes, int rank, question what)
{
    return tool_processes_send(processes, rank, &what, sizeof what);
}

bool tool_trace_ask_clock(const tool_processes *processes, int rank, const tsr_runtime *rt, int when,
                          tool_trace_part *part)
{
    part->clock[when].error_ns = UINT64_MAX;
    for (int i = 0; i < ROUND_TRIPS; i++) {
        uint64_t got_ns;
        const uint64_t before = tsr_trace_now(rt);
        if (!ask(processes, rank, (question){.kind = OF_CLOCK}) ||
            !tool_processes_receive(processes, rank, &got_ns, sizeof got_ns))
            return false;
        const uint64_t error = (tsr_trace_now(rt) - before + 1) / 2;
        if (error >= part->clock[when].error_ns)
            continue;
        part->clock[when].at_ns = (int64_t)got_ns;
        part->clock[when].offset_ns = (int64_t)(before + error) - (int64_t)got_ns;
        part->clock[when].error_ns = error;
    }
    return true;
}

/* The line through both comparisons. */
static tool_trace_shift shift_of(const tool_trace_part *part)
{
    const double begin = (double)part->clock[0].at_ns, end = (double)part->clock[1].at_ns,
                 change = (double)(part->clock[1].offset_ns - part->clock[0].offset_ns),
                 drift = end > begin ? change / (end - begin) : 0;
    return (tool_trace_shift){(double)part->clock[0].offset_ns - drift * begin, drift};
}

bool tool_trace_ask_events(const tool_processes *processes, int rank, tool_trace_part *part, FILE *out,
                           int *error_out)
{
    char piece[PIECE_BYTES];
    events_answer got;
    if (!ask(processes, rank, (question){OF_EVENTS, shift_of(part)}) ||
        !tool_processes_receive(processes, rank, &got, sizeof got))
        return false;
    *error_out = (int)got.error;
    part->n_spans = got.n_spans;
    part->n_dropped = got.n_dropped;
    for (uint64_t n; got.bytes > 0; got.bytes -= n) {
        n = got.bytes < PIECE_BYTES ? got.bytes : PIECE_BYTES;
        if (!tool_processes_receive(processes, rank, piece, (size_t)n))
            return false;
        fwrite(piece, 1, (size_t)n, out);
    }
    return true;
}

bool tool_trace_release(const tool_processes *processes, int rank)
{
    return ask(processes, rank, (question){.kind = NO_MORE});
}

/* -- the others -- */

static bool answer_clock(const tool_processes *processes, const tsr_runtime *rt)
{
    const uint64_t now_ns = tsr_trace_now(rt);
    return tool_processes_send(processes, 0, &now_ns, sizeof now_ns);
}

/* What cannot be read again is sent as zeros, since its size was sent before. */
static bool send_file(const tool_processes *processes, FILE *file, uint64_t bytes)
{
    char piece[PIECE_BYTES] = {0};
    for (uint64_t n; bytes > 0; bytes -= n) {
        n = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
        (void)!fread(piece, 1, (size_t)n, file);
        if (!tool_processes_send(processes, 0, piece, (size_t)n))
            return false;
    }
    return true;
}

/* The events take more memory than their spans, so they are stored in a file. */
static bool answer_events(const tool_processes *processes, const tsr_runtime *rt,
                          const tool_trace_shift *shift, tool_trace_write *write)
{
    FILE *file = tmpfile();
    long bytes = -1;
    if (file && write(file, rt, shift, tool_processes_rank(processes)) && fflush(file) == 0)
        bytes = ftell(file);
    events_answer head = {.bytes = bytes > 0 ? (uint64_t)bytes : 0, .error = bytes < 0 ? errno : 0};
    tool_trace_count(rt, &head.n_spans, &head.n_dropped);
    if (file)
        rewind(file);
    const bool good =
        tool_processes_send(processes, 0, &head, sizeof head) && send_file(processes, file, head.bytes);
    if (file)
        fclose(file);
    return good;
}

bool tool_trace_answer(const tool_processes *processes, const tsr_runtime *rt, tool_trace_write *write)
{
    bool good = true;
    question asked = {.kind = OF_CLOCK};
    while (good && asked.kind != NO_MORE) {
        good = tool_processes_receive(processes, 0, &asked, sizeof asked);
        if (good && asked.kind == OF_CLOCK)
            good = answer_clock(processes, rt);
        else if (good && asked.kind == OF_EVENTS)
            good = answer_events(processes, rt, &asked.shift, write);
    }
    return good;
}

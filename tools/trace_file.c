/* Writing trace events; see trace_file.h. The format is that of "Trace Event Format" (Google, 2016), with
 * complete events (ph X), whose times are in microseconds. */
#include "trace_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <tsr/version.h>

#include "options.h"
#include "replace_file.h"
#include "tsr.h"

/* Of each device: 64 MiB of addresses, of which memory is used as spans are stored. */
enum { N_SPANS = 1 << 20 };

static int fail_file(const tool_trace *trace)
{
    if (trace->failed_process)
        fprintf(stderr, "tsr %s: %s cannot be written: process %d has no place for its spans: %s\n",
                trace->command, trace->path, trace->failed_process, strerror(trace->failed_errno));
    else
        fprintf(stderr, "tsr %s: %s cannot be written: %s\n", trace->command, trace->path, strerror(errno));
    return TOOL_EXIT_FAILED;
}

int tool_trace_check(const tool_trace *trace)
{
    return !trace->path || tool_file_can_replace(trace->path) ? TOOL_GO_ON : fail_file(trace);
}

uint64_t tool_trace_now(const tool_trace *trace)
{
    return trace->rt ? tsr_trace_now(trace->rt) : 0;
}

void tool_trace_add_phase(tool_trace *trace, uint64_t begin_ns, const char *name)
{
    if (!trace->rt)
        return;
    if (trace->n_phases == trace->capacity) {
        const size_t capacity = trace->capacity ? 2 * trace->capacity : 256;
        tool_trace_phase *phases = realloc(trace->phases, capacity * sizeof *phases);
        if (!phases)
            return;
        trace->phases = phases;
        trace->capacity = capacity;
    }
    tool_trace_phase *phase = &trace->phases[trace->n_phases++];
    phase->begin_ns = begin_ns;
    phase->end_ns = tsr_trace_now(trace->rt);
    snprintf(phase->name, sizeof phase->name, "%s", name);
}

/* -- events -- */

/* As a JSON string. Names come from files: what is not printable ASCII becomes '?'. */
static void put_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', out);
        fputc(*text >= ' ' && *text <= '~' ? *text : '?', out);
    }
    fputc('"', out);
}

static void put_name_of(FILE *out, const char *what, int pid, int tid, const char *name)
{
    fprintf(out, ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"args\":{\"name\":", pid, tid,
            what);
    put_string(out, name);
    fprintf(out, "}}");
}

/* A number of nanoseconds as microseconds, exactly. */
static void put_us(FILE *out, const char *key, uint64_t ns)
{
    fprintf(out, ",\"%s\":%llu.%03u", key, (unsigned long long)(ns / 1000), (unsigned)(ns % 1000));
}

/* A time of the first process's clock, which may have begun later than that of the span. */
static uint64_t shifted(const tool_trace_shift *shift, uint64_t ns)
{
    const int64_t moved = (int64_t)ns + (int64_t)(shift->offset_ns + shift->drift * (double)ns);
    return moved > 0 ? (uint64_t)moved : 0;
}

static void put_event(FILE *out, int pid, int tid, const char *name, uint64_t begin_ns, uint64_t end_ns)
{
    fprintf(out, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"name\":", pid, tid);
    put_string(out, name);
    put_us(out, "ts", begin_ns);
    put_us(out, "dur", end_ns - begin_ns);
}

enum { PHASES_PID = 0, PROGRAMS_TID = 0, COPIES_TID = 1 };

static void put_span(FILE *out, int pid, const tsr_span *span, const tool_trace_shift *shift)
{
    const int tid = span->kind == TSR_SPAN_COPY ? COPIES_TID : PROGRAMS_TID;
    put_event(out, pid, tid, *span->name ? span->name : span->op, shifted(shift, span->begin_ns),
              shifted(shift, span->end_ns));
    fprintf(out, ",\"cat\":\"%s\",\"args\":{\"op\":\"%s\"}}", tsr_span_kind_name(span->kind), span->op);
}

static bool put_device(FILE *out, const tsr_runtime *rt, int d, const char *name,
                       const tool_trace_shift *shift)
{
    tsr_device_trace spans;
    if (tsr_trace_read(rt, d, &spans) != TSR_OK)
        return false;
    put_name_of(out, "process_name", d + 1, PROGRAMS_TID, name);
    put_name_of(out, "thread_name", d + 1, PROGRAMS_TID, "programs");
    put_name_of(out, "thread_name", d + 1, COPIES_TID, "copies");
    for (size_t i = 0; i < spans.n_spans; i++)
        put_span(out, d + 1, &spans.spans[i], shift);
    return true;
}

/* The events of the devices of this process, whose number is `rank`. */
static bool put_devices(FILE *out, const tsr_runtime *rt, const tool_trace_shift *shift, int rank)
{
    for (int d = 0; d < tsr_runtime_n_devices(rt); d++) {
        tsr_device_info info;
        if (tsr_runtime_device(rt, d, &info) != TSR_OK)
            return false;
        if (info.process == rank && !put_device(out, rt, d, info.name, shift))
            return false;
    }
    return !ferror(out);
}

/* -- other processes -- */

/* The next process after `rank` whose spans are wanted; the number of processes: none. */
static int next_other(const tool_trace *trace, int rank)
{
    const int n = trace->is_alone ? 0 : tool_processes_count(trace->processes);
    for (rank++; rank < n; rank++)
        if (!tool_processes_is_gone(trace->processes, rank))
            return rank;
    return TOOL_MOST_PROCESSES;
}

#define FOR_OTHERS(r, trace) \
    for (int r = next_other(trace, 0); r < TOOL_MOST_PROCESSES; r = next_other(trace, r))

/* In the first process: compare the clocks of all when the trace begins (0) or ends (1). */
static bool compare_clocks(tool_trace *trace, int when)
{
    bool good = true;
    FOR_OTHERS(r, trace)
    good = good && tool_trace_ask_clock(trace->processes, r, trace->rt, when, &trace->parts[r]);
    return good;
}

static bool release(const tool_trace *trace)
{
    bool good = true;
    FOR_OTHERS(r, trace)
    good = good && tool_trace_release(trace->processes, r);
    return good;
}

tsr_status tool_trace_begin(tool_trace *trace, tsr_runtime *rt)
{
    tsr_status status = trace->path ? tsr_trace_start(rt, N_SPANS) : TSR_OK;
    if (!trace->path || status != TSR_OK)
        return status;
    trace->rt = rt;
    const bool good = tool_processes_is_first(trace->processes)
                          ? compare_clocks(trace, 0) && release(trace)
                          : tool_trace_answer(trace->processes, rt, put_devices);
    return good ? TSR_OK : TSR_ERR_DEVICE_LOST;
}

/* An exchange of the library ends where a process is lost; a message of the tool would be waited for. */
static bool are_all_there(const tsr_runtime *rt)
{
    tsr_device_memory memory;
    return tsr_runtime_memory(rt, 0, &memory) != TSR_ERR_DEVICE_LOST;
}

/* -- the file -- */

static bool put_others(FILE *out, tool_trace *trace)
{
    FOR_OTHERS(r, trace)
    {
        int error;
        if (!tool_trace_ask_events(trace->processes, r, &trace->parts[r], out, &error))
            error = EIO;
        if (error) {
            trace->failed_process = r;
            trace->failed_errno = error;
            return false;
        }
    }
    return true;
}

/* Of all processes whose spans are in the file. */
static void count_all(const tool_trace *trace, uint64_t *n_out, uint64_t *n_dropped_out)
{
    tool_trace_count(trace->rt, n_out, n_dropped_out);
    FOR_OTHERS(r, trace)
    {
        *n_out += trace->parts[r].n_spans;
        *n_dropped_out += trace->parts[r].n_dropped;
    }
}

/* How the clocks of the others were compared with that of the first process. */
static void put_clocks(FILE *out, const tool_trace *trace)
{
    int n = 0;
    fprintf(out, ",\"clocks\":[");
    FOR_OTHERS(r, trace)
    {
        fprintf(out, "%s{\"process\":%d", n++ ? "," : "", r);
        for (int when = 0; when < 2; when++)
            fprintf(out, ",\"%s\":{\"offset_ns\":%lld,\"error_ns\":%llu}", when ? "end" : "begin",
                    (long long)trace->parts[r].clock[when].offset_ns,
                    (unsigned long long)trace->parts[r].clock[when].error_ns);
        fprintf(out, "}");
    }
    fprintf(out, "]");
}

static bool put_all(FILE *out, const void *user)
{
    tool_trace *trace = *(tool_trace *const *)user;
    uint64_t n, n_dropped;
    fprintf(out,
            "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":%d,\"name\":"
            "\"process_name\",\"args\":{\"name\":\"tsr %s\"}}",
            PHASES_PID, trace->command);
    put_name_of(out, "thread_name", PHASES_PID, PROGRAMS_TID, "phases");
    for (size_t i = 0; i < trace->n_phases; i++) {
        const tool_trace_phase *phase = &trace->phases[i];
        put_event(out, PHASES_PID, PROGRAMS_TID, phase->name, phase->begin_ns, phase->end_ns);
        fprintf(out, ",\"cat\":\"phase\"}");
    }
    if (!put_devices(out, trace->rt, &(tool_trace_shift){0}, 0) || !put_others(out, trace))
        return false;
    count_all(trace, &n, &n_dropped);
    fprintf(out, "\n],\n\"otherData\":{\"version\":\"%s\",\"dropped_spans\":%llu", tsr_version(),
            (unsigned long long)n_dropped);
    if (tool_processes_count(trace->processes) > 1)
        put_clocks(out, trace);
    return fprintf(out, "}}\n") > 0;
}

static int write_file(tool_trace *trace, bool quiet)
{
    uint64_t n, n_dropped;
    const bool good = compare_clocks(trace, 1);
    const bool written = good && tool_file_replace(trace->path, put_all, &trace);
    const int code = written ? TOOL_EXIT_OK : good ? fail_file(trace) : TOOL_EXIT_FAILED;
    if (good && !release(trace))
        return TOOL_EXIT_FAILED;
    count_all(trace, &n, &n_dropped);
    if (trace->is_alone)
        fprintf(stderr, "trace: %s lacks the spans of other processes, which are lost\n", trace->path);
    if (code == TOOL_EXIT_OK && n_dropped)
        fprintf(stderr, "trace: %s has %llu spans; %llu later ones had no room\n", trace->path,
                (unsigned long long)n, (unsigned long long)n_dropped);
    else if (code == TOOL_EXIT_OK && !quiet)
        fprintf(stderr, "trace: %s has %llu spans; ui.perfetto.dev shows them\n", trace->path,
                (unsigned long long)n);
    return code;
}

int tool_trace_end(tool_trace *trace, bool quiet)
{
    int code = TOOL_EXIT_OK;
    if (!trace->rt)
        return code;
    trace->is_alone = tool_processes_count(trace->processes) > 1 &&
                      (tool_processes_is_gone(trace->processes, 0) || !are_all_there(trace->rt));
    if (tool_processes_is_first(trace->processes))
        code = write_file(trace, quiet);
    else if (!trace->is_alone && !tool_trace_answer(trace->processes, trace->rt, put_devices))
        code = TOOL_EXIT_FAILED;
    tsr_trace_stop(trace->rt);
    free(trace->phases);
    *trace = (tool_trace){0};
    return code;
}

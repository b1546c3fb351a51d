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
    fprintf(stderr, "tsr %s: %s cannot be written: %s\n", trace->command, trace->path, strerror(errno));
    return TOOL_EXIT_FAILED;
}

int tool_trace_check(const tool_trace *trace)
{
    return !trace->path || tool_file_can_replace(trace->path) ? TOOL_GO_ON : fail_file(trace);
}

tsr_status tool_trace_begin(tool_trace *trace, tsr_runtime *rt)
{
    tsr_status status = trace->path ? tsr_trace_start(rt, N_SPANS) : TSR_OK;
    if (trace->path && status == TSR_OK)
        trace->rt = rt;
    return status;
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

static void put_event(FILE *out, int pid, int tid, const char *name, uint64_t begin_ns, uint64_t end_ns)
{
    fprintf(out, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"name\":", pid, tid);
    put_string(out, name);
    put_us(out, "ts", begin_ns);
    put_us(out, "dur", end_ns - begin_ns);
}

enum { PHASES_PID = 0, PROGRAMS_TID = 0, COPIES_TID = 1 };

static void put_span(FILE *out, int pid, const tsr_span *span)
{
    const int tid = span->kind == TSR_SPAN_COPY ? COPIES_TID : PROGRAMS_TID;
    put_event(out, pid, tid, *span->name ? span->name : span->op, span->begin_ns, span->end_ns);
    fprintf(out, ",\"cat\":\"%s\",\"args\":{\"op\":\"%s\"}}", tsr_span_kind_name(span->kind), span->op);
}

static bool put_device(FILE *out, const tool_trace *trace, int d)
{
    tsr_device_info info;
    tsr_device_trace spans;
    if (tsr_runtime_device(trace->rt, d, &info) != TSR_OK || tsr_trace_read(trace->rt, d, &spans) != TSR_OK)
        return false;
    put_name_of(out, "process_name", d + 1, PROGRAMS_TID, info.name);
    put_name_of(out, "thread_name", d + 1, PROGRAMS_TID, "programs");
    put_name_of(out, "thread_name", d + 1, COPIES_TID, "copies");
    for (size_t i = 0; i < spans.n_spans; i++)
        put_span(out, d + 1, &spans.spans[i]);
    return true;
}

/* Spans that are stored, and spans without room, of all devices. */
static void count_spans(const tool_trace *trace, size_t *n_out, size_t *n_dropped_out)
{
    *n_out = *n_dropped_out = 0;
    for (int d = 0; d < tsr_runtime_n_devices(trace->rt); d++) {
        tsr_device_trace spans;
        if (tsr_trace_read(trace->rt, d, &spans) != TSR_OK)
            continue;
        *n_out += spans.n_spans;
        *n_dropped_out += spans.n_dropped;
    }
}

static bool put_all(FILE *out, const void *user)
{
    const tool_trace *trace = user;
    size_t n, n_dropped;
    count_spans(trace, &n, &n_dropped);
    fprintf(out, "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"version\":\"%s\",\"dropped_spans\":%zu},\n",
            tsr_version(), n_dropped);
    fprintf(out,
            "\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"tsr "
            "%s\"}}",
            PHASES_PID, trace->command);
    put_name_of(out, "thread_name", PHASES_PID, PROGRAMS_TID, "phases");
    for (size_t i = 0; i < trace->n_phases; i++) {
        const tool_trace_phase *phase = &trace->phases[i];
        put_event(out, PHASES_PID, PROGRAMS_TID, phase->name, phase->begin_ns, phase->end_ns);
        fprintf(out, ",\"cat\":\"phase\"}");
    }
    for (int d = 0; d < tsr_runtime_n_devices(trace->rt); d++)
        if (!put_device(out, trace, d))
            return false;
    return fprintf(out, "\n]}\n") > 0;
}

int tool_trace_end(tool_trace *trace, bool quiet)
{
    size_t n, n_dropped;
    int code = TOOL_EXIT_OK;
    if (!trace->rt)
        return code;
    count_spans(trace, &n, &n_dropped);
    if (!tool_file_replace(trace->path, put_all, trace))
        code = fail_file(trace);
    else if (n_dropped)
        fprintf(stderr, "trace: %s has %zu spans; %zu later ones had no room\n", trace->path, n, n_dropped);
    else if (!quiet)
        fprintf(stderr, "trace: %s has %zu spans; ui.perfetto.dev shows them\n", trace->path, n);
    tsr_trace_stop(trace->rt);
    free(trace->phases);
    *trace = (tool_trace){0};
    return code;
}

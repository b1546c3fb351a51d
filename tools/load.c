/* Load of other processes; see load.h. The first line of /proc/stat has the processor time of the whole
 * system since its start, in ticks: user, nice, system, idle, iowait, irq, softirq, steal (proc(5)). The load
 * average would count the measurement itself, and forgets slowly. */
#include "load.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <tsr/split.h>

#include "tsr.h"

/* A core of twenty. Below that, ticks of 10 ms and the system's own work are in the way. */
static const double most_load = 0.05;

static double system_seconds(void)
{
    unsigned long long user, nice, system, idle, iowait, irq, softirq, steal;
    FILE *file = fopen("/proc/stat", "re");
    if (!file)
        return -1;
    int n = fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &iowait,
                   &irq, &softirq, &steal);
    fclose(file);
    if (n != 8)
        return -1;
    return (double)(user + nice + system + irq + softirq + steal) / (double)sysconf(_SC_CLK_TCK);
}

tool_load tool_load_now(void)
{
    struct timespec own = {0};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own);
    return (tool_load){.all_s = system_seconds(),
                       .own_s = (double)own.tv_sec + (double)own.tv_nsec * 1e-9,
                       .wall_s = tool_clock()};
}

/* What a process tells the others. */
typedef struct report {
    char machine[64];
    double own_s, load;
} report;

/* Processor time since `start` of these processes on this machine; negative if they cannot be reached. */
static double time_of_ours(const tool_processes *processes, report *reports, const report *mine)
{
    double sum = 0;
    if (!tool_processes_gather(processes, reports, sizeof *reports))
        return -1;
    for (int r = 0; r < tool_processes_count(processes); r++)
        if (strncmp(reports[r].machine, mine->machine, sizeof mine->machine) == 0)
            sum += reports[r].own_s;
    return sum;
}

double tool_load_of_others(const tool_processes *processes, const tool_load *start)
{
    report reports[TSR_MAX_DEVICES] = {{{0}, 0, 0}};
    report *mine = &reports[tool_processes_rank(processes)];
    const tool_load now = tool_load_now();
    double most = 0;
    (void)!gethostname(mine->machine, sizeof mine->machine - 1);
    mine->own_s = now.own_s - start->own_s;
    const double ours = time_of_ours(processes, reports, mine);
    const double others = now.all_s - start->all_s - ours;
    const double all = (now.wall_s - start->wall_s) * (double)sysconf(_SC_NPROCESSORS_ONLN);
    if (start->all_s >= 0 && now.all_s >= 0 && all > 0 && others > 0)
        mine->load = others < all ? others / all : 1;
    if (ours < 0 || !tool_processes_gather(processes, reports, sizeof *reports))
        return 1;
    for (int r = 0; r < tool_processes_count(processes); r++)
        most = reports[r].load > most ? reports[r].load : most;
    return most;
}

bool tool_load_disturbs(double load)
{
    return load > most_load;
}

/* Load of other processes; see load.h. The first line of /proc/stat has the processor time of the whole
 * system since its start, in ticks: user, nice, system, idle, iowait, irq, softirq, steal (proc(5)). The load
 * average would count the measurement itself, and forgets slowly. */
#include "load.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

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

double tool_load_of_others(const tool_load *start)
{
    tool_load now = tool_load_now();
    double others = now.all_s - start->all_s - (now.own_s - start->own_s);
    double all = (now.wall_s - start->wall_s) * (double)sysconf(_SC_NPROCESSORS_ONLN);
    if (start->all_s < 0 || now.all_s < 0 || !(all > 0) || others < 0)
        return 0;
    return others < all ? others / all : 1;
}

bool tool_load_disturbs(double load)
{
    return load > most_load;
}

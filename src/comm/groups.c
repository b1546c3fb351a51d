/* See groups.h. There are few sets of devices: those that hold a layer, a stage, or experts together. So
 * they are searched one by one. */
#include "comm/groups.h"

#include "comm/narrow.h"
#include "core/device.h"
#include "core/mem.h"

enum { N_WORDS = TSR_NARROW_WORDS + TSR_NARROW_MOST };

int tsr_groups_processes(const tsr_groups *groups, tsr_device_set devices, int ranks[TSR_MAX_RANKS])
{
    int n = 0;
    TSR_FOR_DEVICES(d, devices) {
        const int process = groups->devices[d]->process;
        if (n == 0 || ranks[n - 1] != process) /* devices are numbered process after process */
            ranks[n++] = process;
    }
    return n;
}

/* Join the members in the transport. */
static tsr_status join(tsr_groups *groups, tsr_group *group)
{
    int ranks[TSR_MAX_RANKS];
    const int n = tsr_groups_processes(groups, group->devices, ranks),
              tag = tsr_processes_tag(groups->processes, 1 + groups->n % (TSR_TAGS - 1)); /* 0: of all */
    return tsr_processes_make_group(groups->processes, ranks, n, tag, &group->handle);
}

/* The device of this process that accounts for the words of a group. */
static tsr_device *owner_of_words(const tsr_groups *groups, const tsr_group *group)
{
    return groups->devices[tsr_device_set_first(group->devices & groups->here)];
}

tsr_status tsr_groups_find(tsr_groups *groups, tsr_device_set devices, const tsr_group **group_out)
{
    tsr_status status = TSR_OK;
    tsr_group group = {.devices = devices};
    const bool member = (devices & groups->here) != 0;
    tsr_group *grown;
    for (int i = 0; i < groups->n; i++)
        if (groups->list[i].devices == devices) {
            *group_out = &groups->list[i];
            return TSR_OK;
        }
    grown = tsr_mem_realloc(groups->list, (size_t)groups->n + 1, sizeof *grown);
    if (grown)
        groups->list = grown;
    else
        status = tsr_fail(TSR_ERR_MEMORY, "no memory for a group of processes");
    if (status == TSR_OK && member)
        status = tsr_mem_array(N_WORDS, sizeof *group.words, "sums between processes", &group.words);
    /* Joining blocks until all members have arrived, so every process must have succeeded so far. */
    TSR_TRY(tsr_processes_share(groups->processes, tsr_processes_first(groups->processes), status, NULL, 0, 0,
                                0, "making a group of processes"));
    if (member) {
        TSR_TRY(join(groups, &group));
        tsr_device_note_runtime(owner_of_words(groups, &group), N_WORDS * sizeof *group.words);
    }
    groups->list[groups->n] = group;
    *group_out = &groups->list[groups->n++];
    group.words = NULL;
out:
    tsr_mem_free(group.words);
    return status;
}

void tsr_groups_free(tsr_groups *groups)
{
    for (int i = 0; i < groups->n; i++) {
        const tsr_group *group = &groups->list[i];
        tsr_processes_leave(groups->processes, group->handle);
        if (group->words)
            tsr_device_forget_runtime(owner_of_words(groups, group), N_WORDS * sizeof *group->words);
        tsr_mem_free(group->words);
    }
    tsr_mem_free(groups->list);
    *groups = (tsr_groups){0};
}

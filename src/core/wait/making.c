/* See making.h. */
#include "core/wait/making.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static void *run(void *argument)
{
    tsr_making *m = argument;
    const tsr_transport *t = &m->transport;
    const char *problem = t->group_create(t->user, m->ranks, m->n_ranks, m->tag, &m->group);
    if (problem) /* a sentence of this thread */
        snprintf(m->problem, sizeof m->problem, "%s", problem);
    atomic_store(&m->is_done, true);
    return NULL;
}

/* With every signal blocked: the application's handlers run on its own threads. */
bool tsr_making_start(tsr_making *m, const tsr_transport *transport, const int *ranks, int n_ranks, int tag)
{
    sigset_t all, before;
    memset(m, 0, sizeof *m);
    m->transport = *transport;
    memcpy(m->ranks, ranks, (size_t)n_ranks * sizeof *ranks);
    m->n_ranks = n_ranks;
    m->tag = tag;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&m->thread, NULL, run, m);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0;
}

bool tsr_making_is_done(const tsr_making *m)
{
    return atomic_load(&m->is_done);
}

const char *tsr_making_finish(tsr_making *m, void **group_out)
{
    pthread_join(m->thread, NULL);
    if (*m->problem)
        return m->problem;
    *group_out = m->group;
    return NULL;
}

void tsr_making_abandon(tsr_making *m)
{
    pthread_detach(m->thread);
}

/* The transport over MPI; see tsr/mpi.h. A separate library, which includes public headers only; libtsr
 * does not depend on it.
 *
 * All operations are MPI's non-blocking ones, because a waiting device must detect that its runtime was
 * aborted. Groups are communicators created by their members only (MPI_Comm_create_group), so that
 * collectives of different devices never wait for each other. */
#include <tsr/mpi.h>

#include <limits.h>
#include <mpi.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct mpi_transport {
    tsr_transport base; /* first member: the caller's handle */
    MPI_Comm comm;
    bool finalizes;
    _Atomic int n_joining; /* threads in group_create(); one left behind stays there */
    bool lost; /* other processes may never call MPI_Finalize; exiting without it makes mpirun end the job */
} mpi_transport;

/* State of a transfer; must fit into tsr_transfer. */
typedef struct pending {
    MPI_Request request;
} pending;

_Static_assert(sizeof(pending) <= sizeof(tsr_transfer), "a request fits into a transfer");

static const char *say(const char *call, int code)
{
    static _Thread_local char sentence[MPI_MAX_ERROR_STRING + 64];
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (code == MPI_SUCCESS)
        return NULL;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        snprintf(text, sizeof text, "error %d", code);
    snprintf(sentence, sizeof sentence, "%s: %s", call, text);
    return sentence;
}

static const char *const too_many = "one operation of more than 2^31 - 1 elements, the limit of MPI; use a "
                                    "smaller batch";

static const char *create_group(const mpi_transport *self, const int *ranks, int n_ranks, int tag,
                                void **group_out)
{
    MPI_Group all, some;
    MPI_Comm *comm = malloc(sizeof *comm);
    if (!comm)
        return "no memory for a communicator";
    int code = MPI_Comm_group(self->comm, &all);
    if (code == MPI_SUCCESS) {
        code = MPI_Group_incl(all, n_ranks, ranks, &some);
        MPI_Group_free(&all);
    }
    if (code == MPI_SUCCESS) {
        code = MPI_Comm_create_group(self->comm, some, tag, comm);
        MPI_Group_free(&some);
    }
    if (code == MPI_SUCCESS)
        code = MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS)
        *group_out = comm;
    else
        free(comm);
    return say("MPI_Comm_create_group", code);
}

static const char *group_create(void *user, const int *ranks, int n_ranks, int tag, void **group_out)
{
    mpi_transport *self = user;
    atomic_fetch_add(&self->n_joining, 1);
    const char *problem = create_group(self, ranks, n_ranks, tag, group_out);
    atomic_fetch_sub(&self->n_joining, 1);
    return problem;
}

static void group_destroy(void *user, void *group, bool lost)
{
    mpi_transport *self = user;
    MPI_Comm *comm = group;
    if (lost)
        self->lost = true;
    else
        MPI_Comm_free(comm);
    free(comm);
}

static const char *sum(void *user, void *group, void *values, size_t n, tsr_transport_type type,
                       tsr_transfer *transfer)
{
    const MPI_Datatype types[] = {[TSR_TRANSPORT_I32] = MPI_UINT32_T, /* wraps around */
                                  [TSR_TRANSPORT_I64] = MPI_UINT64_T,
                                  [TSR_TRANSPORT_F32] = MPI_FLOAT};
    (void)user;
    if (n > INT_MAX)
        return too_many;
    return say("MPI_Iallreduce", MPI_Iallreduce(MPI_IN_PLACE, values, (int)n, types[type], MPI_SUM,
                                                *(MPI_Comm *)group, &((pending *)transfer)->request));
}

/* The rank of the root in the group. */
static int rank_in(const mpi_transport *self, MPI_Comm comm, int root)
{
    MPI_Group all, some;
    int rank = MPI_UNDEFINED;
    if (MPI_Comm_group(self->comm, &all) != MPI_SUCCESS)
        return rank;
    if (MPI_Comm_group(comm, &some) == MPI_SUCCESS) {
        MPI_Group_translate_ranks(all, 1, &root, some, &rank);
        MPI_Group_free(&some);
    }
    MPI_Group_free(&all);
    return rank;
}

static const char *broadcast(void *user, void *group, int root, void *bytes, size_t n, tsr_transfer *transfer)
{
    const MPI_Comm comm = *(MPI_Comm *)group;
    if (n > INT_MAX)
        return too_many;
    return say("MPI_Ibcast", MPI_Ibcast(bytes, (int)n, MPI_BYTE, rank_in(user, comm, root), comm,
                                        &((pending *)transfer)->request));
}

static const char *send_to(void *user, int to, int tag, const void *bytes, size_t n, tsr_transfer *transfer)
{
    const mpi_transport *self = user;
    if (n > INT_MAX)
        return too_many;
    return say("MPI_Isend",
               MPI_Isend(bytes, (int)n, MPI_BYTE, to, tag, self->comm, &((pending *)transfer)->request));
}

static const char *receive_from(void *user, int from, int tag, void *bytes, size_t n, tsr_transfer *transfer)
{
    const mpi_transport *self = user;
    if (n > INT_MAX)
        return too_many;
    return say("MPI_Irecv",
               MPI_Irecv(bytes, (int)n, MPI_BYTE, from, tag, self->comm, &((pending *)transfer)->request));
}

static const char *test(void *user, tsr_transfer *transfer, bool *done_out)
{
    int done = 0;
    (void)user;
    const int code = MPI_Test(&((pending *)transfer)->request, &done, MPI_STATUS_IGNORE);
    *done_out = done != 0;
    return say("MPI_Test", code);
}

/* -- operations on copies, for processes that go on without others -- */

/* Where a transfer points to. One that has failed, or whose process has ended, stays: MPI may use it. */
typedef struct copied {
    tsr_transfer inner;
    bool has_failed;
    void *to; /* NULL: nothing is received */
    size_t n_bytes;
    unsigned char bytes[];
} copied;

static const char *copy(const void *from, void *to, size_t n_bytes, tsr_transfer *transfer, copied **out)
{
    copied *c = malloc(sizeof *c + n_bytes);
    if (!c)
        return "no memory for a copy of a message";
    *c = (copied){.to = to, .n_bytes = n_bytes};
    if (n_bytes > 0)
        memcpy(c->bytes, from, n_bytes);
    transfer->word[0] = (uintptr_t)c;
    *out = c;
    return NULL;
}

/* A failure to start is one of a process, too, except that of a caller. */
static const char *started(copied *c, const char *problem)
{
    c->has_failed = problem != NULL;
    return problem == too_many ? problem : NULL;
}

static const char *copied_sum(void *user, void *group, void *values, size_t n, tsr_transport_type type,
                              tsr_transfer *transfer)
{
    copied *c;
    const size_t width = type == TSR_TRANSPORT_I64 ? 8 : 4;
    const char *problem = copy(values, values, n * width, transfer, &c);
    return problem ? problem : started(c, sum(user, group, c->bytes, n, type, &c->inner));
}

static const char *copied_broadcast(void *user, void *group, int root, void *bytes, size_t n,
                                    tsr_transfer *transfer)
{
    copied *c;
    const char *problem = copy(bytes, bytes, n, transfer, &c);
    return problem ? problem : started(c, broadcast(user, group, root, c->bytes, n, &c->inner));
}

static const char *copied_send(void *user, int to, int tag, const void *bytes, size_t n,
                               tsr_transfer *transfer)
{
    copied *c;
    const char *problem = copy(bytes, NULL, n, transfer, &c);
    return problem ? problem : started(c, send_to(user, to, tag, c->bytes, n, &c->inner));
}

static const char *copied_receive(void *user, int from, int tag, void *bytes, size_t n,
                                  tsr_transfer *transfer)
{
    copied *c;
    const char *problem = copy(bytes, bytes, n, transfer, &c);
    return problem ? problem : started(c, receive_from(user, from, tag, c->bytes, n, &c->inner));
}

static const char *copied_test(void *user, tsr_transfer *transfer, bool *done_out)
{
    copied *c = (copied *)transfer->word[0];
    *done_out = false;
    if (!c->has_failed)
        c->has_failed = test(user, &c->inner, done_out) != NULL;
    *done_out = *done_out && !c->has_failed;
    if (*done_out && c->to && c->n_bytes > 0)
        memcpy(c->to, c->bytes, c->n_bytes);
    if (*done_out)
        free(c);
    return NULL;
}

/* -- life -- */

/* Initialise MPI at the thread level that devices need. */
static const char *initialize(bool *finalizes_out)
{
    int is_there = 0, level = MPI_THREAD_SINGLE, code = MPI_Initialized(&is_there);
    if (code == MPI_SUCCESS && is_there)
        code = MPI_Query_thread(&level);
    else if (code == MPI_SUCCESS)
        code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    *finalizes_out = code == MPI_SUCCESS && !is_there;
    if (code == MPI_SUCCESS && level < MPI_THREAD_MULTIPLE)
        return "MPI was initialised without MPI_THREAD_MULTIPLE; initialise it with this level, or use an "
               "MPI "
               "library that supports it";
    return say("MPI_Init_thread", code);
}

static const char *connect_processes(mpi_transport *self, const void *mpi_comm)
{
    int code = MPI_Comm_dup(mpi_comm ? *(const MPI_Comm *)mpi_comm : MPI_COMM_WORLD, &self->comm);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_set_errhandler(self->comm, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_rank(self->comm, &self->base.rank);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_size(self->comm, &self->base.n_ranks);
    return say("MPI_Comm_dup", code);
}

static const char *create(const void *mpi_comm, bool survives, tsr_transport **transport_out)
{
    mpi_transport *self = calloc(1, sizeof *self);
    if (!self)
        return "no memory for a transport";
    self->base = (tsr_transport){.size = sizeof(tsr_transport),
                                 .user = self,
                                 .group_create = group_create,
                                 .group_destroy = group_destroy,
                                 .sum = survives ? copied_sum : sum,
                                 .broadcast = survives ? copied_broadcast : broadcast,
                                 .send = survives ? copied_send : send_to,
                                 .receive = survives ? copied_receive : receive_from,
                                 .test = survives ? copied_test : test,
                                 .survives = survives};
    self->comm = MPI_COMM_NULL;
    const char *problem = initialize(&self->finalizes);
    if (!problem)
        problem = connect_processes(self, mpi_comm);
    if (problem)
        tsr_mpi_transport_destroy(&self->base);
    else
        *transport_out = &self->base;
    return problem;
}

const char *tsr_mpi_transport_create(const void *mpi_comm, tsr_transport **transport_out)
{
    return create(mpi_comm, false, transport_out);
}

const char *tsr_mpi_transport_create_surviving(const void *mpi_comm, tsr_transport **transport_out)
{
    return create(mpi_comm, true, transport_out);
}

void tsr_mpi_transport_destroy(tsr_transport *transport)
{
    mpi_transport *self = (mpi_transport *)transport;
    if (!self || atomic_load(&self->n_joining) > 0) /* a thread was left behind there */
        return;
    if (self->comm != MPI_COMM_NULL && !self->lost)
        MPI_Comm_free(&self->comm);
    if (self->finalizes && !self->lost)
        MPI_Finalize();
    free(self);
}

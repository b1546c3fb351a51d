/* Inside the simulated NCCL: communicators (nccl_comm.cpp), the ways between their ranks (nccl_links.cpp) and
 * their operations (nccl.cpp). */
#ifndef CUDASIM_NCCL_SIM_H
#define CUDASIM_NCCL_SIM_H

#include "sim.h"

namespace cudasim
{

enum Kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECV };

/* One rank's part in one operation. */
struct Part {
    Kind kind;
    const void *send;
    void *receive;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int peer; /* or root */
    ncclComm_t comm;
    bool captured = false;            /* it is in a graph */
    OpRef running = NULL;             /* once arrived */
    std::shared_ptr<int> left = NULL; /* parts of `running` that are not done */
};
using PartRef = std::shared_ptr<Part>;

/* The communicators that belong together. */
struct Clique {
    uint64_t id = 0;
    int n_ranks = 0;
    std::vector<ncclComm_t> ranks; /* NULL: not joined, or gone */
    int joined = 0, gone = 0;
    bool failed = false;
    bool ready = false;     /* all have joined */
    bool connected = false; /* by a first collective */
    bool linked[2] = {};    /* the ranks' ways to each other, for small messages and for large ones */
    std::map<uint64_t, std::vector<PartRef>> slots;                  /* collectives by number: who arrived */
    std::map<std::pair<int, int>, std::deque<PartRef>> sends, recvs; /* by source and destination */
};

/* Calls that become one operation. */
struct Launch {
    cudaStream_t stream;
    std::vector<Part> parts;
};

/* The calling thread's open group. */
struct Group {
    uint64_t generation = 0;
    int depth = 0;
    std::vector<Launch> launches; /* one part each */
    std::vector<ncclComm_t> joining;
    ncclResult_t error = ncclSuccess;
};
Group &group();

/* nccl_comm.cpp */
bool comm_alive(ncclComm_t comm, const char *name); /* else that is a violation */
bool comm_ready(ncclComm_t comm);                   /* all ranks have joined */
ncclResult_t comm_state(ncclComm_t comm);           /* what ncclCommGetAsyncError says; may launch */
ncclResult_t wait_joined(ncclComm_t comm);
void words(const char *format, ...) __attribute__((format(printf, 1, 2))); /* for ncclGetLastError */

/* nccl_links.cpp */
bool links_made(ncclComm_t comm, const Part &part);                 /* false: no shared memory for them */
void check_direct(const std::vector<PartRef> &parts, size_t bytes); /* who touches whose buffers, and may */

/* nccl.cpp */
extern const char *const nccl_kind_names[];
ncclResult_t launch(ncclComm_t comm, const Launch &what);
size_t type_size(ncclDataType_t type);
bool may_launch(ncclComm_t comm);      /* not before a first collective has connected everybody */
void end_outstanding(ncclComm_t comm); /* of an aborted communicator */

} // namespace cudasim

/* Objects stay until the machine is configured anew, so that late use is noticed. */
struct ncclComm {
    std::shared_ptr<cudasim::Clique> clique;
    int rank, device;
    bool blocking;
    bool gone = false;     /* not to be used; what it has under way ends */
    bool released = false; /* as all of its clique, with the last that goes */
    void *memory = NULL;   /* NCCL takes some of the device's */
    bool called = false;   /* a collective */
    ncclResult_t async = ncclSuccess;
    std::deque<cudasim::Launch> pending;     /* of a non-blocking communicator: called, not launched */
    int patience = 0;                        /* polls until that happens */
    uint64_t next = 0;                       /* number of its next collective */
    int thread = 0;                          /* that last made a call */
    std::vector<cudasim::OpRef> outstanding; /* arrived, not done */
};

#endif

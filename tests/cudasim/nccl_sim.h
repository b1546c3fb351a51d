/* Inside the simulated NCCL: communicators (nccl_comm.cpp), the ways between their ranks (nccl_links.cpp),
 * the memory that processes share (nccl_segment.cpp), and operations (nccl.cpp). */
#ifndef CUDASIM_NCCL_SIM_H
#define CUDASIM_NCCL_SIM_H

#include "sim.h"

#include <atomic>

namespace cudasim
{

enum Kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECV, WITHDRAW };

enum { MOST_RANKS = 64 }; /* of a communicator */

/* What a rank's log says of its part in an operation. WITHDRAW: parts with the places in the data, each as
 * a uint64_t, are no more. */
struct Record {
    Kind kind;
    int peer;
    ncclDataType_t type;
    ncclRedOp_t op;
    bool captured;
    size_t count, bytes; /* `bytes` of data follow */
};

/* One rank's place in the table that the processes share. Its own process alone writes it. */
struct Seat {
    std::atomic<int> process; /* that has the rank; 0: none yet */
    std::atomic<bool> present, called;
    std::atomic<uint64_t> tail;              /* bytes of its log */
    std::atomic<uint64_t> needs[MOST_RANKS]; /* where its process may still read the others' logs */
};

struct Table {
    uint64_t number; /* of the id */
    std::atomic<int> n_ranks;
    std::atomic<bool> failed;
    Seat seats[MOST_RANKS];
};

struct Segment {
    int fd = -1;
    Table *table = NULL;
    uint64_t position[MOST_RANKS] = {}; /* this process has read the logs so far */
    uint64_t freed[MOST_RANKS] = {};    /* of the logs of this process's ranks */
    ~Segment();
    void append(int rank, const Record &record, const void *data);
    bool next(int rank, Record *record, uint64_t *at); /* at: of its data */
    void read(int rank, uint64_t at, void *data, size_t bytes) const;
};

/* One rank's part in one operation. */
struct Part {
    Kind kind;
    const void *send;
    void *receive;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int peer;        /* or root */
    ncclComm_t comm; /* NULL: a rank of another process */
    int rank = 0;
    uint64_t at = 0;                  /* of its data in its rank's log */
    bool captured = false;            /* it is in a graph */
    OpRef running = NULL;             /* once arrived */
    std::shared_ptr<int> left = NULL; /* parts of `running` that are not done */
};
using PartRef = std::shared_ptr<Part>;

/* The communicators that belong together. */
struct Clique {
    uint64_t id = 0;
    std::unique_ptr<Segment> segment;
    int n_ranks = 0;                /* 0: no rank of this process has joined yet */
    std::vector<ncclComm_t> ranks;  /* NULL: not joined, or of another process */
    int joined = 0, gone = 0;       /* of this process */
    uint64_t next[MOST_RANKS] = {}; /* number of each rank's next collective */
    bool ready = false;             /* all have joined */
    bool connected = false;         /* by a first collective */
    bool linked[2] = {};            /* the ranks' ways to each other, for small messages and for large ones */
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

/* nccl_segment.cpp; NULL: the system refuses it, or the process that drew the id has it no more */
std::unique_ptr<Segment> segment_create(ncclUniqueId *id);
std::unique_ptr<Segment> segment_find(const ncclUniqueId &id);
uint64_t segment_number(const ncclUniqueId &id);
void post(Clique &clique, const PartRef &part, const std::vector<char> &data);
std::vector<char> posted_data(const Clique &clique, const Part &part, size_t bytes);
bool read_logs(Clique &clique);        /* what was posted since the last look; false: nothing */
void end_outstanding(ncclComm_t comm); /* of an aborted communicator */

/* nccl_comm.cpp */
std::map<uint64_t, std::shared_ptr<Clique>> &cliques();
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
bool may_launch(ncclComm_t comm);               /* not before a first collective has connected everybody */
void meet(Clique &clique, const PartRef &part); /* that was read from a log */

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
    std::deque<cudasim::PartRef> posted;     /* written to its log, not yet read there */
    int thread = 0;                          /* that last made a call */
    std::vector<cudasim::OpRef> outstanding; /* arrived, not done */
};

#endif

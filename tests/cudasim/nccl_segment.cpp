/* What the ranks of a communicator share, in one process or in several.
 *
 * A file in memory has a table with a seat for each rank, and the ranks' logs. A log has the rank's parts in
 * operations in the order in which it arrived with them, each followed by the data that it sends. Every
 * process reads the logs of all ranks, its own included, and carries out what its own ranks have to do with
 * them. What a rank's process writes is written by no other process, so nothing is locked, and a process that
 * is killed leaves nothing undone that another waits for, except its arrivals.
 *
 * The id has the process that drew it and the number of the file there, by which others open it. The file has
 * no name, so nothing is left when the processes end, however they do. */
#include "nccl_sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace cudasim
{

static const size_t freed_at_once = (size_t)1 << 20;

/* What NCCL's id has in it. */
struct Address {
    uint64_t number;
    int process, fd;
};

static off_t place_in_file(int rank, uint64_t at)
{
    return (off_t)(((uint64_t)(rank + 1) << 48) + at);
}

/* The file is closed if that fails. */
static std::unique_ptr<Segment> open_table(int fd)
{
    void *table = mmap(NULL, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (table == MAP_FAILED) {
        close(fd);
        return NULL;
    }
    std::unique_ptr<Segment> segment(new Segment);
    segment->fd = fd;
    segment->table = (Table *)table;
    return segment;
}

Segment::~Segment()
{
    munmap(table, sizeof(Table));
    close(fd);
}

std::unique_ptr<Segment> segment_create(ncclUniqueId *id)
{
    static uint64_t n_drawn;
    int fd = memfd_create("cudasim-nccl", MFD_CLOEXEC);
    if (fd < 0)
        return NULL;
    if (ftruncate(fd, sizeof(Table)) != 0) {
        close(fd);
        return NULL;
    }
    std::unique_ptr<Segment> segment = open_table(fd);
    if (segment == NULL)
        return NULL;
    Address address = {(uint64_t)getpid() << 32 | ++n_drawn, (int)getpid(), fd};
    segment->table->number = address.number;
    memset(id, 0, sizeof *id);
    memcpy(id->internal, &address, sizeof address);
    return segment;
}

/* The number of a file may be that of another one by now. */
std::unique_ptr<Segment> segment_find(const ncclUniqueId &id)
{
    Address address;
    uint64_t number = 0;
    memcpy(&address, id.internal, sizeof address);
    std::string path = "/proc/" + std::to_string(address.process) + "/fd/" + std::to_string(address.fd);
    int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return NULL;
    if (pread(fd, &number, sizeof number, 0) != sizeof number || number != address.number) {
        close(fd);
        return NULL;
    }
    return open_table(fd);
}

uint64_t segment_number(const ncclUniqueId &id)
{
    Address address;
    memcpy(&address, id.internal, sizeof address);
    return address.number;
}

/* -- logs -- */

static void write_all(int fd, const void *data, size_t bytes, off_t to)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fd, (const char *)data + done, bytes - done, to + (off_t)done);
        if (n < 0 && errno != EINTR) {
            fprintf(stderr, "cudasim: no memory for what NCCL sends: %s\n", strerror(errno));
            abort();
        }
        done += n < 0 ? 0 : (size_t)n;
    }
}

void Segment::read(int rank, uint64_t at, void *data, size_t bytes) const
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(fd, (char *)data + done, bytes - done, place_in_file(rank, at + done));
        if (n == 0 || (n < 0 && errno != EINTR)) {
            fprintf(stderr, "cudasim: what NCCL's rank %d sends cannot be read\n", rank);
            abort();
        }
        done += n < 0 ? 0 : (size_t)n;
    }
}

/* Give back the memory of what all processes have read. */
static void free_read(Segment &segment, int rank)
{
    const Table &table = *segment.table;
    uint64_t until = table.seats[rank].tail;
    for (int r = 0; r < table.n_ranks; r++)
        until = std::min<uint64_t>(until, table.seats[r].needs[rank]);
    if (until < segment.freed[rank] + freed_at_once)
        return;
    (void)fallocate(segment.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    place_in_file(rank, segment.freed[rank]), (off_t)(until - segment.freed[rank]));
    segment.freed[rank] = until;
}

void Segment::append(int rank, const Record &record, const void *data)
{
    Seat &seat = table->seats[rank];
    const uint64_t tail = seat.tail;
    free_read(*this, rank);
    write_all(fd, &record, sizeof record, place_in_file(rank, tail));
    write_all(fd, data, record.bytes, place_in_file(rank, tail + sizeof record));
    seat.tail = tail + sizeof record + record.bytes;
}

bool Segment::next(int rank, Record *record, uint64_t *at)
{
    uint64_t &from = position[rank];
    if (from == table->seats[rank].tail)
        return false;
    read(rank, from, record, sizeof *record);
    *at = from + sizeof *record;
    from = *at + record->bytes;
    return true;
}

/* -- parts -- */

void post(Clique &clique, const PartRef &part, const std::vector<char> &data)
{
    part->comm->posted.push_back(part);
    clique.segment->append(
        part->rank, {part->kind, part->peer, part->type, part->op, part->captured, part->count, data.size()},
        data.data());
}

std::vector<char> posted_data(const Clique &clique, const Part &part, size_t bytes)
{
    std::vector<char> data(bytes);
    clique.segment->read(part.rank, part.at, data.data(), bytes);
    return data;
}

/* Calls with the parts that wait for others. */
static void for_waiting(Clique &clique, const std::function<void(const PartRef &)> &look)
{
    for (auto &slot : clique.slots)
        for (const PartRef &part : slot.second)
            look(part);
    for (auto *pairs : {&clique.sends, &clique.recvs})
        for (auto &queue : *pairs)
            for (const PartRef &part : queue.second)
                look(part);
}

static void take_back(Clique &clique, int rank, const std::vector<uint64_t> &places)
{
    auto is = [&](const PartRef &part) {
        return part->rank == rank && std::find(places.begin(), places.end(), part->at) != places.end();
    };
    for (auto &slot : clique.slots)
        slot.second.erase(std::remove_if(slot.second.begin(), slot.second.end(), is), slot.second.end());
    for (auto *pairs : {&clique.sends, &clique.recvs})
        for (auto &queue : *pairs)
            queue.second.erase(std::remove_if(queue.second.begin(), queue.second.end(), is),
                               queue.second.end());
}

static void read_record(Clique &clique, int rank, const Record &record, uint64_t at)
{
    ncclComm_t comm = clique.ranks[(size_t)rank];
    if (record.kind == WITHDRAW) {
        std::vector<uint64_t> places(record.bytes / sizeof(uint64_t));
        clique.segment->read(rank, at, places.data(), record.bytes);
        take_back(clique, rank, places);
        return;
    }
    PartRef part;
    if (comm != NULL) {
        part = comm->posted.front();
        comm->posted.pop_front();
    } else {
        part = std::make_shared<Part>(
            Part{record.kind, NULL, NULL, record.count, record.type, record.op, record.peer, NULL});
        part->rank = rank;
        part->captured = record.captured;
    }
    part->at = at;
    meet(clique, part);
}

/* This process will read no more of the logs than what it has not read, and the data of waiting parts. */
static void note_needs(Clique &clique)
{
    uint64_t needs[MOST_RANKS];
    std::copy_n(clique.segment->position, MOST_RANKS, needs);
    for_waiting(clique,
                [&](const PartRef &part) { needs[part->rank] = std::min(needs[part->rank], part->at); });
    for (int r = 0; r < clique.n_ranks; r++)
        if (clique.ranks[(size_t)r] != NULL && !clique.ranks[(size_t)r]->gone)
            std::copy_n(needs, clique.n_ranks, clique.segment->table->seats[r].needs);
}

/* What has been posted since the last look. */
bool read_logs(Clique &clique)
{
    bool any = false;
    Record record;
    uint64_t at;
    for (int r = 0; r < clique.n_ranks; r++)
        while (clique.segment->next(r, &record, &at)) {
            read_record(clique, r, record, at);
            any = true;
        }
    if (any)
        note_needs(clique);
    return any;
}

static bool is_elsewhere(const Clique &clique)
{
    return clique.joined < clique.n_ranks;
}

bool nccl_read()
{
    bool any = false;
    for (auto &entry : cliques())
        any = (is_elsewhere(*entry.second) && read_logs(*entry.second)) || any;
    return any;
}

bool nccl_is_elsewhere()
{
    for (auto &entry : cliques())
        if (is_elsewhere(*entry.second))
            return true;
    return false;
}

/* What an aborted rank brought is taken back. */
void end_outstanding(ncclComm_t comm)
{
    Clique &clique = *comm->clique;
    std::vector<OpRef> ops;
    ops.swap(comm->outstanding);
    std::vector<uint64_t> places;
    for_waiting(clique, [&](const PartRef &part) {
        if (part->comm == comm)
            places.push_back(part->at);
    });
    if (!places.empty())
        clique.segment->append(comm->rank,
                               {WITHDRAW, 0, ncclInt8, ncclSum, false, 0, places.size() * sizeof places[0]},
                               places.data());
    read_logs(clique);
    for (const OpRef &op : ops)
        finish(op);
}

} // namespace cudasim

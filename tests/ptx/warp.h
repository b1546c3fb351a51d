/* What is executed together: a block and its warps; how an instruction reaches the registers of its lanes. */
#ifndef PTX_WARP_H
#define PTX_WARP_H

#include "ptx.h"

namespace ptx
{

struct Frame { /* lanes at the same place */
    int pc;
    int meet; /* there they join those of the frame below */
    uint32_t mask;
};

struct Copy { /* cp.async: 16 bytes of a lane that have not arrived */
    int lane;
    uint32_t to;
    uint64_t from;
    uint32_t group;
};

struct Access {        /* to a word of shared memory */
    uint32_t barriers; /* of the block before it, and one; 0: there was no access */
    uint32_t syncs;    /* of the warp */
    uint16_t thread;
    uint8_t mask;                                              /* bytes */
    enum : uint8_t { NO_OTHERS, LANES_OF_WARP, WARPS } others; /* that did the same as `thread` */
};

struct Shadow {
    Access read, write;
};

/* What a block released to this one: barriers that each had passed. */
struct Acquired {
    uint32_t released, acquired;
};

struct Block {
    const Launch *launch;
    std::vector<uint8_t> shared, shared_written, local;
    uint64_t index;
    unsigned barrier_line;                 /* of those that wait; 0: none */
    uint32_t barriers = 0;                 /* passed */
    std::vector<Shadow> shadow;            /* of the words of `shared` */
    std::map<uint32_t, Acquired> acquired; /* by block */
};

struct Warp {
    enum State { READY, AT_BARRIER, PAUSED, DONE } state = READY;
    Block *block = NULL;
    const Kernel *kernel = NULL;
    unsigned number = 0;
    uint8_t *registers = NULL;
    const uint8_t *constants = NULL;
    uint32_t live = 0, active = 0; /* not returned; of this instruction */
    int pc = 0;
    uint32_t predicate = 0; /* bar.red: what the lanes brought, then the result */
    uint32_t syncs = 0;     /* bar.warp.sync */
    std::vector<Frame> frames;
    std::vector<Copy> copies;
    uint32_t groups[LANES] = {}; /* committed by each lane */
};

/* Until a barrier, a pause, or the end. */
void run_warp(Warp &warp);

/* The place of an instruction for messages, and a broken rule. */
std::string place(const Warp &warp, const Instr &instr);
void report(const Warp &warp, const Instr &instr, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

template <class T> inline const T *in(const Warp &w, const Instr &i, int k)
{
    const int32_t at = i.at[k];
    return (const T *)(at >= 0 ? w.registers + at : w.constants + ~at);
}
template <class T> inline T *out(Warp &w, const Instr &i, int k)
{
    return (T *)(w.registers + i.at[k]);
}
inline void set_predicate(Warp &w, const Instr &i, int k, uint32_t bits)
{
    uint32_t *p = out<uint32_t>(w, i, k);
    *p = (*p & ~w.active) | (bits & w.active);
}

/* Lanes do not read what others write, which gcc cannot see. clang checks for overlaps when the loop runs. */
#ifdef __clang__
#define PTX_LANES_INDEPENDENT
#else
#define PTX_LANES_INDEPENDENT _Pragma("GCC ivdep")
#endif

/* d[lane] = f(lane) for the active lanes. */
template <class T, class F> inline void each(Warp &w, T *d, F f)
{
    if (w.active == 0xffffffffu) {
        PTX_LANES_INDEPENDENT
        for (int l = 0; l < LANES; l++)
            d[l] = (T)f(l);
    } else {
        for (uint32_t left = w.active; left != 0; left &= left - 1)
            d[__builtin_ctz(left)] = (T)f(__builtin_ctz(left));
    }
}

/* A lane's access to n bytes of shared memory: with that of another thread it may be a race. */
void shadow_load(Warp &w, const Instr &i, int lane, uint32_t at, size_t n);
void shadow_store(Warp &w, const Instr &i, int lane, uint32_t at, size_t n);
/* The same in global memory, where only stores are remembered. */
void global_load(Warp &w, const Instr &i, int lane, const Segment &s, const uint8_t *bytes, size_t n);
void global_store(Warp &w, const Instr &i, int lane, Segment &s, const uint8_t *bytes, size_t n);
/* An atomic with release and acquire, before it. */
void global_order(Warp &w, Segment &s, uint64_t at);

/* An access of n bytes by each active lane. */
void count_access(Warp &w, const Instr &i, const uint64_t *at, size_t n);

using Run = void (*)(Warp &, const Instr &);
Run find_arithmetic(const std::string &opcode);
Run find_memory(const Statement &s, Instr &i);
Run find_lanes(const Statement &s, Instr &i); /* between the lanes of a warp */
Run find_mma(const std::string &opcode);

} // namespace ptx

#endif

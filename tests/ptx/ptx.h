/* An executor for the PTX that nvcc makes of src/cuda, on the CPU. Its parts:
 *
 *   parse.cpp     text -> statements with operands
 *   decode.cpp    statements -> instructions with a function each; where divergent lanes meet again
 *   arith.cpp     arithmetic, comparisons, conversions
 *   mma.cpp       products of matrix fragments
 *   memory.cpp    address spaces: bounds, alignment, what was written before; cp.async
 *   race.cpp      accesses to shared and global memory that no barrier separates
 *   warp.cpp      lanes of a warp: divergence, shuffles, votes
 *   block.cpp     blocks of a launch: order of warps, barriers
 *   compare.cpp   launches of the simulated machine, executed a second time and compared
 *
 * Section names in comments are those of NVIDIA's "PTX ISA", version 9.0. */
#ifndef PTX_H
#define PTX_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace ptx
{

enum { LANES = 32 };

/* What cannot be executed: text that is not understood, or an access that a GPU would not survive. */
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* -- the text -- */

/* Bits of b16 and u16 registers are the same, so types say size and kind only. */
enum Type : uint8_t { NONE, PRED, U8, U16, U32, U64, S8, S16, S32, S64, F16, BF16, F32, F64 };
size_t type_size(Type type);

struct Operand {
    enum Kind : uint8_t { REGISTER, NUMBER, ADDRESS, VECTOR, LABEL } kind = NUMBER;
    int32_t at = -1;    /* REGISTER, ADDRESS: offset in the register file; ADDRESS: -1 without one */
    uint8_t size = 0;   /* REGISTER: bytes of a lane's value; 0 of a predicate */
    int64_t number = 0; /* NUMBER: its bits; ADDRESS: added */
    std::string name;   /* LABEL */
    std::vector<Operand> members; /* VECTOR */
};

struct Statement {
    int line = 0;
    int32_t guard = -1; /* offset of the predicate */
    bool guard_not = false;
    std::vector<std::string> words; /* of the opcode: "ld", "global", "f32" */
    std::vector<Operand> operands;
};

/* -- instructions -- */

struct Warp;

enum Control : uint8_t { PLAIN, BRANCH, EXIT, BARRIER, BARRIER_AND, PAUSE };
enum Space : uint8_t { GENERIC, GLOBAL, SHARED, LOCAL, PARAM };
/* For counting. */
enum Class : uint8_t {
    INTEGER,
    FLOAT,
    MOVE,
    LOAD_GLOBAL,
    LOAD_SHARED,
    STORE_GLOBAL,
    STORE_SHARED,
    ASYNC,
    LANE,
    MMA,
    FLOW,
    OTHER_MEMORY,
    CLASSES
};

struct Instr {
    void (*run)(Warp &, const Instr &) = NULL;
    Control control = PLAIN;
    Space space = GENERIC;
    Class counted = INTEGER;
    uint8_t count = 1;     /* elements of a vector */
    uint8_t bytes = 0;     /* of an element in memory */
    uint8_t registers = 0; /* bytes of the registers that are loaded or stored */
    uint8_t address = 8;   /* bytes of an address */
    bool guard_not = false, is_signed = false;
    int line = 0;
    int32_t guard = -1;
    int32_t at[14] = {}; /* operands: >= 0 offset in the register file, < 0 ~offset in the constants */
    int64_t number = 0;  /* of an address; of cp.async.wait_group */
    int target = 0;      /* BRANCH */
    int meet = 0;        /* BRANCH: where lanes that part are together again */
};

struct Kernel {
    std::string name;
    std::vector<Instr> code;
    std::vector<uint64_t> constants; /* 32 lanes of each */
    std::vector<uint8_t> tables;     /* the module's variables that it names, at TABLES_WINDOW */
    size_t register_bytes = 0;
    size_t shared_bytes = 0; /* static */
    size_t local_bytes = 0;
    size_t parameter_bytes = 0;
    unsigned max_threads = 1024;
    bool waits = false;                /* for other blocks or devices: nanosleep */
    mutable std::vector<bool> reached; /* instructions that any launch executed */
};

/* The first registers of each warp. */
enum Special {
    TID_X,
    TID_Y,
    TID_Z,
    NTID_X,
    NTID_Y,
    NTID_Z,
    CTAID_X,
    CTAID_Y,
    CTAID_Z,
    NCTAID_X,
    NCTAID_Y,
    NCTAID_Z,
    LANEID,
    SPECIALS
};
enum { SLOT = 128 /* bytes of 32 lanes of 32 bits */ };

struct Source { /* a kernel's text */
    Kernel kernel;
    std::vector<Statement> statements;
    std::map<std::string, int> labels; /* index of the statement that follows */
};

/* Where the kernels of a file begin, by name. */
std::map<std::string, size_t> find_kernels(const std::string &text);
Source parse(const std::string &text, size_t begin);
std::shared_ptr<Kernel> decode(Source source);

/* -- memory -- */

/* The last store to a word of global memory. */
struct Stored {
    uint32_t barriers; /* of the block before it, and one; 0: there was no store */
    uint32_t syncs;    /* of the warp */
    uint32_t block;
    uint16_t thread;
    uint8_t mask; /* bytes */
};

/* An atomic with release and acquire at an address. */
struct Ordered {
    uint64_t at;
    uint32_t block, barriers; /* passed by the block before it */
};

struct Segment {
    uint64_t begin;
    size_t size;
    uint8_t *bytes;
    uint8_t *written; /* per byte; NULL: all of it counts as written */
    /* by word, zeros at first; none before the first store of the launch */
    std::unique_ptr<Stored, void (*)(void *)> stored = {NULL, free};
    std::vector<Ordered> ordered; /* of the launch */
};

struct Memory {                    /* global */
    std::vector<Segment> segments; /* in rising order */
    Segment *last = NULL;
    Segment *find(uint64_t address, size_t bytes);
};

/* -- executing -- */

struct Counts {
    uint64_t instructions[CLASSES] = {}, lanes = 0, all = 0, divergent = 0, barriers = 0, warps = 0;
    uint64_t sectors = 0,
             bytes = 0; /* of global loads: 32-byte sectors of each request; distinct bytes of it */
    uint64_t wavefronts = 0, ideal = 0; /* of shared memory */
    void add(const Counts &other);
};

struct Launch {
    const Kernel *kernel = NULL;
    unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};
    size_t dynamic_bytes = 0;
    std::vector<unsigned char> parameters;
    Memory *memory = NULL;
    std::function<void()> pause;              /* others may run now */
    std::function<void(const char *)> report; /* a broken rule that does not end the launch */
    uint64_t order = 0; /* of warps: 0 rising, 1 falling, else the seed of a random one */
    Counts *counts = NULL;
};

/* Throws Error where the kernel must end. */
void run_block(const Launch &launch, uint64_t index);

/* Generic addresses of shared and local memory: in no user's address space. */
const uint64_t SHARED_WINDOW = 0xfff1000000000000ull, LOCAL_WINDOW = 0xfff2000000000000ull;
/* Addresses of a module's variables in global memory. They are constants, each launch has its own. */
const uint64_t TABLES_WINDOW = 0xfff3000000000000ull;

/* ex2.approx.ftz.f32, whose last bits the ISA leaves open: the correctly rounded value. */
float ex2(float x);

} // namespace ptx

#endif

/* Loads, stores, atomics and asynchronous copies. Every access is checked: it is inside an allocation or a
 * variable, its address is a multiple of its size ("Addresses as Operands"), and what it reads was written
 * before. */
#include "warp.h"

#include <string.h>

#include <algorithm>

namespace ptx
{

Segment *Memory::find(uint64_t address, size_t bytes)
{
    if (last == NULL || address - last->begin >= last->size) {
        auto after = std::upper_bound(segments.begin(), segments.end(), address,
                                      [](uint64_t a, const Segment &s) { return a < s.begin; });
        if (after == segments.begin())
            return NULL;
        last = &*(after - 1);
    }
    return address - last->begin < last->size && bytes <= last->size - (address - last->begin) ? last : NULL;
}

namespace
{

struct Place {
    uint8_t *bytes, *written;
    int64_t shared = -1;     /* offset in the block's shared memory, if it is there */
    Segment *segment = NULL; /* of global memory, if it is there */
};

Place find_place(Warp &w, const Instr &i, Space space, uint64_t address, size_t n, int lane)
{
    Block &b = *w.block;
    const char *what = "global memory";
    if (address % n != 0)
        fail("%s, lane %d: address 0x%llx of %zu bytes is not aligned", place(w, i).c_str(), lane,
             (unsigned long long)address, n);
    if (space == GENERIC && address - SHARED_WINDOW < b.shared.size()) {
        space = SHARED;
        address -= SHARED_WINDOW;
    }
    if ((space == GENERIC || space == GLOBAL) && address - TABLES_WINDOW < w.kernel->tables.size() &&
        n <= w.kernel->tables.size() - (address - TABLES_WINDOW) && i.counted == LOAD_GLOBAL)
        return {const_cast<uint8_t *>(&w.kernel->tables[address - TABLES_WINDOW]), NULL, -1};
    if (space == GENERIC || space == GLOBAL) {
        Segment *s = b.launch->memory->find(address, n);
        if (s != NULL)
            return {s->bytes + (address - s->begin),
                    s->written != NULL ? s->written + (address - s->begin) : NULL, -1, s};
    } else if (space == SHARED) {
        what = "the block's shared memory";
        if (address < b.shared.size() && n <= b.shared.size() - address)
            return {&b.shared[address], &b.shared_written[address], (int64_t)address};
    } else if (space == LOCAL) {
        what = "the thread's local memory";
        if (address < w.kernel->local_bytes && n <= w.kernel->local_bytes - address)
            return {&b.local[(w.number * LANES + (size_t)lane) * w.kernel->local_bytes + address], NULL, -1};
    } else {
        what = "the parameters";
        if (address < b.launch->parameters.size() && n <= b.launch->parameters.size() - address)
            return {const_cast<uint8_t *>(&b.launch->parameters[address]), NULL, -1};
    }
    fail("%s, lane %d: %zu bytes at 0x%llx are outside of %s", place(w, i).c_str(), lane, n,
         (unsigned long long)address, what);
}

void check_written(const Warp &w, const Instr &i, const Place &p, size_t n, int lane)
{
    if (p.written != NULL && memchr(p.written, 0, n) != NULL)
        report(w, i, "lane %d reads memory that was not written", lane);
}

void addresses(Warp &w, const Instr &i, int k, uint64_t to[LANES])
{
    if (i.address == 4)
        for (int l = 0; l < LANES; l++)
            to[l] = (uint32_t)(in<uint32_t>(w, i, k)[l] + (uint32_t)i.number);
    else
        for (int l = 0; l < LANES; l++)
            to[l] = in<uint64_t>(w, i, k)[l] + (uint64_t)i.number;
}

/* A value of memory becomes that of a wider register by its sign or by zeros. */
uint64_t extend(uint64_t value, const Instr &i)
{
    if (i.is_signed && i.bytes < 8 && (value >> (8 * i.bytes - 1) & 1))
        value |= ~(uint64_t)0 << 8 * i.bytes;
    return value;
}

void load(Warp &w, const Instr &i)
{
    uint64_t at[LANES];
    const size_t n = (size_t)i.bytes * i.count;
    addresses(w, i, i.count, at);
    for (uint32_t left = w.active; left != 0; left &= left - 1) {
        const int l = __builtin_ctz(left);
        const Place p = find_place(w, i, i.space, at[l], n, l);
        check_written(w, i, p, n, l);
        if (p.shared >= 0)
            shadow_load(w, i, l, (uint32_t)p.shared, n);
        else if (p.segment != NULL && p.segment->stored)
            global_load(w, i, l, *p.segment, p.bytes, n);
        for (int k = 0; k < i.count; k++) {
            uint64_t value = 0;
            memcpy(&value, p.bytes + k * i.bytes, i.bytes);
            value = extend(value, i);
            memcpy(w.registers + i.at[k] + l * i.registers, &value, i.registers);
        }
    }
    count_access(w, i, at, n);
}

void store(Warp &w, const Instr &i)
{
    uint64_t at[LANES];
    const size_t n = (size_t)i.bytes * i.count;
    addresses(w, i, 0, at);
    for (uint32_t left = w.active; left != 0; left &= left - 1) {
        const int l = __builtin_ctz(left);
        const Place p = find_place(w, i, i.space, at[l], n, l);
        uint8_t value[16];
        for (int k = 0; k < i.count; k++)
            memcpy(value + k * i.bytes, in<uint8_t>(w, i, 1 + k) + l * i.registers, i.bytes);
        if (p.shared >= 0 && (memcmp(p.bytes, value, n) != 0 || memchr(p.written, 0, n) != NULL))
            shadow_store(w, i, l, (uint32_t)p.shared, n);
        if (p.segment != NULL && memcmp(p.bytes, value, n) != 0)
            global_store(w, i, l, *p.segment, p.bytes, n);
        memcpy(p.bytes, value, n);
        if (p.written != NULL)
            memset(p.written, 1, n);
    }
    count_access(w, i, at, n);
}

/* Lanes one after another: the ISA leaves their order open. ORDERED: with release and acquire. */
template <class T, bool ORDERED = false, class F> Run atomic(F)
{
    return [](Warp &w, const Instr &i) {
        uint64_t at[LANES];
        addresses(w, i, 1, at);
        for (uint32_t left = w.active; left != 0; left &= left - 1) {
            const int l = __builtin_ctz(left);
            const Place p = find_place(w, i, i.space, at[l], sizeof(T), l);
            T old, now;
            check_written(w, i, p, sizeof(T), l);
            if (p.segment != NULL && p.segment->stored)
                global_load(w, i, l, *p.segment, p.bytes, sizeof(T));
            if (ORDERED && p.segment != NULL)
                global_order(w, *p.segment, at[l]);
            memcpy(&old, p.bytes, sizeof old);
            now = F()(old, in<T>(w, i, 2)[l]);
            memcpy(p.bytes, &now, sizeof now);
            out<T>(w, i, 0)[l] = old;
        }
    };
}

/* -- "cp.async": what is copied is there after the wait for its group, and not before -- */

void copy_async(Warp &w, const Instr &i)
{
    uint64_t at[LANES];
    for (uint32_t left = w.active; left != 0; left &= left - 1) {
        const int l = __builtin_ctz(left);
        const uint32_t to = in<uint32_t>(w, i, 0)[l];
        const uint64_t from = at[l] = in<uint64_t>(w, i, 1)[l];
        const Place target = find_place(w, i, SHARED, to, 16, l);
        check_written(w, i, find_place(w, i, GLOBAL, from, 16, l), 16, l);
        shadow_store(w, i, l, to, 16);
        memset(target.bytes, 0xff, 16);
        memset(target.written, 0, 16);
        w.copies.push_back({l, to, from, w.groups[l]});
    }
    count_access(w, i, at, 16);
}

void commit_group(Warp &w, const Instr &)
{
    for (int l = 0; l < LANES; l++)
        w.groups[l] += w.active >> l & 1;
}

/* All but the last `number` groups of each lane arrive. */
void wait_group(Warp &w, const Instr &i)
{
    size_t kept = 0;
    for (const Copy &copy : w.copies) {
        if (!(w.active >> copy.lane & 1) || copy.group + (uint64_t)i.number >= w.groups[copy.lane]) {
            w.copies[kept++] = copy;
            continue;
        }
        const Place to = find_place(w, i, SHARED, copy.to, 16, copy.lane);
        shadow_store(w, i, copy.lane, copy.to, 16);
        memcpy(to.bytes, find_place(w, i, GLOBAL, copy.from, 16, copy.lane).bytes, 16);
        memset(to.written, 1, 16);
    }
    w.copies.resize(kept);
}

/* -- finding -- */

bool has(const Statement &s, const char *word)
{
    return std::find(s.words.begin(), s.words.end(), word) != s.words.end();
}

uint8_t register_bytes(const Operand &operand, size_t bytes)
{
    const Operand &one = operand.kind == Operand::VECTOR ? operand.members[0] : operand;
    return one.kind == Operand::REGISTER ? one.size : (uint8_t)bytes;
}

Class class_of(const Instr &i, bool is_store)
{
    if (i.space == SHARED)
        return is_store ? STORE_SHARED : LOAD_SHARED;
    if (i.space == GLOBAL || i.space == GENERIC)
        return is_store ? STORE_GLOBAL : LOAD_GLOBAL;
    return OTHER_MEMORY;
}

Run find_copy(const Statement &s, Instr &i)
{
    i.counted = ASYNC;
    if (has(s, "commit_group"))
        return commit_group;
    if (has(s, "wait_group")) {
        i.number = s.operands[0].number;
        return wait_group;
    }
    const bool known = has(s, "cg") && has(s, "shared") && has(s, "global") && s.operands.size() == 3 &&
                       s.operands[0].size == 4 && s.operands[0].number == 0 && s.operands[1].number == 0 &&
                       s.operands[2].number == 16;
    return known ? copy_async : NULL;
}

} // namespace

Run find_memory(const Statement &s, Instr &i)
{
    const std::string &first = s.words[0], &type = s.words.back();
    if (first == "cp" && s.words[1] == "async")
        return find_copy(s, i);
    if (first == "membar") /* accesses are in the order of the program here */
        return [](Warp &, const Instr &) {};
    if (first == "cvta")
        return s.words[1] == "to" && s.words[2] == "global" ? find_arithmetic("mov.u64")
                                                            : s.words[1] == "shared"
                   ? (Run)[](Warp & w, const Instr &in_)
        {
            const uint64_t *a = in<uint64_t>(w, in_, 1);
            each(w, out<uint64_t>(w, in_, 0), [=](int l) { return a[l] + SHARED_WINDOW; });
        }
                   : NULL;
                   if (first != "ld" && first != "st" && first != "atom")
                       return NULL;
                   i.space = has(s, "global")   ? GLOBAL
                             : has(s, "shared") ? SHARED
                             : has(s, "local")  ? LOCAL
                             : has(s, "param")  ? PARAM
                                                : GENERIC;
                   i.count = has(s, "v2") ? 2 : has(s, "v4") ? 4 : 1;
                   i.is_signed = type[0] == 's';
                   i.bytes = (uint8_t)(atoi(type.c_str() + 1) / 8);
                   i.counted = class_of(i, first != "ld");
                   if (first == "ld" || first == "st") {
                       i.registers = register_bytes(s.operands[first == "st"], i.bytes);
                       return first == "ld" ? load : store;
                   }
                   if (has(s, "inc"))
                       return has(s, "acq_rel") && has(s, "gpu") && type == "u32"
                                  ? atomic<uint32_t, true>(
                                        [](uint32_t a, uint32_t b) { return a >= b ? 0 : a + 1; })
                                  : NULL;
                   if (has(s, "add"))
                       return type == "u32"   ? atomic<uint32_t>([](uint32_t a, uint32_t b) { return a + b; })
                              : type == "u64" ? atomic<uint64_t>([](uint64_t a, uint64_t b) { return a + b; })
                                              : NULL;
                   return has(s, "max") && type == "s32"
                              ? atomic<int32_t>([](int32_t a, int32_t b) { return a > b ? a : b; })
                              : NULL;
}

} // namespace ptx

/* From statements to instructions: the function of each opcode, constants spread over the lanes, and the
 * place where lanes that part at a branch are together again, the immediate post-dominator of the branch. */
#include "warp.h"

#include <string.h>

#include <algorithm>

namespace ptx
{

namespace
{

std::string join(const std::vector<std::string> &words)
{
    std::string all;
    for (const std::string &word : words)
        all += (all.empty() ? "" : ".") + word;
    return all;
}

class Decoder
{
  public:
    explicit Decoder(Source source)
        : source_(std::move(source)), kernel_(std::make_shared<Kernel>(source_.kernel))
    {
    }
    std::shared_ptr<Kernel> kernel();

  private:
    void instruction(const Statement &s, Instr &i);
    bool flow(const Statement &s, Instr &i);
    void place_operand(const Operand &operand, size_t bytes, Instr &i, int &n);
    int32_t constant(uint64_t value, size_t bytes);

    Source source_;
    std::shared_ptr<Kernel> kernel_;
    std::map<std::pair<uint64_t, size_t>, int32_t> constants_;
};

/* A value of `bytes` bytes for each lane; a predicate has 0. */
int32_t Decoder::constant(uint64_t value, size_t bytes)
{
    if (bytes == 0) {
        value = value != 0 ? 0xffffffffu : 0;
        bytes = 4;
    }
    auto [found, is_new] = constants_.insert({{value, bytes}, ~(int32_t)(kernel_->constants.size() * 8)});
    if (is_new) {
        const size_t begin = kernel_->constants.size();
        kernel_->constants.resize(begin + bytes * LANES / 8);
        for (size_t l = 0; l < LANES; l++)
            memcpy((char *)&kernel_->constants[begin] + l * bytes, &value, bytes);
    }
    return found->second;
}

void Decoder::place_operand(const Operand &operand, size_t bytes, Instr &i, int &n)
{
    if (operand.kind == Operand::VECTOR) {
        for (const Operand &member : operand.members)
            place_operand(member, bytes, i, n);
        return;
    }
    if (n == 14)
        fail("line %d of %s: too many operands", i.line, kernel_->name.c_str());
    if (operand.kind == Operand::REGISTER) {
        i.at[n++] = operand.at;
    } else if (operand.kind == Operand::NUMBER) {
        i.at[n++] = constant((uint64_t)operand.number, bytes);
    } else if (operand.kind == Operand::ADDRESS) {
        i.number = operand.number;
        /* The size of the register tells how wide the address is; "Addresses as Operands". */
        i.at[n++] = operand.at >= 0 ? operand.at : constant(0, 8);
        i.address = operand.at >= 0 ? operand.size : 8;
    }
}

/* Branches, returns, barriers. */
bool Decoder::flow(const Statement &s, Instr &i)
{
    const std::string opcode = join(s.words);
    i.counted = FLOW;
    if (s.words[0] == "bra") {
        auto found = source_.labels.find(s.operands[0].name);
        if (found == source_.labels.end())
            fail("line %d of %s: no label %s", s.line, kernel_->name.c_str(), s.operands[0].name.c_str());
        i.control = BRANCH;
        i.target = found->second;
    } else if (opcode == "ret" || opcode == "exit") {
        i.control = EXIT;
    } else if (opcode == "bar.sync" || opcode == "bar.red.and.pred") {
        const Operand &barrier = s.operands[opcode == "bar.sync" ? 0 : 1];
        if (barrier.kind != Operand::NUMBER || barrier.number != 0 ||
            s.operands.size() != (opcode == "bar.sync" ? 1 : 3))
            fail("line %d of %s: a barrier other than 0 of all threads", s.line, kernel_->name.c_str());
        i.control = opcode == "bar.sync" ? BARRIER : BARRIER_AND;
    } else if (opcode == "nanosleep.u32") {
        i.control = PAUSE;
        kernel_->waits = true;
    } else {
        return false;
    }
    return true;
}

void Decoder::instruction(const Statement &s, Instr &i)
{
    static const std::map<std::string, size_t> sizes = {
        {"pred", 0}, {"b8", 1},  {"u8", 1},   {"s8", 1},  {"b16", 2}, {"u16", 2},
        {"s16", 2},  {"f16", 2}, {"bf16", 2}, {"b32", 4}, {"u32", 4}, {"s32", 4},
        {"f32", 4},  {"b64", 8}, {"u64", 8},  {"s64", 8}, {"f64", 8}};
    std::string opcode = join(s.words);
    const std::string &last = s.words.back(), &first = s.words[0];
    auto known = sizes.find(last);
    const size_t bytes = known != sizes.end() ? known->second : 4;
    i.line = s.line;
    i.guard = s.guard;
    i.guard_not = s.guard_not;
    if (!flow(s, i)) {
        i.counted = known != sizes.end() && last[0] == 'f' ? FLOAT : INTEGER;
        if (first == "mov" || first == "cvt" || first == "selp" || first == "cvta")
            i.counted = MOVE;
        if (first == "mov" && s.operands[0].kind == Operand::VECTOR)
            opcode += ".unpack";
        else if (first == "mov" && s.operands[1].kind == Operand::VECTOR)
            opcode += ".pack";
        else if (first == "cvt" && s.operands[1].kind == Operand::REGISTER && s.operands[1].size != bytes)
            (opcode += '/') += std::to_string(s.operands[1].size);
        i.run = find_memory(s, i);
        if (i.run == NULL)
            i.run = find_lanes(s, i);
        if (i.run == NULL && first == "mma" && (i.run = find_mma(opcode)) != NULL)
            i.counted = MMA;
        if (i.run == NULL)
            i.run = find_arithmetic(opcode);
        if (i.run == NULL)
            fail("line %d of %s: unknown instruction %s", s.line, kernel_->name.c_str(), opcode.c_str());
    }
    int n = 0;
    for (size_t k = 0; i.control != BRANCH && k < s.operands.size(); k++) {
        /* of a shift, a position or a length: always 32 bits */
        const bool amount = ((first == "shl" || first == "shr") && k == 2) || (first == "bfi" && k >= 3);
        const bool lanes = first == "shfl" || first == "vote";
        place_operand(s.operands[k], amount || (lanes && k > 1) ? 4 : bytes, i, n);
    }
}

/* -- where lanes meet -- */

/* Immediate post-dominators by the algorithm of Cooper, Harvey and Kennedy ("A Simple, Fast Dominance
 * Algorithm") on the reversed flow graph, whose root is the end of the kernel. */
struct Graph {
    std::vector<int> begins;   /* of its blocks: the first instruction; the last block is the empty end */
    std::vector<int> block_of; /* an instruction's */
    std::vector<std::vector<int>> after, before;
};

Graph make_graph(const std::vector<Instr> &code)
{
    Graph g;
    const int end = (int)code.size();
    g.begins = {0, end};
    for (int pc = 0; pc < end; pc++) {
        if (code[(size_t)pc].control == BRANCH)
            g.begins.push_back(code[(size_t)pc].target);
        if (code[(size_t)pc].control == BRANCH || code[(size_t)pc].control == EXIT)
            g.begins.push_back(pc + 1);
    }
    std::sort(g.begins.begin(), g.begins.end());
    g.begins.erase(std::unique(g.begins.begin(), g.begins.end()), g.begins.end());
    const int root = (int)g.begins.size() - 1;
    g.block_of.assign((size_t)end + 1, root);
    g.after.resize((size_t)root + 1);
    g.before.resize((size_t)root + 1);
    for (int b = 0; b < root; b++)
        std::fill(g.block_of.begin() + g.begins[(size_t)b], g.block_of.begin() + g.begins[(size_t)b + 1], b);
    auto edge = [&](int from, int to) {
        g.after[(size_t)from].push_back(to);
        g.before[(size_t)to].push_back(from);
    };
    for (int b = 0; b < root; b++) {
        const Instr &last = code[(size_t)g.begins[(size_t)b + 1] - 1];
        if (last.control == BRANCH)
            edge(b, g.block_of[(size_t)last.target]);
        if (last.control == EXIT)
            edge(b, root);
        if ((last.control != BRANCH && last.control != EXIT) || last.guard >= 0)
            edge(b, b + 1);
    }
    return g;
}

/* Blocks in postorder of a walk from the root against the edges. */
std::vector<int> postorder(const Graph &g)
{
    const size_t root = g.begins.size() - 1;
    std::vector<int> order;
    std::vector<std::pair<size_t, size_t>> path = {{root, 0}};
    std::vector<bool> seen(root + 1);
    seen[root] = true;
    while (!path.empty()) {
        auto &[b, k] = path.back();
        if (k == g.before[b].size()) {
            order.push_back((int)b);
            path.pop_back();
            continue;
        }
        const size_t to = (size_t)g.before[b][k++];
        if (!seen[to]) {
            seen[to] = true;
            path.push_back({to, 0});
        }
    }
    return order;
}

/* By block; -1 of a block from which the end is not reached. */
std::vector<int> post_dominators(const Graph &g)
{
    const std::vector<int> order = postorder(g);
    std::vector<int> rank(g.begins.size(), -1), idom(g.begins.size(), -1);
    for (size_t k = 0; k < order.size(); k++)
        rank[(size_t)order[k]] = (int)k;
    idom.back() = (int)g.begins.size() - 1;
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t k = order.size() - 1; k-- > 0;) {
            int best = -1;
            for (int a : g.after[(size_t)order[k]]) {
                if (idom[(size_t)a] < 0)
                    continue;
                while (best >= 0 && a != best) {
                    int &lower = rank[(size_t)a] < rank[(size_t)best] ? a : best;
                    lower = idom[(size_t)lower];
                }
                best = a;
            }
            changed = changed || idom[(size_t)order[k]] != best;
            idom[(size_t)order[k]] = best;
        }
    }
    return idom;
}

void set_meetings(std::vector<Instr> &code)
{
    const Graph g = make_graph(code);
    const std::vector<int> idom = post_dominators(g);
    for (size_t pc = 0; pc < code.size(); pc++) {
        const int block = idom[(size_t)g.block_of[pc]];
        if (code[pc].control == BRANCH)
            code[pc].meet = block >= 0 ? g.begins[(size_t)block] : (int)code.size();
    }
}

std::shared_ptr<Kernel> Decoder::kernel()
{
    kernel_->code.resize(source_.statements.size());
    for (size_t k = 0; k < kernel_->code.size(); k++)
        instruction(source_.statements[k], kernel_->code[k]);
    set_meetings(kernel_->code);
    kernel_->reached.resize(kernel_->code.size());
    return kernel_;
}

} // namespace

std::shared_ptr<Kernel> decode(Source source)
{
    return Decoder(std::move(source)).kernel();
}

} // namespace ptx

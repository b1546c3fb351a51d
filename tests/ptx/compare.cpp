/* Each launch of the simulated machine once more, from the PTX in the folder that TSR_PTX names. The memory
 * of all devices is copied before the launch; the simulation changes the memory, the executor the copy, and
 * then all bytes are compared. A kernel that waits for other devices has its blocks executed in place
 * instead, and the test's own assertions judge. A difference or a broken rule makes the program fail at its
 * end. */
#include "compare.h"
#include "counts.h"

#include <cudasim_hook.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

namespace ptx
{

namespace
{

struct Totals {
    uint64_t launches = 0, replaced = 0, bytes = 0, different = 0;
};

struct Comparison {
    std::map<std::string, std::pair<std::string, size_t>> texts; /* a kernel's file, and where it begins */
    std::map<const void *, std::string> names;
    std::map<const void *, std::shared_ptr<Kernel>> kernels;
    std::map<std::string, Totals> totals;
    std::map<std::string, Counts> counts;
    std::set<std::string> reported;
    uint64_t n_broken = 0;
    uint64_t n_counted = 0; /* launches, since ptx_take_counts() */
    bool always_replace = false, counting = false, printing = false;

    /* The launch that is being executed. */
    Launch launch;
    Memory memory;
    std::vector<cudasim_memory> originals;
    std::vector<std::vector<uint8_t>> copies;
    std::string error;
};
Comparison *all;

/* Reads of memory that was not written and that no result depends on. */
struct Allowed {
    const char *kernel, *reason;
};
const Allowed allowed[] = {
    {"q_few_kernelIL8tsr_type2", "quanta of blocks beyond a row's end are multiplied by 0"},
    {"q_few_kernelIL8tsr_type8", "the same"},
    {"q_few_kernelIL8tsr_type39", "the same, and bytes of a word before the row"},
    {"q_few_exact_kernelIL8tsr_type2", "the same"},
    {"q_few_exact_kernelIL8tsr_type8", "the same"},
    {"q_few_exact_kernelIL8tsr_type39", "as in q_few_kernel"},
    {"q_many_kernelIL8tsr_type2", "the same"},
    {"q_many_kernelIL8tsr_type8", "the same"},
    {"q_many_kernelIL8tsr_type39", "as in q_few_kernel"},
};

bool is_allowed(const std::string &text)
{
    if (text.find("memory that was not written") == std::string::npos)
        return false;
    return std::any_of(std::begin(allowed), std::end(allowed),
                       [&](const Allowed &a) { return text.find(a.kernel) != std::string::npos; });
}

/* Kernels that store NaNs: two words that are NaNs are equal. The bits of a NaN have no meaning, and a GPU,
 * gcc and this executor make others. */
const char *const with_nans[] = {"route_kernel", "route_choose_kernel",
                                 /* of quantized keys and values, a token's infinite ones */
                                 "halves_tile_kernelIL8tsr_type2E", "halves_tile_kernelIL8tsr_type8E"};

bool is_nan(const uint8_t *word)
{
    uint32_t bits;
    memcpy(&bits, word, sizeof bits);
    return (bits & 0x7fffffff) > 0x7f800000;
}

/* The first byte that differs; `size` if none does. */
size_t first_difference(const std::string &kernel, const uint8_t *a, const uint8_t *b, size_t size)
{
    const bool nans = std::any_of(std::begin(with_nans), std::end(with_nans),
                                  [&](const char *name) { return kernel.find(name) != std::string::npos; });
    if (memcmp(a, b, size) == 0)
        return size;
    for (size_t at = 0; at < size; at++) {
        const size_t word = at / 4 * 4;
        if (a[at] != b[at] && !(nans && word + 4 <= size && is_nan(a + word) && is_nan(b + word)))
            return at;
    }
    return size;
}

/* A sentence once; all are counted. A kernel's name and line make a sentence. */
void note(const char *text)
{
    std::string kind = text;
    if (is_allowed(kind))
        return;
    all->n_broken++;
    if (all->reported.insert(kind.substr(0, kind.find(", block"))).second)
        fprintf(stderr, "ptx: %s\n", text);
}

std::shared_ptr<Kernel> find_kernel(const cudasim_launched &launched)
{
    auto [found, is_new] = all->kernels.insert({launched.function, NULL});
    if (!is_new)
        return found->second;
    auto text = all->texts.find(all->names[launched.function]);
    if (text == all->texts.end())
        fail("no PTX for kernel %s (%s)", launched.name, all->names[launched.function].c_str());
    return found->second = decode(parse(read_file(text->second.first), text->second.second));
}

void set_launch(const cudasim_launched &launched, Launch &launch)
{
    launch.grid[0] = launched.grid.x, launch.grid[1] = launched.grid.y, launch.grid[2] = launched.grid.z;
    launch.block[0] = launched.block.x, launch.block[1] = launched.block.y,
    launch.block[2] = launched.block.z;
    launch.dynamic_bytes = launched.shared_bytes;
    launch.parameters = *launched.params;
    launch.report = note;
    launch.pause = [] { fail("a kernel waits in a comparison"); };
    launch.counts = all->counting ? &all->counts[launch.kernel->name] : NULL;
}

/* A third of the launches each in rising, falling and random order, of blocks as of warps. */
void execute(Launch &launch)
{
    static uint64_t n_launches;
    const uint64_t n = (uint64_t)launch.grid[0] * launch.grid[1] * launch.grid[2];
    launch.order = n_launches++ % 3;
    if (launch.order == 2)
        launch.order = n_launches;
    for (uint64_t k = 0; k < n; k++)
        run_block(launch, launch.order == 1   ? n - 1 - k
                          : launch.order == 0 ? k
                                              : (k * 7919 + launch.order) % n);
}

void begin(const cudasim_launched &launched)
{
    all->error = "";
    all->copies.clear();
    try {
        std::shared_ptr<Kernel> kernel = find_kernel(launched);
        if (kernel == NULL || kernel->waits || all->always_replace)
            return;
        all->launch.kernel = kernel.get();
        set_launch(launched, all->launch);
        all->originals = cudasim_memories();
        all->memory = {};
        for (const cudasim_memory &m : all->originals) {
            all->copies.emplace_back(m.bytes, m.bytes + m.size);
            all->memory.segments.push_back({m.address, m.size, all->copies.back().data(), NULL});
        }
        all->launch.memory = &all->memory;
        execute(all->launch);
    } catch (const Error &error) {
        all->error = error.what();
        note(error.what());
    }
}

int block(const cudasim_launched &launched, uint64_t index, const std::function<bool()> &pause)
{
    const std::shared_ptr<Kernel> kernel = all->kernels[launched.function];
    if (kernel == NULL || !(kernel->waits || all->always_replace))
        return 0;
    struct Ended {
    };
    Memory memory;
    Launch launch;
    auto look = [&] {
        memory = {};
        for (const cudasim_memory &m : cudasim_memories())
            memory.segments.push_back({m.address, m.size, m.bytes, NULL});
    };
    try {
        launch.kernel = kernel.get();
        set_launch(launched, launch);
        launch.memory = &memory;
        launch.pause = [&] {
            if (!pause())
                throw Ended();
            look();
        };
        look();
        run_block(launch, index);
    } catch (const Ended &) {
        return -1;
    } catch (const Error &error) {
        cudasim_lose(launched, error.what());
        return -1;
    }
    all->totals[kernel->name].replaced += index == 0;
    all->n_counted += index == 0;
    return 1;
}

void end(const cudasim_launched &launched, bool aborted)
{
    const std::shared_ptr<Kernel> kernel = all->kernels[launched.function];
    if (all->copies.empty() || kernel == NULL || aborted)
        return;
    Totals &t = all->totals[kernel->name];
    bool same = all->error.empty();
    t.launches++;
    all->n_counted++;
    for (size_t k = 0; k < all->originals.size(); k++) {
        const cudasim_memory &m = all->originals[k];
        const uint8_t *copy = all->copies[k].data();
        t.bytes += m.size;
        const size_t at = first_difference(kernel->name, copy, m.bytes, m.size);
        if (at == m.size)
            continue;
        if (same && t.different == 0)
            fprintf(stderr, "ptx: %s: byte %zu of the %zu at 0x%llx is %02x, by the simulation %02x\n",
                    kernel->name.c_str(), at, m.size, (unsigned long long)m.address, copy[at], m.bytes[at]);
        same = false;
    }
    t.different += !same;
    all->copies.clear();
}

/* Lines that no launch came to: another shape may. */
void print_unreached(const Kernel &kernel)
{
    fprintf(stderr, "ptx: %s: not executed:", kernel.name.c_str());
    for (size_t begin = 0, at = 0; at < kernel.code.size(); at++) {
        for (begin = at; at < kernel.code.size() && !kernel.reached[at]; at++) {
        }
        if (at > begin)
            fprintf(stderr, " %d-%d", kernel.code[begin].line, kernel.code[at - 1].line);
    }
    fprintf(stderr, "\n");
}

void print_counts()
{
    static const char *const classes[CLASSES] = {"int", "float", "move", "ldg", "lds",  "stg",
                                                 "sts", "async", "lane", "mma", "flow", "other"};
    for (const auto &[name, c] : all->counts) {
        fprintf(stderr, "ptx: %s:", name.c_str());
        for (int k = 0; k < CLASSES; k++)
            fprintf(stderr, " %s %llu", classes[k], (unsigned long long)c.instructions[k]);
        fprintf(stderr,
                "; sectors %llu bytes %llu; wavefronts %llu ideal %llu; barriers %llu warps %llu divergent "
                "%llu\n",
                (unsigned long long)c.sectors, (unsigned long long)c.bytes, (unsigned long long)c.wavefronts,
                (unsigned long long)c.ideal, (unsigned long long)c.barriers, (unsigned long long)c.warps,
                (unsigned long long)c.divergent);
    }
}

/* The executed kernels, for the test that all of them are. */
void write_names(const char *path)
{
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        perror(path);
        _exit(1);
    }
    for (const auto &[name, t] : all->totals)
        fprintf(file, "%s\n", name.c_str());
    fclose(file);
}

/* At the end of the program: what was done, and whether all of it was the same. */
struct Session {
    Session();
    ~Session();
};

Session::Session()
{
    static const cudasim_launch_hook hook = {begin, block, end};
    const char *folder = getenv("TSR_PTX");
    if (folder == NULL)
        return;
    all = new Comparison();
    all->names = function_names();
    all->counting = all->printing = getenv("TSR_PTX_COUNTS") != NULL;
    all->always_replace = getenv("TSR_PTX_REPLACE") != NULL;
    for (const auto &entry : std::filesystem::directory_iterator(folder))
        if (entry.path().extension() == ".ptx")
            for (const auto &[name, at] : find_kernels(read_file(entry.path())))
                all->texts[name] = {entry.path(), at};
    cudasim_set_hook(&hook);
}

Session::~Session()
{
    Totals sum;
    size_t n_instructions = 0, n_reached = 0;
    if (all == NULL)
        return;
    for (const auto &[name, t] : all->totals) {
        sum.launches += t.launches;
        sum.replaced += t.replaced;
        sum.bytes += t.bytes;
        sum.different += t.different;
        if (t.different != 0)
            fprintf(stderr, "ptx: %s: %llu of %llu launches differ\n", name.c_str(),
                    (unsigned long long)t.different, (unsigned long long)t.launches);
    }
    for (const auto &[function, kernel] : all->kernels) {
        if (kernel == NULL)
            continue;
        n_instructions += kernel->code.size();
        n_reached += (size_t)std::count(kernel->reached.begin(), kernel->reached.end(), true);
        if (all->printing)
            print_unreached(*kernel);
    }
    if (all->printing)
        print_counts();
    fprintf(stderr,
            "ptx: %zu kernels, %llu launches and %llu bytes compared, %llu launches differ; %llu launches "
            "replaced; %llu broken rules; %zu of the %zu instructions of these kernels executed\n",
            all->totals.size(), (unsigned long long)sum.launches, (unsigned long long)sum.bytes,
            (unsigned long long)sum.different, (unsigned long long)sum.replaced,
            (unsigned long long)all->n_broken, n_reached, n_instructions);
    if (getenv("TSR_PTX_EXECUTED"))
        write_names(getenv("TSR_PTX_EXECUTED"));
    fflush(NULL);
    if (sum.different != 0 || all->n_broken != 0 || all->totals.empty())
        _exit(1);
}

Session session;

} // namespace

} // namespace ptx

bool ptx_take_counts(ptx_counts *counts_out)
{
    using namespace ptx;
    Counts sum;
    if (all == NULL)
        return false;
    for (const auto &[name, c] : all->counts)
        sum.add(c);
    const uint64_t *n = sum.instructions;
    *counts_out = {};
    counts_out->launches = all->n_counted;
    for (int k = 0; k < CLASSES; k++)
        counts_out->instructions += n[k];
    counts_out->arithmetic = n[INTEGER] + n[FLOAT] + n[MOVE];
    counts_out->lane = n[LANE];
    counts_out->mma = n[MMA];
    counts_out->flow = n[FLOW];
    counts_out->memory = counts_out->instructions - counts_out->arithmetic - n[LANE] - n[MMA] - n[FLOW];
    counts_out->sectors = sum.sectors;
    counts_out->bytes = sum.bytes;
    counts_out->wavefronts = sum.wavefronts;
    counts_out->ideal = sum.ideal;
    for (auto &[name, c] : all->counts)
        c = {};
    all->n_counted = 0;
    all->counting = true;
    return true;
}

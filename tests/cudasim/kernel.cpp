/* What is known of a kernel before it runs. Its static shared memory is found in the program's own symbol
 * table: `static __thread` variables (cudasim_kernel.h) whose names say that they are local to the kernel.
 * Its registers and launch bounds are ptxas' (kernel_resources.txt), since the host's compiler knows
 * neither. */
#include "sim.h"

#include <cudasim_hook.h>

#include <elf.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include <fstream>
#include <iterator>
#include <sstream>

static int first_object(struct dl_phdr_info *info, size_t, void *base)
{
    *(uintptr_t *)base = (uintptr_t)info->dlpi_addr; /* the program itself comes first */
    return 1;
}

const std::vector<cudasim_symbol> &cudasim_symbols()
{
    static std::vector<cudasim_symbol> all;
    if (!all.empty())
        return all;
    std::ifstream stream("/proc/self/exe", std::ios::binary);
    const std::string file(std::istreambuf_iterator<char>(stream), {});
    uintptr_t base = 0;
    dl_iterate_phdr(first_object, &base);
    const ElfW(Ehdr) *header = (const ElfW(Ehdr) *)file.data();
    const ElfW(Shdr) *sections = (const ElfW(Shdr) *)(file.data() + header->e_shoff);
    for (size_t k = 0; k < header->e_shnum; k++) {
        if (sections[k].sh_type != SHT_SYMTAB)
            continue;
        const ElfW(Sym) *symbols = (const ElfW(Sym) *)(file.data() + sections[k].sh_offset);
        const char *strings = file.data() + sections[sections[k].sh_link].sh_offset;
        for (size_t n = 0; n < sections[k].sh_size / sizeof *symbols; n++) {
            const int type = symbols[n].st_info & 15;
            if (type == STT_FUNC || type == STT_TLS)
                all.push_back({strings + symbols[n].st_name, type == STT_TLS,
                               symbols[n].st_value + (type == STT_TLS ? 0 : base), symbols[n].st_size});
        }
    }
    return all;
}

namespace cudasim
{

/* The mangled name without the L of static functions, which names of their variables have or have not. */
static std::string plain(const std::string &name, const char *prefix)
{
    const size_t n = strlen(prefix);
    return name.compare(0, n, prefix) != 0 ? "" : name.substr(n + (name[n] == 'L'));
}

static std::map<const void *, Kernel> find_kernels()
{
    std::map<const void *, Kernel> kernels;
    std::map<std::string, std::vector<const cudasim_symbol *>> variables; /* in the order of their names */
    for (const cudasim_symbol &symbol : cudasim_symbols())
        if (symbol.is_thread_local && plain(symbol.name, "_ZZ") != "")
            variables[plain(symbol.name, "_ZZ")].push_back(&symbol);
    for (const cudasim_symbol &symbol : cudasim_symbols()) {
        const std::string name = plain(symbol.name, "_Z");
        if (symbol.is_thread_local || name == "")
            continue;
        Kernel &kernel = kernels[(const void *)symbol.value];
        for (auto v = variables.lower_bound(name + "E"); v != variables.end(); v++) {
            if (v->first.compare(0, name.size() + 1, name + "E") != 0)
                break;
            for (const cudasim_symbol *variable : v->second) {
                kernel.shared.push_back({variable->value, variable->size});
                kernel.shared_bytes += (variable->size + 15) / 16 * 16;
            }
        }
    }
    return kernels;
}

static void read_resources(const char *path, std::map<const void *, Kernel> &kernels)
{
    std::map<std::string, Kernel *> by_name;
    for (const cudasim_symbol &symbol : cudasim_symbols())
        if (!symbol.is_thread_local && plain(symbol.name, "_Z") != "")
            by_name[plain(symbol.name, "_Z")] = &kernels[(const void *)symbol.value];
    std::ifstream table(path);
    std::string line, name;
    int n = 0;
    while (std::getline(table, line)) {
        int threads, blocks, shared, stack, registers[3];
        std::istringstream words(line);
        if (line[0] == '#')
            continue;
        words >> name >> threads >> blocks;
        for (int &of : registers)
            words >> of >> shared >> stack;
        if (words.fail()) {
            fprintf(stderr, "cudasim: %s: \"%s\" lacks numbers; scripts/make-kernel-resources writes it\n",
                    path, line.c_str());
            abort();
        }
        n++;
        auto kernel = by_name.find(plain(name, "_Z"));
        if (kernel == by_name.end())
            continue; /* not in this program */
        kernel->second->max_threads = threads != 0 ? threads : 1024;
        std::copy(registers, registers + 3, kernel->second->registers);
    }
    if (n == 0) {
        fprintf(stderr, "cudasim: %s has no kernels; scripts/make-kernel-resources writes it\n", path);
        abort();
    }
}

static std::map<const void *, Kernel> &all_kernels()
{
    static std::map<const void *, Kernel> kernels;
    if (kernels.empty()) {
        kernels = find_kernels();
        read_resources(CUDASIM_KERNEL_RESOURCES, kernels);
    }
    return kernels;
}

Kernel *find_kernel(const void *function)
{
    auto kernel = all_kernels().find(function);
    return kernel != all_kernels().end() ? &kernel->second : NULL;
}

} // namespace cudasim

void cudasim_read_resources(const char *path)
{
    cudasim::read_resources(path, cudasim::all_kernels());
}

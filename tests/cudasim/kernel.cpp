/* What is known of a kernel before it runs. Its static shared memory is found in the program's own symbol
 * table: `static __thread` variables (cudasim_kernel.h) whose names say that they are local to the kernel. */
#include "sim.h"

#include <cudasim_hook.h>

#include <elf.h>
#include <link.h>
#include <string.h>

#include <fstream>
#include <iterator>

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

Kernel *find_kernel(const void *function)
{
    static std::map<const void *, Kernel> kernels = find_kernels();
    auto kernel = kernels.find(function);
    return kernel != kernels.end() ? &kernel->second : NULL;
}

} // namespace cudasim

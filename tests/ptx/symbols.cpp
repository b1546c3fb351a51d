/* The mangled names of this program's functions by address, from its own symbol table. nvcc leaves the L out
 * that g++ and clang put into names of static functions. */
#include "compare.h"

#include <elf.h>
#include <link.h>
#include <string.h>

#include <fstream>
#include <iterator>

namespace ptx
{

std::string read_file(const std::string &path)
{
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
}

static int first_object(struct dl_phdr_info *info, size_t, void *base)
{
    *(uintptr_t *)base = (uintptr_t)info->dlpi_addr; /* the program itself comes first */
    return 1;
}

std::map<const void *, std::string> function_names()
{
    std::map<const void *, std::string> names;
    const std::string file = read_file("/proc/self/exe");
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
            std::string name = strings + symbols[n].st_name;
            if ((symbols[n].st_info & 15) == STT_FUNC && name.compare(0, 2, "_Z") == 0)
                names[(const void *)(base + symbols[n].st_value)] =
                    name.compare(0, 3, "_ZL") == 0 ? "_Z" + name.substr(3) : name;
        }
    }
    return names;
}

} // namespace ptx

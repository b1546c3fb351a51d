/* The mangled names of this program's functions by address, from its own symbol table. nvcc leaves the L out
 * that g++ and clang put into names of static functions. */
#include "compare.h"

#include <cudasim_hook.h>

#include <fstream>
#include <iterator>

namespace ptx
{

std::string read_file(const std::string &path)
{
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
}

std::map<const void *, std::string> function_names()
{
    std::map<const void *, std::string> names;
    for (const cudasim_symbol &symbol : cudasim_symbols())
        if (!symbol.is_thread_local && symbol.name.compare(0, 2, "_Z") == 0)
            names[(const void *)symbol.value] =
                symbol.name.compare(0, 3, "_ZL") == 0 ? "_Z" + symbol.name.substr(3) : symbol.name;
    return names;
}

} // namespace ptx

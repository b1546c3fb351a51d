/* How the library was built. The versions are those that CMake found (src/CMakeLists.txt). */
#include <tsr/version.h>

#if defined __clang__
#define COMPILER "clang " __clang_version__
#elif defined __GNUC__
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown"
#endif

const char *tsr_build_facts(void)
{
    return "compiler  " COMPILER ", build type " TSR_BUILD_TYPE "\n"
           "CUDA      " TSR_BUILD_CUDA "\n"
           "NCCL      " TSR_BUILD_NCCL "\n"
           "hwloc     " TSR_BUILD_HWLOC "\n";
}

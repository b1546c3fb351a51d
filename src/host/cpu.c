/* See cpu.h. __builtin_cpu_supports() also checks whether the system saves the wide registers. Features that
 * the oldest compilers do not support (F16C before clang 15, AMX before gcc 11) are read from CPUID. */
#include "host/cpu.h"

#include <sched.h>
#include <stddef.h>
#include <unistd.h>

int tsr_cpu_allowed(void)
{
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
#endif
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

#if defined(__x86_64__)
#include <cpuid.h>

static bool has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

const char *tsr_cpu_lacking_for_avx2(void)
{
    const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    return has ? NULL : "the processor lacks AVX2, FMA or F16C";
}

/* A bit of leaf 7, subleaf 1, EAX, with the same meaning for both vendors (Intel 64 and IA-32 Architectures
 * Software Developer's Manual, CPUID). */
static bool has_leaf_7_1(int bit)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> bit & 1);
}

const char *tsr_cpu_lacking_for_avxvnni(void)
{
    const char *lacking = tsr_cpu_lacking_for_avx2();
    return lacking || has_leaf_7_1(4) ? lacking : "the processor lacks AVX-VNNI";
}

const char *tsr_cpu_lacking_for_avx512(void)
{
    const char *lacking = tsr_cpu_lacking_for_avx2();
    const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return lacking || has ? lacking : "the processor lacks AVX-512 F, BW, VL or DQ";
}

const char *tsr_cpu_lacking_for_avx512vnni(void)
{
    const char *lacking = tsr_cpu_lacking_for_avx512();
    return lacking || __builtin_cpu_supports("avx512vnni") ? lacking : "the processor lacks AVX-512 VNNI";
}

const char *tsr_cpu_lacking_for_avx512bf16(void)
{
    const char *lacking = tsr_cpu_lacking_for_avx512vnni();
    return lacking || has_leaf_7_1(5) ? lacking : "the processor lacks AVX-512 BF16";
}

/* Leaf 7, EDX (Intel 64 and IA-32 Architectures Software Developer's Manual, CPUID). */
static bool has_amx(void)
{
    const unsigned bf16 = 1u << 22, tile = 1u << 24, int8 = 1u << 25, all = bf16 | tile | int8;
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & all) == all;
}

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

/* Linux saves tiles only for processes that request it (Documentation/arch/x86/xstate.rst, since 5.16). The
 * permission includes threads that run already; memory for their tiles is allocated at first use. */
static bool may_use_tiles(void)
{
    const long arch_req_xcomp_perm = 0x1023, xfeature_xtiledata = 18;
    return syscall(SYS_arch_prctl, arch_req_xcomp_perm, xfeature_xtiledata) == 0;
}
#else
static bool may_use_tiles(void)
{
    return false;
}
#endif

const char *tsr_cpu_lacking_for_amx(void)
{
    const char *lacking = tsr_cpu_lacking_for_avx512vnni();
    if (lacking)
        return lacking;
    if (!has_amx())
        return "the processor lacks AMX-TILE, AMX-INT8 or AMX-BF16";
    return may_use_tiles()
               ? NULL
               : "the system does not allow this process to use AMX tiles; Linux 5.16 or newer does";
}

/* Leaf 0: the vendor's name in EBX, EDX, ECX. */
static bool is_amd(void)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(0, &eax, &ebx, &ecx, &edx) && ebx == signature_AMD_ebx && edx == signature_AMD_edx &&
           ecx == signature_AMD_ecx;
}

/* Leaf 1, EAX: the base family, plus the extended family where the base is 15, as in AMD's since 2003 (AMD64
 * Architecture Programmer's Manual, volume 3, appendix E). Zen 5 is 26. */
static unsigned family(void)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) ? (eax >> 8 & 15) + (eax >> 20 & 255) : 0;
}

tsr_cpu_reading tsr_cpu_reads(void)
{
    if (!is_amd())
        return TSR_CPU_STREAMS;
    return family() < 26 ? TSR_CPU_ONE_STREAM_L2 : TSR_CPU_ONE_STREAM;
}
#else
tsr_cpu_reading tsr_cpu_reads(void)
{
    return TSR_CPU_STREAMS;
}
#endif

#if defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>

/* The processor's features as Linux passes them to a process (Documentation/arch/arm64/elf_hwcaps.rst). */
static bool has_dotprod(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
}
#else
static bool has_dotprod(void)
{
    return false;
}
#endif

const char *tsr_cpu_lacking_for_dotprod(void)
{
    return has_dotprod() ? NULL : "the processor lacks the dot product instructions";
}
#endif

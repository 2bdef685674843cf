/* Which table runs here. */
#ifdef K1_HAVE_AVXVNNI
#include <cpuid.h>
#endif
#include <stddef.h>
#include <string.h>

#include "k1/kernels.h"

static int runs_always(void) { return 1; }

#ifdef K1_HAVE_AVX2
static int runs_avx2(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
#endif

#ifdef K1_HAVE_AVXVNNI
/* CPUID leaf 7, subleaf 1, EAX bit 4 (Intel SDM vol. 2A); __builtin_cpu_supports() of gcc 12 does not know it. */
static int runs_avxvnni(void) {
    unsigned eax, ebx, ecx, edx;
    return runs_avx2() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 4 & 1u) != 0;
}
#endif

/* Fastest first. RISC-V's vector table belongs here, asked for by riscv_hwprobe, else AT_HWCAP. */
static const struct {
    const k1_kernels *kernels;
    int (*runs)(void);
} tables[] = {
#ifdef K1_HAVE_AVXVNNI
    {&k1_kernels_avxvnni, runs_avxvnni},
#endif
#ifdef K1_HAVE_AVX2
    {&k1_kernels_avx2, runs_avx2},
#endif
    {&k1_kernels_scalar, runs_always},
};

const k1_kernels *k1_kernels_pick(const char *name) {
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        if (name == NULL || strcmp(name, tables[i].kernels->name) == 0) {
            if (tables[i].runs()) {
                return tables[i].kernels;
            }
        }
    }
    return NULL;
}

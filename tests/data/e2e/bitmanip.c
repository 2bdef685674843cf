/* Runs K1's bit manipulation instructions and prints what they make; an unknown one ends in SIGILL. */

#include <stdint.h>
#include <stdio.h>

#define OP2(name, a, b)                                                                                                \
    ({                                                                                                                 \
        uint64_t r;                                                                                                    \
        __asm__ volatile(#name " %0, %1, %2" : "=r"(r) : "r"((uint64_t)(a)), "r"((uint64_t)(b)));                      \
        r;                                                                                                             \
    })
#define OP1(name, a)                                                                                                   \
    ({                                                                                                                 \
        uint64_t r;                                                                                                    \
        __asm__ volatile(#name " %0, %1" : "=r"(r) : "r"((uint64_t)(a)));                                              \
        r;                                                                                                             \
    })

int main(void) {
    printf("sh3add %lu\n", OP2(sh3add, 5, 100));
    printf("cpop %lu\n", OP1(cpop, 0xff00ff));
    printf("clz %lu\n", OP1(clz, 1));
    printf("rev8 %lx\n", OP1(rev8, 0x0102030405060708));
    printf("max %ld\n", (long)OP2(max, -3, 2));
    printf("clmul %lx\n", OP2(clmul, 0xff, 0xff));
    printf("bset %lx\n", OP2(bset, 0, 40));
    return 0;
}

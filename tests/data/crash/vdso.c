// Copies into the vdso, as the unaligned ring buffer of reference 000, 5.2 did, and dies of it.
#include <string.h>
#include <sys/auxv.h>

static char source[64];

static void write_ring(char *target) { memcpy(target, source, sizeof source); }

int main(void) {
    write_ring((char *)getauxval(AT_SYSINFO_EHDR) + 128);
    return 0;
}

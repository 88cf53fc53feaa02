/* Preloaded before libc: every fsync and fdatasync takes BENCH_FLUSH_DELAY_US longer, as on a disk that is slower than
   this one. SQLite finds both through the dynamic linker, in its own wheel and in the interpreter's library alike. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

typedef int (*flush)(int);

static void wait_a_little(void)
{
    static long delay_us = -1;
    if (delay_us < 0) {
        const char *given = getenv("BENCH_FLUSH_DELAY_US");
        delay_us = given ? strtol(given, NULL, 10) : 0;
    }
    struct timespec delay = {delay_us / 1000000, delay_us % 1000000 * 1000};
    if (delay_us > 0)
        nanosleep(&delay, NULL);
}

int fsync(int file)
{
    static flush real;
    if (!real)
        real = (flush)dlsym(RTLD_NEXT, "fsync");
    wait_a_little();
    return real(file);
}

int fdatasync(int file)
{
    static flush real;
    if (!real)
        real = (flush)dlsym(RTLD_NEXT, "fdatasync");
    wait_a_little();
    return real(file);
}

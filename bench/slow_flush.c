/* Preloaded before libc to simulate a slower disk: every fsync and fdatasync takes BENCH_FLUSH_DELAY_US longer. SQLite resolves
   both through the dynamic linker, in apsw's wheel and in the interpreter's library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

typedef int (*flush)(int);

static void delay_flush(void)
{
    static long delay_us = -1;
    if (delay_us < 0) {
        const char *value = getenv("BENCH_FLUSH_DELAY_US");
        delay_us = value ? strtol(value, NULL, 10) : 0;
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
    delay_flush();
    return real(file);
}

int fdatasync(int file)
{
    static flush real;
    if (!real)
        real = (flush)dlsym(RTLD_NEXT, "fdatasync");
    delay_flush();
    return real(file);
}

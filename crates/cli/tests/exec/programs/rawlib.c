/* A library that makes system calls by its own instruction. */
#include <fcntl.h>
#include <sys/syscall.h>

static long ask(long number, long a, long b, long c, long d) {
    register long r10 __asm__("r10") = d;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return result;
}

/* Appends a word to a file: its length, or an error below zero. */
long append(const char *path, const char *word, long len) {
    long fd = ask(SYS_openat, AT_FDCWD, (long)path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (fd < 0) return fd;
    long count = ask(SYS_write, fd, (long)word, len, 0);
    ask(SYS_close, fd, 0, 0, 0);
    return count;
}

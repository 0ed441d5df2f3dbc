/* Threads create and remove files without a signal handler; then a handler is installed in the requested way, and may
   interrupt them wherever signals are unblocked: it writes, creates and removes files of its own. Or the handler is
   installed from the beginning, by a call that the library does not see. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

enum { BEFORE = 2000, HANDLED = 400, THREADS = 2 };
static const char *dir;
static int log_fd;
static atomic_int handled, failed, stop;
static atomic_long made;

static void make(const char *kind) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s%ld", dir, kind, syscall(SYS_gettid));
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    if (fd < 0 || close(fd) || unlink(path)) { perror(path); failed = 1; }
}

static void handler(int number) {
    (void)number;
    if (handled >= HANDLED) return;
    make("h");
    if (write(log_fd, "line\n", 5) != 5) failed = 1;
    handled++;
}

static void *work(void *argument) {
    (void)argument;
    while (!stop) { make("f"); made++; }
    return NULL;
}

/* The kernel's structure; the restorer is the C library's. */
struct action { void (*handler)(int); unsigned long flags; void (*restorer)(void); unsigned long mask; };

static int install(const char *way) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    if (!strcmp(way, "sigaction")) return sigaction(SIGALRM, &action, NULL);
    if (!strcmp(way, "signal")) return signal(SIGALRM, handler) == SIG_ERR;
    struct action known;
    if (sigaction(SIGFPE, &action, NULL) || syscall(SYS_rt_sigaction, SIGFPE, NULL, &known, 8)) return 1;
#ifdef __x86_64__
    if (!strcmp(way, "early, by an instruction")) {
        long result;
        register long size __asm__("r10") = 8;
        __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_rt_sigaction), "D"(SIGALRM), "S"(&known), "d"(0), "r"(size) : "rcx", "r11", "memory");
        return result != 0;
    }
#endif
    return syscall(SYS_rt_sigaction, SIGALRM, &known, NULL, 8);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    dir = argv[1];
    int early = !strncmp(argv[2], "early", 5);
    if (early && install(argv[2])) { perror("install"); return 3; }
    char path[512];
    snprintf(path, sizeof path, "%s/log", dir);
    log_fd = open(path, O_CREAT | O_WRONLY | O_APPEND | O_TRUNC, 0644);
    pthread_t threads[THREADS];
    for (int at = 0; at < THREADS; at++) pthread_create(&threads[at], NULL, work, NULL);
    while (made < BEFORE) usleep(1000);
    if (!early && install(argv[2])) { perror("install"); return 3; }
    long before = made;
    struct itimerval often = {{0, 300}, {0, 300}};
    setitimer(ITIMER_REAL, &often, NULL);
    while (handled < HANDLED && !failed) usleep(1000);
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    stop = 1;
    for (int at = 0; at < THREADS; at++) pthread_join(threads[at], NULL);
    struct stat s;
    if (fstat(log_fd, &s) || s.st_size != handled * 5L) { fprintf(stderr, "%ld bytes, %d lines\n", (long)s.st_size, handled); return 4; }
    return failed || made == before;
}

/* Makes system calls by its own instruction, and through parts of the C library that are not exported. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>
#include <wordexp.h>

static long ask(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return result;
}
#define ASK(number, ...) ask_(number, __VA_ARGS__, 0, 0, 0, 0, 0, 0)
#define ask_(number, a, b, c, d, e, f, ...) ask(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

static char root[4096];
static char *P(const char *name) {
    static char ring[8][8192];
    static int next;
    char *path = ring[next++ % 8];
    snprintf(path, sizeof ring[0], "%s/%s", root, name);
    return path;
}

static void *thread(void *name) {
    long fd = ASK(SYS_openat, AT_FDCWD, P(name), O_CREAT | O_RDWR, 0644);
    long written = ASK(SYS_write, fd, "from a thread", 13);
    ASK(SYS_close, fd);
    return (void *)written;
}
static int thread11(void *name) { return (int)(long)thread(name); }

static volatile int handled;
static void handler(int number) {
    (void)number;
    long fd = ASK(SYS_openat, AT_FDCWD, P("handler"), O_CREAT | O_RDWR, 0644);
    handled = (int)ASK(SYS_write, fd, "handled", 7);
    ASK(SYS_close, fd);
}

static void kernel(void) {
    char b[64] = "";
    struct stat s;
    long fd = ASK(SYS_openat, AT_FDCWD, P("raw"), O_CREAT | O_RDWR | O_TRUNC, 0644);
    printf("open %d\n", fd >= 0);
    printf("write %ld\n", ASK(SYS_write, fd, "raw bytes", 9));
    printf("pread %ld\n", ASK(SYS_pread64, fd, b, 64, 4));
    printf("%s\n", b);
    printf("lseek %ld\n", ASK(SYS_lseek, fd, 0, SEEK_END));
    printf("fstat %ld\n", ASK(SYS_fstat, fd, &s));
    printf("size %ld\n", (long)s.st_size);
    printf("missing %ld\n", ASK(SYS_openat, AT_FDCWD, P("none"), O_RDONLY, 0));
    printf("bad %ld\n", ASK(SYS_pread64, fd, 8, 1, 0));
    printf("mkdir %ld\n", ASK(SYS_mkdir, P("dir"), 0755));
    printf("rename %ld\n", ASK(SYS_rename, P("raw"), P("dir/raw")));
    printf("stat %ld\n", ASK(SYS_stat, P("dir/raw"), &s));
    long map = ASK(SYS_mmap, 0, 9, PROT_READ, MAP_PRIVATE, fd, 0);
    printf("mmap %.9s\n", (char *)map);
    ASK(SYS_munmap, map, 9);
    printf("dup %d\n", ASK(SYS_dup2, fd, 77) == 77);
    ASK(SYS_close, fd);
    printf("read %ld\n", ASK(SYS_pread64, 77, b, 3, 0));
    ASK(SYS_close, 77);
    long child = ASK(SYS_fork, 0);
    if (!child) {
        fd = ASK(SYS_openat, AT_FDCWD, P("child"), O_CREAT | O_WRONLY, 0644);
        ASK(SYS_exit_group, ASK(SYS_write, fd, "x", 1) == 1 ? 0 : 9);
    }
    int status = -1;
    ASK(SYS_wait4, child, &status, 0, 0);
    printf("child %d\n", status);
    child = ASK(SYS_vfork, 0);
    if (!child) ASK(SYS_execve, "/bin/cat", ((char *[]){"cat", P("dir/raw"), NULL}), environ);
    ASK(SYS_wait4, child, &status, 0, 0);
    printf("\nvfork %d\n", status);
}

static void library(void) {
    char *paths[] = {root, NULL};
    int seen = 0;
    FTS *walk = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    for (FTSENT *entry; walk && (entry = fts_read(walk));) seen += entry->fts_info == FTS_F;
    if (walk) fts_close(walk);
    printf("fts %d\n", seen);
    wordexp_t words;
    if (!wordexp(P("dir/*"), &words, 0)) printf("wordexp %zu %d\n", words.we_wordc, !strcmp(words.we_wordv[0], P("dir/raw")));
    FILE *local = fopen("/dev/null", "r+");
    local = freopen(P("reopened"), "w", local);
    fprintf(local, "by the C library");
    fclose(local);
    struct stat s;
    printf("freopen %d\n", stat(P("reopened"), &s));
    printf("size %ld\n", (long)s.st_size);
    if (dlopen(P("library.so"), RTLD_NOW)) printf("dlopen\n");
}

static void others(void) {
    void *result;
    pthread_t one;
    pthread_create(&one, NULL, thread, "t1");
    pthread_join(one, &result);
    printf("thread %ld\n", (long)result);
    thrd_t two;
    int written;
    thrd_create(&two, thread11, "t2");
    thrd_join(two, &written);
    printf("C11 thread %d\n", written);
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    printf("all signals blocked %ld\n", (long)thread("t3"));
    signal(SIGUSR1, handler);
    struct sigaction action = {.sa_handler = handler};
    sigfillset(&action.sa_mask);
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    printf("handler %d\n", handled);
    raise(SIGUSR1);
    printf("handler %d\n", handled);
    printf("system %d\n", system("cat \"$D/t1\"; echo"));
    FILE *child = popen("cat \"$D/t2\"", "r");
    char line[64] = "";
    printf("popen %s\n", fgets(line, sizeof line, child));
    pclose(child);
}

int main(int argc, char **argv) {
    snprintf(root, sizeof root, "%s", argv[1]);
    setenv("D", root, 1);
    setvbuf(stdout, NULL, _IONBF, 0);
    if (argc > 2) {
        /* CPU time of one call on a local file, in nanoseconds. */
        struct timespec start, end;
        long times = atol(argv[2]);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
        for (long i = 0; i < times; i++) ASK(SYS_getppid, 0);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
        printf("%ld ns a call\n", ((end.tv_sec - start.tv_sec) * 1000000000L + end.tv_nsec - start.tv_nsec) / times);
        return 0;
    }
    kernel();
    library();
    others();
    return 0;
}

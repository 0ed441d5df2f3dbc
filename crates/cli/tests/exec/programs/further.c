/* A second table of operations: less common calls. */
#include "table.h"
#include <dlfcn.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <spawn.h>

extern char **environ;

/* Calls that succeed leave errno unchanged. */
#define CALM(call) do { errno = 77; long value = (long)(call); fprintf(out, "%s: %ld %s\n", #call, value, errno == 77 ? "calm" : strerrorname_np(errno)); } while (0)

static void error_numbers(void) {
    char b[64];
    struct stat s;
    put("calm", "0123456789");
    int fd = open(P("calm"), O_RDWR);
    CALM(read(fd, b, 4));
    CALM(write(fd, "x", 1));
    CALM(pread(fd, b, 4, 0));
    CALM(pwrite(fd, "y", 1, 0));
    CALM(lseek(fd, 0, SEEK_SET));
    CALM(fstat(fd, &s));
    CALM(stat(P("calm"), &s));
    CALM(fsync(fd));
    CALM(ftruncate(fd, 8));
    CALM(access(P("calm"), R_OK));
    CALM(mkdir(P("calmdir"), 0755));
    DIR *dir = opendir(P("calmdir"));
    while (readdir(dir)) errno = 77;
    fprintf(out, "end of a directory: %s\n", errno == 77 ? "calm" : strerrorname_np(errno));
    CALM(closedir(dir));
    CALM(rmdir(P("calmdir")));
    CALM(close(fd));
    CALM(unlink(P("calm")));
}

static void wide_forms(void) {
    char b[64] = "";
    int fd;
    off64_t at = 0;
    DO((fd = open64(P("w"), O_CREAT | O_RDWR, 0644)) >= 0);
    DO(pwrite64(fd, "0123456789", 10, 5));
    DO(pread64(fd, b, 10, 7));
    DO(lseek64(fd, 0, SEEK_END));
    DO(ftruncate64(fd, 20));
    DO(posix_fallocate64(fd, 0, 30));
    DO(fallocate64(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 2, 4));
    DO(posix_fadvise64(fd, 0, 0, POSIX_FADV_DONTNEED));
    DO(posix_fadvise(fd, 0, 0, 99));
    DO(readahead(fd, 0, 10));
    DO(sync_file_range(fd, 0, 10, 0));
    sync();
    struct iovec v[2] = {{"ab", 2}, {"cd", 2}};
    DO(pwritev64(fd, v, 2, 1));
    DO(pwritev64v2(fd, v, 2, 20, RWF_DSYNC));
    DO(pwritev64v2(fd, v, 2, 0, RWF_APPEND));
    struct iovec r[2] = {{b, 3}, {b + 3, 5}};
    DO(preadv64(fd, r, 2, 0));
    DO(preadv64v2(fd, r, 2, -1, 0));
    DO(preadv2(fd, r, 2, 0, 1 << 20));
    DO(preadv2(fd, r, 1, -5, 0));
    struct stat64 s;
    DO(fstat64(fd, &s));
    DO(stat64(P("w"), &s));
    DO(lstat64(P("w"), &s));
    DO(fstatat64(AT_FDCWD, P("w"), &s, 0));
    DO(fstatat64(AT_FDCWD, P("w"), &s, 1 << 28));
    DO(s.st_size);
    int other = creat64(P("w2"), 0600);
    DO(sendfile64(other, fd, &at, 6));
    DO(at);
    DO(close(other));
    show("w2");
    DO(truncate64(P("w2"), 2));
    struct statvfs64 f;
    struct statfs64 g;
    DO(statvfs64(P("w"), &f));
    DO(fstatvfs64(fd, &f));
    DO(statfs64(P("w"), &g));
    DO(fstatfs64(fd, &g));
    struct flock64 l = {F_WRLCK, SEEK_SET, 0, 4, 0};
    DO(fcntl64(fd, F_OFD_SETLK, &l));
    int rival = open(P("w"), O_RDWR);
    DO(fcntl(rival, F_OFD_SETLK, &l));
    DO(close(rival));
    DO(lockf64(fd, F_LOCK, 2));
    DO(close(fd));
    show("w");
    int (*old)(int, const char *, struct stat64 *) = dlsym(RTLD_DEFAULT, "__xstat64");
    int (*oldl)(int, const char *, struct stat64 *) = dlsym(RTLD_DEFAULT, "__lxstat");
    int (*oldf)(int, int, struct stat64 *) = dlsym(RTLD_DEFAULT, "__fxstat");
    int (*oldat)(int, int, const char *, struct stat64 *, int) = dlsym(RTLD_DEFAULT, "__fxstatat");
    fd = open(P("w"), O_RDONLY);
    DO(old(1, P("w"), &s));
    DO(oldl(1, P("w"), &s));
    DO(oldf(1, fd, &s));
    DO(oldat(1, AT_FDCWD, P("w"), &s, 0));
    close(fd);
    DO(unlink(P("w")));
    DO(unlink(P("w2")));
}

static void by_number(void) {
    char b[PATH_MAX];
    struct stat s;
    struct statx x;
    struct open_how how = {.flags = O_CREAT | O_RDWR, .mode = 0640};
    int fd;
    DO((fd = syscall(SYS_openat2, AT_FDCWD, P("n"), &how, sizeof how)) >= 0);
    DO(syscall(SYS_openat2, AT_FDCWD, P("n"), &how, 3));
    struct iovec v[2] = {{"by ", 3}, {"number", 6}};
    DO(syscall(SYS_writev, fd, v, 2));
    DO(syscall(SYS_pwritev2, fd, v, 1, 0L, 0L, RWF_SYNC));
    DO(syscall(SYS_preadv2, fd, &(struct iovec){b, 20}, 1, 0L, 0L, 0));
    DO(syscall(SYS_fchmod, fd, 0600));
    DO(syscall(SYS_fadvise64, fd, 0L, 0L, POSIX_FADV_NORMAL));
    DO(syscall(SYS_fadvise64, fd, 0L, 0L, 99));
    DO(syscall(SYS_flock, fd, LOCK_EX));
    DO(syscall(SYS_statx, AT_FDCWD, P("n"), 0, STATX_BASIC_STATS, &x));
    DO(x.stx_mode);
    DO(syscall(SYS_statx, AT_FDCWD, P("n"), 0, 1u << 31, &x));
    DO(syscall(SYS_faccessat2, AT_FDCWD, P("n"), R_OK, AT_EACCESS));
    DO(syscall(SYS_faccessat2, AT_FDCWD, P("n"), R_OK, 1 << 28));
    DO(syscall(SYS_linkat, AT_FDCWD, P("n"), AT_FDCWD, P("n2"), 0));
    DO(syscall(SYS_symlinkat, "n", AT_FDCWD, P("n3")));
    DO(syscall(SYS_readlinkat, AT_FDCWD, P("n3"), b, sizeof b));
    DO(syscall(SYS_symlinkat, "/etc/hostname", AT_FDCWD, P("n4")));
    DO((int)syscall(SYS_openat, AT_FDCWD, P("n4"), O_RDONLY) >= 0);
    DO(syscall(SYS_fsetxattr, fd, "user.n", "v", 1, 0));
    DO(syscall(SYS_getxattr, P("n"), "user.n", b, 9));
    DO(syscall(SYS_listxattr, P("n"), b, 20));
    DO(syscall(SYS_removexattr, P("n"), "user.n"));
    DO(syscall(SYS_fchownat, AT_FDCWD, P("n"), -1, -1, 0));
    DO(syscall(SYS_utimensat, AT_FDCWD, P("n"), NULL, 0));
    char *p = (char *)syscall(SYS_mmap, NULL, 9, PROT_READ, MAP_PRIVATE, fd, 0L);
    fprintf(out, "%.9s\n", p);
    DO(syscall(SYS_munmap, p, 9));
    DO(syscall(SYS_truncate, P("n"), 3L));
    DO(syscall(SYS_fstat, fd, &s));
    DO(s.st_size);
    DO(syscall(SYS_dup3, fd, 70, O_CLOEXEC));
    DO(syscall(SYS_close_range, 70, 70, 0));
    DO(syscall(SYS_close_range, 70, 70, 99));
    DO(syscall(SYS_mknodat, AT_FDCWD, P("pipe"), S_IFIFO | 0600, 0));
    struct statfs g;
    DO(syscall(SYS_statfs, P("n"), &g));
    DO(syscall(SYS_chdir, P(".")));
    DO(syscall(SYS_getcwd, b, sizeof b) == (long)strlen(b) + 1);
    DO(syscall(SYS_chdir, "/"));
    DO(syscall(SYS_close, fd));
    for (const char *const *name = (const char *const[]){"n", "n2", "n3", "n4", "pipe", 0}; *name; name++)
        DO(syscall(SYS_unlinkat, AT_FDCWD, P(*name), 0));
}

static void printed(void) {
    int fd = open(P("p"), O_CREAT | O_RDWR, 0644);
    DO(dprintf(fd, "%d %s %.2f %c %ld %d %d %d\n", 1, "two", 3.5, '4', 5L, 6, 7, 8));
    DO(dprintf(fd, "plain\n"));
    DO(dprintf(-1, "nowhere"));
    close(fd);
    show("p");
    FILE *f = fopen64(P("p"), "r");
    char line[64];
    DO(fseeko64(f, -6, SEEK_END));
    text("line", fgets(line, sizeof line, f));
    DO(ftello64(f));
    DO((f = freopen64(P("p2"), "w+", f)) != NULL);
    DO(fputs("reopened", f));
    DO(fseek(f, 2, SEEK_SET));
    DO(fgetc(f));
    DO((f = freopen(P("p"), "r", f)) != NULL);
    text("line", fgets(line, sizeof line, f));
    DO(fputs("no", f));
    fpos_t place;
    DO(fgetpos(f, &place));
    DO(fsetpos(f, &place));
    DO(fclose(f));
    f = fopen("/dev/null", "r");
    DO((f = freopen(P("p"), "a", f)) != NULL);
    DO(fputs("appended\n", f));
    DO(fclose(f));
    show("p");
    DO((f = popen("cat \"$DIR/p2\"", "r")) != NULL);
    text("popen", fgets(line, sizeof line, f));
    DO(pclose(f));
    DO(remove(P("p")));
    DO(remove(P("p2")));
}

static void temporary(void) {
    char t[PATH_MAX];
    struct stat s;
    int fd;
    strcpy(t, P("aXXXXXX"));
    DO((fd = mkostemp(t, O_APPEND)) >= 0);
    DO(fcntl(fd, F_GETFL) & O_APPEND);
    DO(close(fd) || unlink(t));
    strcpy(t, P("aXXXXXXtail"));
    DO((fd = mkostemps(t, 4, O_CLOEXEC)) >= 0);
    DO(fcntl(fd, F_GETFD));
    DO(close(fd) || unlink(t));
    strcpy(t, P("aXXXXXXtail"));
    DO(mkstemps(t, -1));
    DO(mkstemps(t, 99));
    strcpy(t, P("none/aXXXXXX"));
    DO(mkstemp64(t));
    DO(mkdtemp(t) != NULL);
    strcpy(t, P("bXXXXXX"));
    DO(mkdtemp(t) != NULL);
    DO(stat(t, &s));
    DO(s.st_mode);
    DO(rmdir(t));
}

static int count(const char *path, const struct stat *s, int kind) { (void)path; (void)s; return kind == FTW_F || kind == FTW_D ? 0 : 1; }
static int every(const struct dirent *e) { return e->d_name[0] != '.'; }

static void trees(void) {
    DO(mkdir(P("tree"), 0755));
    DO(mkdir(P("tree/sub"), 0755));
    put("tree/x", "x");
    put("tree/sub/y", "y");
    DO(ftw(P("tree"), count, 8));
    DO(ftw(P("none"), count, 8));
    int dir = open(P("tree"), O_RDONLY | O_DIRECTORY);
    struct dirent **found;
    DO(scandirat(dir, "sub", &found, every, alphasort));
    text("found", found[0]->d_name);
    free(found[0]);
    free(found);
    char b[1024];
    off64_t base = 0;
    DO(getdirentries64(dir, b, sizeof b, &base) > 0);
    DO(base);
    struct dirent entry, *result;
    DIR *stream = fdopendir(dir);
    rewinddir(stream);
    int total = 0;
    while (!readdir_r(stream, &entry, &result) && result) total++;
    DO(total);
    DO(closedir(stream));
    char *real = canonicalize_file_name(P("tree/./sub/../x"));
    text("canonical", real ? real + strlen(root) : "none");
    free(real);
    DO(chdir(P("tree/sub")));
    char *here = get_current_dir_name();
    unsetenv("PWD");
    free(here);
    here = get_current_dir_name();
    text("here", here + strlen(root));
    free(here);
    DO(chdir("/"));
    DO(ftok(P("tree/x"), 7) != -1);
    DO(ftok(P("tree/none"), 7));
    DO(eaccess(P("tree/x"), R_OK));
    DO(faccessat(AT_FDCWD, P("tree/x"), X_OK, 0));
    DO(lchown(P("tree/x"), -1, -1));
    DO(lutimes(P("tree/x"), (struct timeval[2]){{1, 2}, {3, 4}}));
    DO(futimesat(AT_FDCWD, P("tree/x"), (struct timeval[2]){{1, 2}, {3, 4}}));
    DO(futimesat(AT_FDCWD, P("tree/x"), (struct timeval[2]){{1, 2}, {3, 4000000}}));
    DO(system("rm -r \"$DIR/tree\""));
}

static void run(const char *how, pid_t child) {
    int status = -1;
    waitpid(child, &status, 0);
    fprintf(out, "%s: %d\n", how, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

static void programs(void) {
    pid_t child;
    char *const words[] = {"sh", "-c", "cat; echo end; echo wrong >&2", NULL};
    put("in", "input\n");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    DO(posix_spawn_file_actions_addopen(&actions, 0, P("in"), O_RDONLY, 0));
    DO(posix_spawn_file_actions_addopen(&actions, 1, P("spawned"), O_CREAT | O_WRONLY | O_TRUNC, 0644));
    DO(posix_spawn_file_actions_adddup2(&actions, 1, 2));
    DO(posix_spawnp(&child, "sh", &actions, NULL, words, environ));
    run("spawned", child);
    show("spawned");
    DO(posix_spawn(&child, "/bin/sh", &actions, NULL, words, environ));
    run("again", child);
    show("spawned");
    posix_spawn_file_actions_destroy(&actions);
    posix_spawn_file_actions_init(&actions);
    DO(posix_spawn_file_actions_addopen(&actions, 0, P("missing"), O_RDONLY, 0));
    DO(posix_spawn(&child, "/bin/sh", &actions, NULL, words, environ));
    posix_spawn_file_actions_destroy(&actions);
    posix_spawn_file_actions_init(&actions);
    DO(mkdir(P("place"), 0755));
    DO(posix_spawn_file_actions_addchdir_np(&actions, P("place")));
    DO(posix_spawn_file_actions_addopen(&actions, 1, "relative", O_CREAT | O_WRONLY, 0600));
    DO(posix_spawn(&child, "/bin/sh", &actions, NULL, (char *const[]){"sh", "-c", "basename \"$PWD\"; ls", NULL}, environ));
    run("elsewhere", child);
    posix_spawn_file_actions_destroy(&actions);
    show("place/relative");
    put("script", "#!/bin/sh\nexit $1\n");
    DO(chmod(P("script"), 0755));
    DO(posix_spawn(&child, P("script"), NULL, NULL, (char *const[]){"script", "3", NULL}, environ));
    run("script", child);
    setenv("PATH", P("."), 1);
    DO(posix_spawnp(&child, "script", NULL, NULL, (char *const[]){"script", "4", NULL}, environ));
    run("script by name", child);
    DO(posix_spawnp(&child, "scripts", NULL, NULL, (char *const[]){"script", "4", NULL}, environ));
    if (!(child = fork())) { execlp("script", "script", "5", NULL); _exit(99); }
    run("execlp", child);
    if (!(child = fork())) { execvp("script", (char *const[]){"script", "6", NULL}); _exit(99); }
    run("execvp", child);
    setenv("PATH", "/usr/bin:/bin", 1);
    if (!(child = fork())) { execl(P("script"), "script", "7", NULL); _exit(99); }
    run("execl", child);
    if (!(child = fork())) { execl("/bin/sh", "sh", "-c", "exit $7", "0", "1", "2", "3", "4", "5", "6", "8", NULL); _exit(99); }
    run("execl of nine", child);
    if (!(child = fork())) { execle("/bin/sh", "sh", "-c", "exit $X", NULL, (char *const[]){"X=9", NULL}); _exit(99); }
    run("execle", child);
    if (!(child = fork())) { execv(P("missing"), (char *const[]){"x", NULL}); _exit(errno == ENOENT ? 10 : 99); }
    run("execv of nothing", child);
    if (!(child = fork())) { fexecve(open(P("script"), O_RDONLY), (char *const[]){"script", "11", NULL}, environ); _exit(99); }
    run("fexecve", child);
    if (!(child = vfork())) { execve(P("script"), (char *const[]){"script", "12", NULL}, environ); _exit(99); }
    run("vfork and execve", child);
    DO(WEXITSTATUS(system("exec 9> \"$DIR/lock\"; flock 9 || exit 1; flock -n \"$DIR/lock\" true; exit $((40 + $?))")));
    DO(WEXITSTATUS(system("( flock 8; flock -n \"$DIR/lock\" true && exit 7; exit 8 ) 8> \"$DIR/lock\"; r=$?; flock -n \"$DIR/lock\" true && exit $r")));
    DO(system("rm -r \"$DIR/in\" \"$DIR/spawned\" \"$DIR/place\" \"$DIR/script\" \"$DIR/lock\""));
}

static volatile int told;
static void tell(union sigval value) { __atomic_store_n(&told, value.sival_int, __ATOMIC_SEQ_CST); }

static void asynchronous(void) {
    char b[16] = "";
    int fd = open(P("aio"), O_CREAT | O_RDWR, 0644), other = open("/dev/null", O_WRONLY);
    struct aiocb c = {.aio_fildes = fd, .aio_buf = "asynchronous", .aio_nbytes = 12};
    c.aio_sigevent.sigev_notify = SIGEV_THREAD;
    c.aio_sigevent.sigev_notify_function = tell;
    c.aio_sigevent.sigev_value.sival_int = 5;
    DO(aio_write(&c));
    while (!__atomic_load_n(&told, __ATOMIC_SEQ_CST)) usleep(1000);
    DO(told);
    DO(aio_return(&c));
    struct aiocb d = {.aio_fildes = fd, .aio_buf = b, .aio_nbytes = 5, .aio_offset = 2, .aio_lio_opcode = LIO_READ};
    struct aiocb e = {.aio_fildes = other, .aio_buf = "other", .aio_nbytes = 5, .aio_lio_opcode = LIO_WRITE};
    struct aiocb *both[] = {&d, NULL, &e};
    DO(lio_listio(LIO_WAIT, both, 3, NULL));
    DO(aio_return(&d));
    DO(aio_return(&e));
    fprintf(out, "%s\n", b);
    struct aiocb f = {.aio_fildes = fd};
    DO(aio_fsync(O_SYNC, &f));
    while (aio_error(&f) == EINPROGRESS) usleep(1000);
    DO(aio_return(&f));
    DO(aio_cancel(fd, NULL));
    close(fd);
    close(other);
    DO(unlink(P("aio")));
}

static void mapped(void) {
    put("m", "0123456789");
    int fd = open(P("m"), O_RDWR);
    DO(ftruncate(fd, 3 * 4096));
    char *r = mmap(NULL, 3 * 4096, PROT_READ, MAP_SHARED, fd, 0);
    DO(pwrite(fd, "written", 7, 4096));
    fprintf(out, "%.7s\n", r + 4096);
    DO(mprotect(r, 4096, PROT_READ | PROT_WRITE));
    memcpy(r, "changed", 7);
    DO(msync(r, 4096, MS_SYNC));
    char b[16] = "";
    DO(pread(fd, b, 10, 0));
    text("mapped", b);
    DO(ftruncate(fd, 5));
    DO(ftruncate(fd, 3 * 4096));
    fprintf(out, "%d %d\n", r[6], r[4096]);
    DO(mprotect(r, 4096, PROT_NONE));
    DO(munmap(r, 3 * 4096));
    char *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    p[0] = '!';
    DO(madvise(p, 4096, MADV_DONTNEED));
    fprintf(out, "%.5s\n", p);
    munmap(p, 4096);
    char *q = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    DO(close(fd));
    if (!fork()) { memcpy(q, "child", 5); _exit(0); }
    wait(NULL);
    fprintf(out, "%.5s\n", q);
    DO((q = mremap(q, 4096, 8192, MREMAP_MAYMOVE)) != MAP_FAILED);
    memcpy(q + 4096, "second page", 11);
    DO((q = mremap(q, 8192, 4096, 0)) != MAP_FAILED);
    DO(mmap(q, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == q);
    DO(munmap(q, 4096));
    fd = open(P("m"), O_RDONLY);
    memset(b, 0, sizeof b);
    DO(pread(fd, b, 5, 0));
    text("first", b);
    DO(pread(fd, b, 11, 4096));
    text("second", b);
    q = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    DO(mprotect(q, 4096, PROT_READ | PROT_WRITE));
    DO(munmap(q, 4096));
    DO(close(fd));
    DO(unlink(P("m")));
}

static void faults(void) {
    char b[16];
    struct stat s;
    put("bad", "0123456789");
    int fd = open(P("bad"), O_RDWR);
    volatile long bogus = 4096;
    char *page = mmap(0, 5 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(page + 8192, 4096, PROT_NONE);
    DO(pwrite(fd, page, 5 * 4096, 1 << 20) < 5 * 4096);
    mprotect(page + 8192, 4096, PROT_READ);
    DO(ftruncate(fd, 5 * 4096));
    DO(pread(fd, page, 5 * 4096, 0) < 5 * 4096);
    munmap(page, 5 * 4096);
    DO(ftruncate(fd, 10));
    struct iovec v = {(void *)bogus, 4};
    DO(readv(fd, (void *)bogus, 1));
    DO(readv(fd, &v, 1));
    DO(writev(fd, &v, 1));
    DO(lstat(P("bad"), (void *)bogus));
    DO(fstatat(AT_FDCWD, P("bad"), (void *)bogus, 0));
    DO(statx(AT_FDCWD, P("bad"), 0, STATX_BASIC_STATS, (void *)bogus));
    DO(fstatfs(fd, (void *)bogus));
    DO(fcntl(fd, F_SETLK, (void *)bogus));
    DO(fcntl(fd, F_GETLK, (void *)bogus));
    DO(ioctl(fd, FIONREAD, (void *)bogus));
    DO(readlink(P("none"), (void *)bogus, 9));
    DO(symlink("bad", P("l")));
    DO(readlink(P("l"), (void *)bogus, 9));
    DO(getxattr(P("bad"), (void *)bogus, b, 9));
    DO(setxattr(P("bad"), "user.x", (void *)bogus, 9, 0));
    DO(futimens(fd, (void *)bogus));
    DO(sendfile(fd, fd, (void *)bogus, 1));
    DO(link(P("bad"), (void *)bogus));
    DO(link((void *)bogus, P("x")));
    DO(renameat2(AT_FDCWD, P("bad"), AT_FDCWD, (void *)bogus, 0));
    DO(chdir((void *)bogus));
    DO(truncate((void *)bogus, 1));
    DO(access((void *)bogus, 0));
    DO(chmod((void *)bogus, 0));
    DO(statfs((void *)bogus, (void *)&s));
    DO(execve((void *)bogus, NULL, NULL));
    DO(syscall(SYS_getcwd, (void *)bogus, 4096L) < 0);
    DO(close(fd));
    DO(unlink(P("l")));
    DO(unlink(P("bad")));
}

int main(int argc, char **argv) {
    if (begin(argc, argv)) return 2;
    error_numbers();
    wide_forms();
    by_number();
    printed();
    temporary();
    trees();
    programs();
    asynchronous();
    mapped();
    faults();
    list(".");
    fprintf(out, "end\n");
    return 0;
}

/* A table of operations on files. Run in a directory, it prints what each of them came to; run in another directory of
   another file system, it has to print the same. Nothing that may differ (inode numbers, times) is printed. */
#define _GNU_SOURCE
#include <aio.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

static char root[PATH_MAX];
static FILE *out;

static void say(const char *what, long value) {
    int error = errno;
    if (value < 0) fprintf(out, "%s: %ld %s\n", what, value, strerrorname_np(error));
    else fprintf(out, "%s: %ld\n", what, value);
    errno = 0;
}
#define DO(call) (errno = 0, say(#call, (long)(call)))

static void text(const char *what, const char *value) { fprintf(out, "%s: %s\n", what, value ? value : "(null)"); }

static char *P(const char *name) {
    static char ring[16][PATH_MAX * 2];
    static int next;
    char *path = ring[next++ % 16];
    snprintf(path, sizeof ring[0], "%s/%s", root, name);
    return path;
}

static void put(const char *name, const char *bytes) {
    int fd = open(P(name), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (write(fd, bytes, strlen(bytes)) < 0) perror(name);
    close(fd);
}

static void show(const char *name) {
    char buffer[4096];
    int fd = open(P(name), O_RDONLY);
    long count = fd < 0 ? -1 : read(fd, buffer, sizeof buffer - 1);
    if (fd >= 0) close(fd);
    if (count < 0) { fprintf(out, "content of %s: %s\n", name, strerrorname_np(errno)); return; }
    fprintf(out, "content of %s: %ld ", name, count);
    for (long i = 0; i < count; i++) fprintf(out, buffer[i] >= ' ' && buffer[i] < 127 ? "%c" : "\\%02x", buffer[i] & 255);
    fprintf(out, "\n");
}

static void meta(const char *name) {
    struct stat s, l;
    errno = 0;
    if (stat(P(name), &s)) fprintf(out, "stat %s: %s\n", name, strerrorname_np(errno));
    else if (S_ISDIR(s.st_mode)) fprintf(out, "stat %s: %o links %ld\n", name, s.st_mode, (long)s.st_nlink);
    else fprintf(out, "stat %s: %o links %ld size %ld\n", name, s.st_mode, (long)s.st_nlink, (long)s.st_size);
    if (!lstat(P(name), &l)) fprintf(out, "lstat %s: %o\n", name, l.st_mode);
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void list(const char *name) {
    char *names[512];
    int count = 0;
    DIR *dir = opendir(P(name));
    if (!dir) { fprintf(out, "list %s: %s\n", name, strerrorname_np(errno)); return; }
    struct dirent *entry;
    while ((entry = readdir(dir))) {
        char line[300];
        snprintf(line, sizeof line, "%s(%d)", entry->d_name, entry->d_type);
        names[count++] = strdup(line);
    }
    closedir(dir);
    qsort(names, count, sizeof *names, by_text);
    fprintf(out, "list %s:", name);
    for (int i = 0; i < count; i++) { fprintf(out, " %s", names[i]); free(names[i]); }
    fprintf(out, "\n");
}

static void opening(void) {
    int fd;
    DO(open(P("none"), O_RDONLY));
    DO(open(P("none/deeper"), O_CREAT | O_WRONLY, 0644));
    DO((fd = open(P("f"), O_CREAT | O_EXCL | O_RDWR, 0640)) >= 0);
    DO(open(P("f"), O_CREAT | O_EXCL | O_RDWR, 0640));
    DO(write(fd, "hello", 5));
    DO(lseek(fd, 0, SEEK_CUR));
    DO(close(fd));
    DO(close(fd));
    DO(open(P("f/x"), O_RDONLY));
    DO(open(P("f"), O_RDONLY | O_DIRECTORY));
    DO(open(P(""), O_WRONLY));
    DO(open(P("."), O_RDWR | O_CREAT, 0600));
    DO(open(P("new/"), O_RDWR | O_CREAT, 0600));
    meta("f");
    DO((fd = open(P("f"), O_RDONLY)) >= 0);
    DO(write(fd, "x", 1));
    DO(ftruncate(fd, 1));
    DO(close(fd));
    DO((fd = open(P("f"), O_WRONLY | O_TRUNC)) >= 0);
    char c;
    DO(read(fd, &c, 1));
    DO(close(fd));
    meta("f");
    DO((fd = creat(P("c"), 0600)) >= 0);
    DO(close(fd));
    umask(027);
    DO((fd = open(P("masked"), O_CREAT | O_WRONLY, 0777)) >= 0);
    umask(022);
    DO(close(fd));
    meta("masked");
    char longname[300];
    memset(longname, 'n', sizeof longname);
    longname[255] = 0;
    DO((fd = open(P(longname), O_CREAT | O_WRONLY, 0644)) >= 0);
    DO(close(fd));
    DO(unlink(P(longname)));
    longname[255] = 'n';
    longname[256] = 0;
    DO(open(P(longname), O_CREAT | O_WRONLY, 0644));
    static char deep[PATH_MAX * 2];
    memset(deep, 0, sizeof deep);
    strcpy(deep, root);
    while (strlen(deep) < PATH_MAX - 3) strcat(deep, "/.");
    DO((fd = open(deep, O_RDONLY)) >= 0);
    DO(close(fd));
    while (strlen(deep) < PATH_MAX) strcat(deep, "/.");
    DO(open(deep, O_RDONLY));
    DO(open("", O_RDONLY));
    DO(unlink(P("c")));
    DO(unlink(P("masked")));
}

static void reading_and_writing(void) {
    char b[64];
    int fd = open(P("rw"), O_CREAT | O_RDWR | O_TRUNC, 0644);
    DO(write(fd, "0123456789", 10));
    DO(pwrite(fd, "ab", 2, 4));
    DO(lseek(fd, -3, SEEK_END));
    DO(read(fd, b, 64));
    DO(read(fd, b, 64));
    DO(pread(fd, b, 4, 3));
    fprintf(out, "%.4s\n", b);
    DO(pread(fd, b, 4, -1));
    DO(lseek(fd, -1, SEEK_SET));
    DO(lseek(fd, 0, 99));
    DO(lseek(fd, 20, SEEK_SET));
    DO(write(fd, "end", 3));
    DO(lseek(fd, 0, SEEK_END));
    DO(lseek(fd, 0, SEEK_DATA));
    DO(lseek(fd, 100, SEEK_DATA));
    struct iovec v[3] = {{"one", 3}, {"", 0}, {"three", 5}};
    DO(lseek(fd, 0, SEEK_SET));
    DO(writev(fd, v, 3));
    DO(pwritev(fd, v, 3, 30));
    DO(pwritev2(fd, v, 3, -1, 0));
    DO(lseek(fd, 0, SEEK_CUR));
    DO(writev(fd, v, -1));
    char x[4] = "", y[8] = "";
    struct iovec r[2] = {{x, 3}, {y, 7}};
    DO(preadv(fd, r, 2, 0));
    fprintf(out, "%s %s\n", x, y);
    DO(preadv2(fd, r, 2, 30, 0));
    fprintf(out, "%s %s\n", x, y);
    DO(lseek(fd, 0, SEEK_SET));
    DO(readv(fd, r, 2));
    DO(ftruncate(fd, 5));
    DO(ftruncate(fd, 12));
    DO(ftruncate(fd, -1));
    DO(fsync(fd));
    DO(fdatasync(fd));
    DO(fallocate(fd, 0, 0, 50));
    DO(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 100));
    DO(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1, 2));
    DO(posix_fallocate(fd, 0, 60));
    DO(posix_fallocate(fd, 0, 0));
    DO(posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL));
    int left;
    DO(lseek(fd, 10, SEEK_SET));
    DO(isatty(fd));
    DO(ioctl(fd, FIONBIO, &(int){0}));
    (void)left;
    close(fd);
    meta("rw");
    show("rw");
    DO(truncate(P("rw"), 3));
    show("rw");
    DO(truncate(P("none"), 3));
    DO(truncate(P("."), 3));
    fd = open(P("app"), O_CREAT | O_WRONLY | O_APPEND, 0644);
    DO(write(fd, "a", 1));
    DO(lseek(fd, 0, SEEK_SET));
    DO(write(fd, "b", 1));
    DO(pwrite(fd, "c", 1, 0));
    DO(lseek(fd, 0, SEEK_CUR));
    DO(fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK));
    DO(fcntl(fd, F_SETFL, O_NONBLOCK));
    DO(fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK));
    DO(lseek(fd, 0, SEEK_SET));
    DO(write(fd, "X", 1));
    close(fd);
    show("app");
    DO(unlink(P("app")));
    DO(unlink(P("rw")));
}

static void bad_pointers(void) {
    struct stat s;
    put("bad", "x");
    int fd = open(P("bad"), O_RDWR);
    volatile long bogus = 8;
    DO(open((char *)bogus, O_RDONLY));
    DO(open((char *)-1L, O_RDONLY));
    DO(open(NULL, O_RDONLY));
    DO(stat((char *)bogus, &s));
    DO(stat(P("bad"), (struct stat *)bogus));
    DO(fstat(fd, (struct stat *)bogus));
    DO(read(fd, (void *)bogus, 1));
    DO(write(fd, (void *)bogus, 1));
    DO(syscall(SYS_getdents64, fd, (void *)bogus, 64) < 0);
    DO(rename((char *)bogus, P("x")));
    DO(rename(P("bad"), (char *)bogus));
    DO(symlink((char *)bogus, P("x")));
    DO(readlink((char *)bogus, (char *)&s, sizeof s));
    DO(unlink((char *)bogus));
    DO(mkdir((char *)bogus, 0755));
    DO(utimensat(AT_FDCWD, P("bad"), (void *)bogus, 0));
    DO(statfs(P("bad"), (void *)bogus));
    char *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(page + 4096, 4096, PROT_NONE);
    memset(page, 'p', 4096);
    DO(open(page + 4000, O_RDONLY));
    DO(write(fd, page + 4095, 1));
    DO(write(fd, page + 4095, 2) > 1);
    munmap(page, 8192);
    close(fd);
    DO(unlink(P("bad")));
}

static void names(void) {
    char b[PATH_MAX];
    put("a", "aa");
    DO(mkdir(P("d"), 0755));
    DO(mkdir(P("d"), 0755));
    DO(mkdir(P("."), 0755));
    DO(mkdir(P("no/d"), 0755));
    DO(mkdir(P("a/d"), 0755));
    DO(mkdir(P("d/e/"), 0700));
    DO(rmdir(P("d")));
    DO(rmdir(P("a")));
    DO(rmdir(P("d/.")));
    DO(unlink(P("d")));
    DO(unlink(P("none")));
    DO(unlink(P("a/")));
    DO(link(P("a"), P("d/b")));
    DO(link(P("a"), P("d/b")));
    DO(link(P("d"), P("dd")));
    DO(link(P("none"), P("dd")));
    meta("a");
    DO(symlink("a", P("s")));
    DO(symlink("a", P("s")));
    DO(symlink("", P("s2")));
    DO(symlink("nowhere", P("dangling")));
    DO(symlink("loop", P("loop")));
    DO(symlink(P("d"), P("abs")));
    DO(symlink("/etc/hostname", P("out")));
    meta("s");
    meta("dangling");
    meta("loop");
    meta("abs/b");
    long n;
    DO(n = readlink(P("s"), b, sizeof b));
    fprintf(out, "%.*s\n", (int)n, b);
    DO(readlink(P("s"), b, 0));
    DO(readlink(P("a"), b, sizeof b));
    DO(n = readlink(P("out"), b, 4));
    fprintf(out, "%.4s\n", b);
    DO(access(P("out"), R_OK));
    show("s");
    DO(open(P("s"), O_RDONLY | O_NOFOLLOW));
    DO(open(P("loop"), O_RDONLY));
    DO(open(P("dangling"), O_WRONLY | O_CREAT | O_EXCL, 0644));
    put("dangling", "made");
    show("nowhere");
    DO(rename(P("a"), P("z")));
    DO(rename(P("a"), P("z")));
    DO(rename(P("z"), P("d")));
    DO(rename(P("d"), P("z")));
    DO(rename(P("d"), P("d/e/f")));
    DO(rename(P("z"), P("d/b")));
    DO(rename(P("z"), P("d/b2")));
    DO(rename(P("d/b2"), P("a/")));
    DO(rename(P("d"), P("d3/")));
    DO(rename(P("d3"), P("d")));
    put("one", "1");
    put("two", "2");
    DO(renameat2(AT_FDCWD, P("one"), AT_FDCWD, P("two"), RENAME_NOREPLACE));
    DO(renameat2(AT_FDCWD, P("one"), AT_FDCWD, P("two"), RENAME_EXCHANGE));
    show("one");
    DO(renameat2(AT_FDCWD, P("one"), AT_FDCWD, P("two"), 99));
    list(".");
    list("d");
    list("abs");
    list("one");
    list("none");
    DO(remove(P("one")));
    DO(remove(P("d/e")));
    DO(remove(P("d")));
    DO(mkfifo(P("fifo"), 0644));
    DO(mkfifo(P("fifo"), 0644));
    DO(mknod(P("plain"), S_IFREG | 0600, 0));
    meta("fifo");
    meta("plain");
    DO(unlink(P("fifo")));
    DO(unlink(P("plain")));
    DO(access(P("two"), F_OK));
    DO(access(P("two"), 99));
    DO(access(P("none"), F_OK));
    DO(faccessat(AT_FDCWD, P("two"), R_OK | W_OK, AT_EACCESS));
    for (const char *const *name = (const char *const[]){"two", "s", "dangling", "loop", "abs", "out", "nowhere", "d/b", "d/b2", 0}; *name; name++)
        DO(unlink(P(*name)));
    DO(rmdir(P("d")));
    list(".");
}

static void at_calls(void) {
    struct stat s;
    struct statx x;
    int dir, fd;
    DO(mkdir(P("at"), 0755));
    DO((dir = open(P("at"), O_RDONLY | O_DIRECTORY)) >= 0);
    DO(mkdirat(dir, "sub", 0750));
    DO((fd = openat(dir, "sub/f", O_CREAT | O_RDWR, 0604)) >= 0);
    DO(write(fd, "12345", 5));
    DO(fstatat(dir, "sub/f", &s, 0));
    fprintf(out, "%o %ld\n", s.st_mode, (long)s.st_size);
    DO(fstatat(fd, "", &s, AT_EMPTY_PATH));
    fprintf(out, "%o %ld\n", s.st_mode, (long)s.st_size);
    DO(fstatat(fd, "x", &s, 0));
    DO(fstatat(dir, "", &s, 0));
    DO(fstatat(dir, "..", &s, 0));
    DO(statx(dir, "sub/f", 0, STATX_BASIC_STATS, &x));
    fprintf(out, "%o %lld %u\n", x.stx_mode, (long long)x.stx_size, x.stx_nlink);
    DO(symlinkat("sub", dir, "link"));
    DO(linkat(dir, "sub/f", dir, "hard", 0));
    DO(linkat(dir, "link", dir, "link2", 0));
    DO(renameat(dir, "hard", dir, "sub/h"));
    char b[16];
    DO(readlinkat(dir, "link2", b, 16));
    DO(unlinkat(dir, "link", AT_REMOVEDIR));
    DO(unlinkat(dir, "link", 0));
    DO(unlinkat(dir, "link2", 0));
    DO(unlinkat(dir, "sub", AT_REMOVEDIR));
    DO(faccessat(dir, "sub/f", R_OK, 0));
    DO(fchmodat(dir, "sub/f", 0600, 0));
    DO(fchownat(dir, "sub/f", -1, -1, 0));
    DO(read(dir, b, 1));
    DO(write(dir, b, 1));
    DO(ftruncate(dir, 0));
    DO(fsync(dir));
    DO(openat(fd, "x", O_RDONLY));
    DO(openat(-77, "x", O_RDONLY));
    /* An open directory stays itself when it is renamed. */
    DO(rename(P("at"), P("at2")));
    DO(fstatat(dir, "sub/f", &s, 0));
    DO(unlinkat(dir, "sub/f", 0));
    DO(unlinkat(dir, "sub/h", 0));
    /* An unlinked file lives on. */
    DO(fstat(fd, &s));
    fprintf(out, "links %ld size %ld\n", (long)s.st_nlink, (long)s.st_size);
    DO(pread(fd, b, 16, 0));
    DO(pwrite(fd, "67", 2, 5));
    DO(fchmod(fd, 0640));
    DO(fstat(fd, &s));
    fprintf(out, "%o size %ld\n", s.st_mode, (long)s.st_size);
    DO(close(fd));
    DO(unlinkat(dir, "sub", AT_REMOVEDIR));
    DO(close(dir));
    DO(rmdir(P("at2")));
    DO((fd = open(P("."), O_PATH)) >= 0);
    DO(read(fd, b, 1));
    DO(fstat(fd, &s));
    DO(close(fd));
}

static void attributes(void) {
    struct stat s;
    struct timespec t[2] = {{1000000000, 123456789}, {1100000000, 987654321}};
    put("t", "time");
    DO(utimensat(AT_FDCWD, P("t"), t, 0));
    DO(stat(P("t"), &s));
    fprintf(out, "%ld.%09ld %ld.%09ld\n", (long)s.st_atim.tv_sec, s.st_atim.tv_nsec, (long)s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
    t[0].tv_nsec = UTIME_OMIT;
    t[1].tv_sec = -5;
    int fd = open(P("t"), O_RDWR);
    DO(futimens(fd, t));
    DO(fstat(fd, &s));
    fprintf(out, "%ld.%09ld %ld.%09ld\n", (long)s.st_atim.tv_sec, s.st_atim.tv_nsec, (long)s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
    t[0].tv_nsec = 2000000000;
    DO(futimens(fd, t));
    struct timeval v[2] = {{1200000000, 5}, {1300000000, 6}};
    DO(utimes(P("t"), v));
    DO(stat(P("t"), &s));
    fprintf(out, "%ld %ld\n", s.st_atim.tv_nsec, s.st_mtim.tv_nsec);
    DO(utime(P("t"), &(struct utimbuf){7, 8}));
    DO(stat(P("t"), &s));
    fprintf(out, "%ld %ld\n", (long)s.st_atime, (long)s.st_mtime);
    DO(utime(P("t"), NULL));
    DO(stat(P("t"), &s));
    DO(s.st_mtime > 1000000);
    DO(symlink("t", P("tl")));
    t[0] = t[1] = (struct timespec){5, 0};
    DO(utimensat(AT_FDCWD, P("tl"), t, AT_SYMLINK_NOFOLLOW));
    DO(lstat(P("tl"), &s));
    fprintf(out, "%ld\n", (long)s.st_mtime);
    DO(chmod(P("t"), 04755));
    meta("t");
    DO(fchmod(fd, 0644));
    DO(chmod(P("none"), 0644));
    DO(chown(P("t"), -1, -1));
    DO(fchown(fd, getuid(), getgid()));
    DO(lchown(P("tl"), -1, getgid()));
    char b[64];
    DO(setxattr(P("t"), "user.one", "value", 5, 0));
    DO(setxattr(P("t"), "user.one", "value", 5, XATTR_CREATE));
    DO(setxattr(P("t"), "user.two", "v", 1, XATTR_REPLACE));
    DO(fsetxattr(fd, "user.two", "", 0, 0));
    DO(getxattr(P("t"), "user.one", b, 64));
    DO(getxattr(P("t"), "user.one", b, 3));
    DO(getxattr(P("t"), "user.one", b, 0));
    DO(fgetxattr(fd, "user.three", b, 64));
    DO(listxattr(P("t"), b, 64));
    DO(listxattr(P("t"), b, 4));
    DO(removexattr(P("t"), "user.one"));
    DO(fremovexattr(fd, "user.one"));
    DO(flistxattr(fd, NULL, 0));
    struct statvfs f;
    struct statfs g;
    DO(statvfs(P("t"), &f));
    DO(fstatvfs(fd, &f));
    DO(statfs(P("t"), &g));
    DO(fstatfs(fd, &g));
    DO(g.f_namelen);
    DO(statfs(P("none"), &g));
    DO(pathconf(P("t"), _PC_NAME_MAX));
    close(fd);
    DO(unlink(P("t")));
    DO(unlink(P("tl")));
}

static int only_even(const struct dirent *e) { return e->d_name[0] != '.' && (e->d_name[1] - '0') % 2 == 0; }
static int seen[8];
static int visit(const char *path, const struct stat *s, int kind, struct FTW *level) {
    (void)path; (void)s;
    seen[kind]++;
    seen[7] = level->level > seen[7] ? level->level : seen[7];
    return 0;
}

static void directories(void) {
    char name[32];
    DO(mkdir(P("many"), 0755));
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "many/n%d", i);
        put(name, "");
    }
    int fd = open(P("many"), O_RDONLY | O_DIRECTORY), total = 0;
    char buffer[2048];
    long count;
    while ((count = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0)
        for (long at = 0; at < count; at += ((struct dirent64 *)(buffer + at))->d_reclen) total++;
    DO(total);
    DO(lseek(fd, 0, SEEK_SET));
    DO(getdents64(fd, buffer, 4));
    DIR *dir = fdopendir(fd);
    DO(dirfd(dir) == fd);
    for (int i = 0; i < 100; i++) readdir(dir);
    long place = telldir(dir);
    char *after = strdup(readdir(dir)->d_name);
    for (int i = 0; i < 50; i++) readdir(dir);
    seekdir(dir, place);
    DO(strcmp(after, readdir(dir)->d_name));
    rewinddir(dir);
    total = 0;
    while (readdir(dir)) total++;
    DO(total);
    DO(closedir(dir));
    DO(close(fd));
    DO(fdopendir(-1) != NULL);
    struct dirent **found;
    DO(total = scandir(P("many"), &found, only_even, alphasort));
    text("first", found[0]->d_name);
    text("last", found[total - 1]->d_name);
    for (int i = 0; i < total; i++) free(found[i]);
    free(found);
    DO(scandir(P("none"), &found, NULL, NULL));
    DO(mkdir(P("many/sub"), 0755));
    put("many/sub/x", "");
    DO(symlink("sub", P("many/link")));
    DO(nftw(P("many"), visit, 10, FTW_PHYS | FTW_DEPTH));
    for (int i = 0; i < 8; i++) fprintf(out, "%d ", seen[i]);
    fprintf(out, "\n");
    glob_t g = {0};
    DO(glob(P("many/n1?"), 0, NULL, &g));
    DO(g.gl_pathc);
    text("glob", strrchr(g.gl_pathv[0], '/'));
    globfree(&g);
    DO(glob(P("many/q*"), 0, NULL, &g));
    char *real = realpath(P("many/link/../link/x"), NULL);
    text("realpath", real ? real + strlen(root) : "none");
    free(real);
    DO(realpath(P("many/link/y"), NULL) != NULL);
    char cwd[PATH_MAX], before[PATH_MAX];
    DO(getcwd(before, sizeof before) != NULL);
    DO(chdir(P("many/sub")));
    DO(getcwd(cwd, sizeof cwd) != NULL);
    text("cwd", cwd + strlen(root));
    DO(getcwd(cwd, 3) != NULL);
    DO(access("x", F_OK));
    DO(access("../n1", F_OK));
    fd = open("made-here", O_CREAT | O_WRONLY, 0644);
    DO(fd >= 0);
    close(fd);
    meta("many/sub/made-here");
    DO(chdir(".."));
    DO(getcwd(cwd, sizeof cwd) != NULL);
    text("cwd", cwd + strlen(root));
    DO(chdir("n1"));
    DO(chdir("none"));
    DO(system("test \"$(cat sub/x; ls sub | wc -l)\" = 2"));
    fd = open("..", O_RDONLY);
    DO(fchdir(fd));
    close(fd);
    DO(getcwd(cwd, sizeof cwd) != NULL);
    text("cwd", cwd + strlen(root));
    DO(chdir(before));
    DO(unlink(P("many/link")));
    DO(system("rm -r \"$DIR/many\""));
    list(".");
}

static void descriptors(void) {
    char b[16];
    struct stat s;
    put("dup", "0123456789");
    int fd = open(P("dup"), O_RDWR), two = dup(fd), three = fcntl(fd, F_DUPFD, 50), four = dup2(fd, 60);
    DO(read(fd, b, 2));
    DO(read(two, b, 2));
    DO(lseek(three, 0, SEEK_CUR));
    DO(lseek(four, 1, SEEK_CUR));
    DO(dup3(fd, 61, O_CLOEXEC));
    DO(fcntl(61, F_GETFD));
    DO(fcntl(four, F_GETFD));
    DO(dup2(fd, fd) == fd);
    DO(dup3(fd, fd, 0));
    DO(dup2(-1, 60));
    DO(close(fd));
    DO(read(two, b, 1));
    DO(fstat(four, &s));
    DO(close_range(60, 61, 0));
    DO(fstat(60, &s));
    DO(read(three, b, 1));
    int other = open("/dev/null", O_RDONLY);
    DO(dup2(other, three) == three);
    DO(read(three, b, 1));
    DO(close(three));
    DO(close(other));
    struct pollfd p = {two, POLLIN | POLLOUT, 0};
    DO(poll(&p, 1, 0));
    DO(p.revents);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(two, &set);
    DO(select(two + 1, &set, NULL, NULL, &(struct timeval){0, 0}));
    pid_t child = fork();
    if (!child) _exit(write(two, "XX", 2) == 2 ? 0 : 1);
    int status;
    waitpid(child, &status, 0);
    DO(status);
    DO(lseek(two, 0, SEEK_CUR));
    show("dup");
    struct flock l = {F_WRLCK, SEEK_SET, 0, 10, 0};
    DO(fcntl(two, F_SETLK, &l));
    child = fork();
    if (!child) {
        struct flock test = {F_WRLCK, SEEK_SET, 5, 1, 0};
        int again = open(P("dup"), O_RDWR), held = fcntl(again, F_GETLK, &test) || test.l_type == F_UNLCK;
        int taken = fcntl(again, F_SETLK, &test) == 0;
        _exit(held * 2 + taken);
    }
    waitpid(child, &status, 0);
    DO(WEXITSTATUS(status));
    l.l_type = F_UNLCK;
    DO(fcntl(two, F_SETLK, &l));
    DO(flock(two, LOCK_EX | LOCK_NB));
    int rival = open(P("dup"), O_RDWR);
    DO(flock(rival, LOCK_EX | LOCK_NB));
    DO(flock(two, LOCK_UN));
    DO(flock(rival, LOCK_SH | LOCK_NB));
    DO(lockf(rival, F_TEST, 0));
    close(rival);
    close(two);
    int low = open(P("dup"), O_RDONLY), next = open(P("dup"), O_RDONLY);
    DO(next - low);
    close(low);
    DO(open(P("dup"), O_RDONLY) == low);
    closefrom(low);
    DO(fstat(next, &s));
    DO(unlink(P("dup")));
}

static void copies(void) {
    put("from", "copy these bytes");
    int a = open(P("from"), O_RDWR), b = open(P("to"), O_CREAT | O_RDWR | O_TRUNC, 0644), pipes[2];
    off_t at = 5;
    DO(sendfile(b, a, &at, 5));
    DO(at);
    DO(lseek(a, 0, SEEK_CUR));
    DO(sendfile(b, a, NULL, 4));
    DO(lseek(a, 0, SEEK_CUR));
    off_t in = 0, to = 20;
    DO(copy_file_range(a, &in, b, &to, 100, 0));
    DO(copy_file_range(a, NULL, b, NULL, 100, 0));
    DO(copy_file_range(a, NULL, b, NULL, 100, 0));
    show("to");
    if (pipe(pipes)) return;
    DO(write(pipes[1], "through a pipe", 14));
    DO(splice(pipes[0], NULL, b, &(off_t){0}, 14, 0));
    DO(splice(a, &(off_t){0}, pipes[1], NULL, 4, 0));
    char buffer[64];
    DO(read(pipes[0], buffer, 64));
    close(pipes[0]);
    close(pipes[1]);
    show("to");
    struct aiocb c = {.aio_fildes = b, .aio_buf = "async", .aio_nbytes = 5, .aio_offset = 2};
    DO(aio_write(&c));
    const struct aiocb *const waiting[] = {&c};
    while (aio_error(&c) == EINPROGRESS) aio_suspend(waiting, 1, NULL);
    DO(aio_error(&c));
    DO(aio_return(&c));
    c.aio_buf = buffer;
    c.aio_lio_opcode = LIO_READ;
    struct aiocb *listed[] = {&c};
    DO(lio_listio(LIO_WAIT, listed, 1, NULL));
    DO(aio_return(&c));
    fprintf(out, "%.5s\n", buffer);
    close(a);
    close(b);
    DO(unlink(P("from")));
    DO(unlink(P("to")));
}

static void streams(void) {
    char line[128];
    FILE *f;
    DO((f = fopen(P("stream"), "w")) != NULL);
    DO(fprintf(f, "line %d\n", 1));
    DO(fputs("line two\n", f));
    DO(ftell(f));
    DO(fileno(f) >= 0);
    DO(fflush(f));
    meta("stream");
    DO(fseek(f, 5, SEEK_SET));
    DO(fputc('9', f));
    DO(fclose(f));
    show("stream");
    DO((f = fopen(P("stream"), "r")) != NULL);
    text("gets", fgets(line, sizeof line, f));
    DO(fputc('x', f));
    clearerr(f);
    text("gets", fgets(line, sizeof line, f));
    DO(fgets(line, sizeof line, f) != NULL);
    DO(feof(f));
    rewind(f);
    DO(fread(line, 1, 4, f));
    DO(ungetc('Q', f));
    DO(getc(f));
    DO(fseek(f, -4, SEEK_END));
    DO(fread(line, 1, 10, f));
    struct stat s;
    DO(fstat(fileno(f), &s));
    DO(s.st_size);
    DO(fclose(f));
    DO((f = fopen(P("stream"), "a+")) != NULL);
    DO(fputs("more\n", f));
    DO(fseek(f, 0, SEEK_SET));
    text("gets", fgets(line, sizeof line, f));
    DO(fclose(f));
    show("stream");
    DO(fopen(P("stream"), "wx") != NULL);
    DO(fopen(P("none/x"), "w") != NULL);
    DO(fopen(P("none"), "r") != NULL);
    DO(fopen(P("stream"), "q") != NULL);
    int fd = open(P("stream"), O_RDWR);
    DO(fdopen(-1, "r") != NULL);
    DO((f = fdopen(fd, "r+")) != NULL);
    DO(fscanf(f, "%s", line));
    text("word", line);
    DO(fclose(f));
    DO(close(fd));
    fflush(stdout);
    int keep = dup(1);
    DO(freopen(P("redirected"), "w", stdout) != NULL);
    printf("printed %d\n", 42);
    puts("put");
    DO(fflush(stdout));
    DO(dup2(keep, 1));
    close(keep);
    show("redirected");
    DO((f = fopen(P("big"), "w+")) != NULL);
    for (int i = 0; i < 100000; i++) fprintf(f, "%07d\n", i);
    DO(fseek(f, 8 * 77777, SEEK_SET));
    text("line", fgets(line, sizeof line, f));
    DO(fclose(f));
    meta("big");
    char template[PATH_MAX];
    strcpy(template, P("tmpXXXXXX"));
    DO((fd = mkstemp(template)) >= 0);
    DO(strstr(template, "XXXXXX") == NULL);
    DO(stat(template, &s));
    DO(s.st_mode);
    close(fd);
    unlink(template);
    strcpy(template, P("dirXXXXXX"));
    DO(mkdtemp(template) != NULL);
    DO(rmdir(template));
    strcpy(template, P("sufXXXXXX.txt"));
    DO((fd = mkstemps(template, 4)) >= 0);
    close(fd);
    unlink(template);
    strcpy(template, P("nothing"));
    DO(mkstemp(template));
    DO(remove(P("stream")));
    DO(remove(P("redirected")));
    DO(remove(P("big")));
}

static void memory(void) {
    put("map", "mapped content of a file");
    int fd = open(P("map"), O_RDWR);
    char *p = mmap(NULL, 24, PROT_READ, MAP_PRIVATE, fd, 0);
    DO(p != MAP_FAILED);
    fprintf(out, "%.24s\n", p);
    DO(munmap(p, 24));
    p = mmap(NULL, 24, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    DO(p != MAP_FAILED);
    memcpy(p, "MAPPED", 6);
    DO(msync(p, 24, MS_SYNC));
    show("map");
    DO(pwrite(fd, "CONTENT", 7, 7));
    fprintf(out, "%.24s\n", p);
    memcpy(p + 15, "OF", 2);
    DO(close(fd));
    DO(munmap(p, 24));
    show("map");
    fd = open(P("map"), O_RDONLY);
    DO(mmap(NULL, 24, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED);
    p = mmap(NULL, 24, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    p[0] = '!';
    DO(mmap(NULL, 0, PROT_READ, MAP_PRIVATE, fd, 0) != MAP_FAILED);
    DO(mmap(NULL, 24, PROT_READ, MAP_PRIVATE, fd, 5) != MAP_FAILED);
    munmap(p, 24);
    close(fd);
    show("map");
    fd = open(P("map"), O_WRONLY);
    DO(mmap(NULL, 24, PROT_READ, MAP_PRIVATE, fd, 0) != MAP_FAILED);
    close(fd);
    DO(unlink(P("map")));
}

static void numbers(void) {
    char b[PATH_MAX];
    struct stat s;
    int fd;
    DO((fd = syscall(SYS_openat, AT_FDCWD, P("raw"), O_CREAT | O_RDWR, 0644)) >= 0);
    DO(syscall(SYS_write, fd, "raw bytes", 9));
    DO(syscall(SYS_lseek, fd, 0, SEEK_SET));
    DO(syscall(SYS_read, fd, b, 100));
    DO(syscall(SYS_pread64, fd, b, 100, 4));
    DO(syscall(SYS_fstat, fd, &s));
    DO(s.st_size);
    DO(syscall(SYS_close, fd));
    DO(syscall(SYS_close, fd));
    DO(syscall(SYS_mkdirat, AT_FDCWD, P("rawdir"), 0755));
    DO(syscall(SYS_renameat2, AT_FDCWD, P("raw"), AT_FDCWD, P("rawdir/raw"), 0));
    DO(syscall(SYS_newfstatat, AT_FDCWD, P("rawdir/raw"), &s, 0));
    DO(syscall(SYS_unlinkat, AT_FDCWD, P("rawdir/raw"), 0));
    DO(syscall(SYS_unlinkat, AT_FDCWD, P("rawdir"), AT_REMOVEDIR));
    DO(syscall(SYS_openat, AT_FDCWD, P("raw"), O_RDONLY));
    DO(syscall(SYS_getpid) == getpid());
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    snprintf(root, sizeof root, "%s", argv[1]);
    setenv("DIR", root, 1);
    out = fopen(argv[2], "w");
    setvbuf(out, NULL, _IOLBF, 0);
    umask(022);
    opening();
    reading_and_writing();
    bad_pointers();
    names();
    at_calls();
    attributes();
    directories();
    descriptors();
    copies();
    streams();
    memory();
    numbers();
    list(".");
    fprintf(out, "end\n");
    return 0;
}

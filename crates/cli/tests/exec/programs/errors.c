/* Rare errors, call by call. */
#include "table.h"
#include <linux/openat2.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

static void locks(int fd, int reader) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    DO(fcntl(fd, F_GETLK, &lock));
    fprintf(out, "type %d\n", lock.l_type);
    lock = (struct flock){.l_type = 99, .l_whence = SEEK_SET};
    DO(fcntl(fd, F_GETLK, &lock));
    DO(fcntl(fd, F_SETLK, &lock));
    lock = (struct flock){.l_type = F_UNLCK, .l_whence = SEEK_SET};
    DO(fcntl(fd, F_GETLK, &lock));
    lock = (struct flock){.l_type = F_RDLCK, .l_whence = 99};
    DO(fcntl(fd, F_GETLK, &lock));
    lock = (struct flock){.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = -5};
    DO(fcntl(fd, F_GETLK, &lock));
    lock = (struct flock){.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 5, .l_len = -10};
    DO(fcntl(fd, F_SETLK, &lock));
    lock = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET};
    DO(fcntl(reader, F_SETLK, &lock));
    DO(fcntl(reader, F_GETLK, &lock));
    DO(fcntl(fd, F_GETLK, (void *)8));
    DO(fcntl(fd, F_OFD_GETLK, &(struct flock){.l_type = F_WRLCK, .l_pid = 7}));
}

static void transfers(int fd, int reader, int dir) {
    loff_t at = -1, far = 1L << 40;
    int ends[2];
    char *memory = malloc(8192);
    if (pipe(ends)) return;
    DO(sendfile(fd, reader, &at, 10));
    DO(sendfile(reader, fd, NULL, 10));
    DO(sendfile(fd, ends[0], NULL, 10));
    DO(sendfile(fd, dir, NULL, 10));
    DO(sendfile(fd, reader, (void *)8, 10));
    DO(sendfile(fd, reader, &far, 10));
    DO(sync_file_range(fd, 0, 10, 7));
    DO(sync_file_range(fd, -1, 10, 7));
    DO(sync_file_range(fd, 0, -1, 7));
    DO(sync_file_range(fd, 0, 10, 64));
    DO(sync_file_range(ends[0], 0, 10, 7));
    DO(readahead(fd, 0, 100));
    DO(readahead(dir, 0, 100));
    int writer = open(P("a"), O_WRONLY);
    DO(readahead(writer, 0, 100));
    DO(close(writer));
    DO(copy_file_range(reader, NULL, dir, NULL, 10, 0));
    DO(copy_file_range(reader, NULL, fd, NULL, 10, 1));
    at = -1;
    DO(copy_file_range(reader, &at, fd, NULL, 10, 0));
    DO(posix_fadvise(fd, 0, 10, 99));
    DO(posix_fadvise(fd, 0, -1, POSIX_FADV_NORMAL));
    DO(fallocate(fd, 0, -1, 10));
    DO(fallocate(fd, 0, 0, 0));
    DO(fallocate(reader, 0, 0, 10));
    DO(fallocate(dir, 0, 0, 10));
    DO(ftruncate(fd, -1));
    DO(ftruncate(dir, 1));
    DO(pread(dir, memory, 10, 0));
    DO(read(dir, memory, 10));
    DO(lseek(fd, -1, SEEK_SET));
    DO(lseek(fd, 0, 99));
    close(ends[0]);
    close(ends[1]);
    free(memory);
}

static void memory(int fd, int reader, int dir) {
    DO(mmap(NULL, 0, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0);
    DO(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 1) == MAP_FAILED ? -1 : 0);
    DO(mmap(NULL, 4096, PROT_READ, 0, fd, 0) == MAP_FAILED ? -1 : 0);
    DO(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, reader, 0) == MAP_FAILED ? -1 : 0);
    DO(mmap(NULL, 4096, PROT_READ, MAP_SHARED, dir, 0) == MAP_FAILED ? -1 : 0);
    int writer = open(P("a"), O_WRONLY), path = open(P("a"), O_PATH);
    DO(mmap(NULL, 4096, PROT_READ, MAP_SHARED, writer, 0) == MAP_FAILED ? -1 : 0);
    DO(mmap(NULL, 4096, PROT_READ, MAP_SHARED, path, 0) == MAP_FAILED ? -1 : 0);
    close(writer);
    close(path);
}

static void synchronising(int fd) {
    ftruncate(fd, 12288);
    char *memory = mmap(NULL, 12288, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) { fprintf(out, "not mapped\n"); return; }
    memcpy(memory, "stored", 6);
    DO(msync(memory, 12288, MS_SYNC));
    DO(msync(memory, 12288, MS_ASYNC));
    DO(msync(memory, 100, MS_SYNC | MS_INVALIDATE));
    DO(msync(memory, 0, MS_SYNC));
    DO(msync(memory, 4096, 0));
    DO(msync(memory, 4096, MS_SYNC | MS_ASYNC));
    DO(msync(memory, 4096, 64));
    DO(msync(memory + 1, 4096, MS_SYNC));
    DO(munmap(memory + 4096, 4096));
    DO(msync(memory, 12288, MS_SYNC));
    DO(msync(memory, 12288, MS_ASYNC));
    DO(msync(memory + 4096, 4096, MS_SYNC));
    DO(msync(memory, 4096, MS_SYNC));
    DO(munmap(memory, 12288));
    DO(msync(memory, 4096, MS_SYNC));
    ftruncate(fd, 10);
}

/* Relative paths of up to the longest that the kernel takes. */
static void longest(void) {
    static char path[PATH_MAX + 8];
    char before[PATH_MAX];
    struct stat found;
    if (!getcwd(before, sizeof before) || chdir(P("sub"))) return;
    for (int length = PATH_MAX - 3; length <= PATH_MAX + 1; length++) {
        for (int i = 0; i < length; i++) path[i] = i % 2 ? '/' : '.';
        memcpy(path + length - 4, "../a", 4);
        if (length % 2) path[length - 5] = '/', path[length - 6] = '/';
        path[length] = 0;
        fprintf(out, "length %d\n", length);
        DO(stat(path, &found));
        DO(access(path, R_OK));
        int fd = open(path, O_RDWR);
        DO(fd >= 0 ? 0 : -1);
        if (fd >= 0) close(fd);
        DO(chmod(path, 0644));
        memcpy(path + length - 4, "/new", 4);
        DO(mkdir(path, 0755));
        DO(rmdir(path));
        DO(symlink("x", path));
        DO(unlink(path));
    }
    /* Of directories that are there. */
    int made = 0;
    memset(path, 0, sizeof path);
    for (; strlen(path) + 202 < PATH_MAX - 1; made++) {
        if (made) strcat(path, "/");
        memset(path + strlen(path), 'd', 200);
        if (mkdir(path, 0755)) break;
    }
    int end = strlen(path);
    fprintf(out, "%d directories\n", made);
    path[end] = '/';
    memset(path + end + 1, 'f', PATH_MAX - 2 - end);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0644);
    DO(fd >= 0 ? 0 : -1);
    DO(write(fd, "deep", 4));
    DO(close(fd));
    DO(stat(path, &found));
    DO(found.st_size);
    DO(rename(path, "shallow"));
    DO(link("shallow", path));
    DO(truncate(path, 2));
    DO(unlink(path));
    path[end] = 0;
    int dir = open(path, O_RDONLY | O_DIRECTORY);
    DO(dir >= 0 ? 0 : -1);
    DO(fchmod(dir, 0700));
    fd = openat(dir, "x", O_RDWR | O_CREAT, 0644);
    DO(fd >= 0 ? 0 : -1);
    DO(close(fd));
    DO(unlinkat(dir, "x", 0));
    DO(close(dir));
    DO(unlink("shallow"));
    for (; made > 0; made--) {
        path[made * 201 - 1] = 0;
        if (rmdir(path)) break;
    }
    fprintf(out, "%d left\n", made);
    if (chdir(before)) perror("chdir");
}

static void paths(int fd, int dir) {
    char buffer[64];
    DO(readlink(P("link"), buffer, sizeof buffer));
    DO(readlink(P("link"), buffer, 0));
    DO(readlink(P("link"), buffer, -1));
    DO(readlink(P("a"), buffer, sizeof buffer));
    DO(readlink(P("a/b"), buffer, sizeof buffer));
    DO(readlink("", buffer, sizeof buffer));
    DO(readlinkat(fd, "", buffer, sizeof buffer));
    int path = open(P("link"), O_PATH | O_NOFOLLOW);
    DO(readlinkat(path, "", buffer, sizeof buffer));
    close(path);
    DO(fchmodat(AT_FDCWD, P("a"), 0600, AT_SYMLINK_NOFOLLOW));
    DO(fchmodat(AT_FDCWD, P("a"), 0644, 99));
    DO(fchmodat(fd, "b", 0600, 0));
    DO(fchmodat(999, "b", 0600, 0));
    DO(fchmodat(AT_FDCWD, P("none"), 0600, 0));
    DO(pathconf(P("a"), _PC_LINK_MAX) > 0);
    DO(pathconf(P("a"), _PC_NAME_MAX));
    DO(pathconf(P("none"), _PC_NAME_MAX));
    DO(pathconf(P("a/b"), _PC_NAME_MAX));
    DO(pathconf(P("a"), 999));
    DO(pathconf("", _PC_NAME_MAX));
    DO(fpathconf(fd, _PC_PIPE_BUF));
    DO(fpathconf(fd, 999));
    DO(chroot(P("none")));
    DO(chroot(P("a")));
    DO(chroot(P("a/b")));
    path = open(P("a"), O_PATH);
    int value;
    DO(ioctl(path, FIONREAD, &value));
    DO(read(path, buffer, 1));
    DO(fchmod(path, 0600));
    DO(fsync(path));
    DO(ftruncate(path, 0));
    DO(flock(path, LOCK_SH));
    DO(fcntl(path, F_SETFL, 0));
    DO(fcntl(path, F_GETFL) & O_PATH);
    close(path);
    DO(ioctl(fd, 0x12345678, &value));
    DO(ioctl(dir, 0x12345678, &value));
}

static long opened(const char *path, unsigned long flags, unsigned long resolve, int at) {
    struct open_how how = {.flags = flags, .resolve = resolve};
    long fd;
    /* The kernel cannot tell whether `..` leads out while something is mounted or renamed anywhere. */
    do fd = syscall(SYS_openat2, at, path, &how, sizeof how);
    while (fd < 0 && errno == EAGAIN && strstr(path, ".."));
    if (fd >= 0) close(fd);
    return fd < 0 ? fd : 0;
}

static void resolving(int dir) {
    DO(opened("a", O_RDONLY, 0, dir));
    DO(opened("a", O_RDONLY, RESOLVE_BENEATH, dir));
    DO(opened("sub/../a", O_RDONLY, RESOLVE_BENEATH, dir));
    DO(opened("../a", O_RDONLY, RESOLVE_BENEATH, dir));
    DO(opened(P("a"), O_RDONLY, RESOLVE_BENEATH, dir));
    DO(opened("link", O_RDONLY, RESOLVE_NO_SYMLINKS, dir));
    DO(opened("link", O_RDONLY, RESOLVE_BENEATH, dir));
    DO(opened("sub/up", O_RDONLY, RESOLVE_BENEATH, dir));
    DO(opened("sub/absolute", O_RDONLY, RESOLVE_BENEATH, dir));
    DO(opened("link", O_RDONLY, RESOLVE_NO_MAGICLINKS, dir));
    DO(opened("a", O_RDONLY, RESOLVE_NO_XDEV, dir));
    DO(opened("/a", O_RDONLY, RESOLVE_IN_ROOT, dir));
    DO(opened("../../a", O_RDONLY, RESOLVE_IN_ROOT, dir));
    DO(opened("a", O_RDONLY, 1 << 20, dir));
    DO(opened("a", 1UL << 40, 0, dir));
    DO(opened("a", O_RDONLY, RESOLVE_BENEATH | RESOLVE_IN_ROOT, dir));
}

static void few(void) {
    struct rlimit limit, before;
    getrlimit(RLIMIT_NOFILE, &before);
    limit = before;
    int fd = open(P("a"), O_RDONLY), count = 0, copies[64];
    limit.rlim_cur = fd + 4;
    setrlimit(RLIMIT_NOFILE, &limit);
    while (count < 64 && (copies[count] = dup(fd)) >= 0) count++;
    fprintf(out, "%d copies, then %s\n", count, strerrorname_np(errno));
    DO(open(P("a"), O_RDONLY));
    DO(fcntl(fd, F_DUPFD, 0));
    DO(fcntl(fd, F_DUPFD, (long)limit.rlim_cur));
    DO(fcntl(fd, F_DUPFD, -1L));
    DO(dup2(fd, (int)limit.rlim_cur));
    DO(dup2(fd, -1));
    while (count > 0) close(copies[--count]);
    setrlimit(RLIMIT_NOFILE, &before);
    close(fd);
}

/* A program has every number up to its limit. */
static void all_numbers(void) {
    int limit = getdtablesize(), first = open(P("a"), O_RDONLY), last = first;
    int *copies = calloc(limit, sizeof *copies), count = 0;
    while (count < limit && (copies[count] = dup(first)) >= 0) last = copies[count++];
    int gaps = 0;
    for (int at = 1; at < count; at++)
        if (copies[at] > first + 64) gaps += copies[at] - copies[at - 1] - 1;
    fprintf(out, "all, then %s, %d gaps, the last is the limit's: %d\n", strerrorname_np(errno), gaps, last == limit - 1);
    while (count > 0) close(copies[--count]);
    close(first);
    free(copies);
}

/* Bytes at any address and offset, as on tmpfs, which takes the flag since Linux 6.6. */
static void direct(void) {
    int fd = open(P("direct"), O_RDWR | O_CREAT | O_DIRECT, 0644), plain = fd < 0 && errno == EINVAL;
    if (plain) fd = open(P("direct"), O_RDWR | O_CREAT, 0644);
    char *memory = aligned_alloc(4096, 8192);
    memset(memory, 'd', 8192);
    DO(pwrite(fd, memory, 4096, 0));
    DO(pwrite(fd, memory + 1, 100, 4096));
    DO(pread(fd, memory, 4096, 0));
    DO(pread(fd, memory + 3, 5, 7));
    DO(pread(fd, memory, 8192, 512));
    DO(lseek(fd, 0, SEEK_END));
    DO(plain || fcntl(fd, F_GETFL) & O_DIRECT ? 1 : 0);
    DO(fcntl(fd, F_SETFL, 0));
    DO(fcntl(fd, F_GETFL) & O_DIRECT);
    DO(plain ? 0 : fcntl(fd, F_SETFL, O_DIRECT));
    DO(plain || fcntl(fd, F_GETFL) & O_DIRECT ? 1 : 0);
    DO(write(fd, memory + 5, 11));
    close(fd);
    free(memory);
    DO(unlink(P("direct")));
}

int main(int argc, char **argv) {
    if (begin(argc, argv)) return 2;
    put("a", "0123456789");
    mkdir(P("sub"), 0755);
    symlink("a", P("link"));
    symlink("../a", P("sub/up"));
    symlink(P("a"), P("sub/absolute"));
    int fd = open(P("a"), O_RDWR), reader = open(P("a"), O_RDONLY), dir = open(root, O_RDONLY | O_DIRECTORY);
    locks(fd, reader);
    transfers(fd, reader, dir);
    memory(fd, reader, dir);
    synchronising(fd);
    longest();
    paths(fd, dir);
    resolving(dir);
    direct();
    few();
    all_numbers();
    fprintf(out, "end\n");
    return 0;
}

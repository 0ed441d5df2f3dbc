/* What the system calls of the Linux Test Project asked for, and did not get. */
#include "table.h"
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#define CREATED_QUERY 1028

static char *zeros(int len) {
    static char path[PATH_MAX + 8];
    memset(path, 'n', len);
    path[len] = 0;
    return path;
}

static void controls(int fd) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_CUR, .l_start = 3, .l_len = 7, .l_pid = 99};
    lseek(fd, 2, SEEK_SET);
    DO(fcntl(fd, F_GETLK, &lock));
    fprintf(out, "%d %d %ld %ld %d\n", lock.l_type, lock.l_whence, (long)lock.l_start, (long)lock.l_len, lock.l_pid);
    DO(fcntl(fd, F_GETLEASE));
    DO(fcntl(fd, F_SETLEASE, F_RDLCK));
    DO(fcntl(fd, F_SETLEASE, F_UNLCK));
    DO(fcntl(fd, CREATED_QUERY, 0));
    int made = open(P("made"), O_RDWR | O_CREAT, 0644), again = open(P("made"), O_RDWR | O_CREAT, 0644);
    DO(fcntl(made, CREATED_QUERY, 0));
    DO(fcntl(again, CREATED_QUERY, 0));
    DO(fcntl(made, F_GETFL) & ~(O_RDWR | 0100000));
    close(made);
    close(again);
    int path = open(P("a"), O_PATH), poll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    DO(epoll_ctl(poll, EPOLL_CTL_ADD, path, &event));
    close(path);
    close(poll);
}

static void transfers(int fd) {
    int ends[2], appends = open(P("appended"), O_RDWR | O_CREAT | O_APPEND, 0644);
    char *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pipe(ends)) return;
    DO(sendfile(-1, fd, NULL, 5));
    DO(sendfile(fd, -1, NULL, 5));
    DO(sendfile(appends, fd, (off_t *)page, 5));
    DO(write(ends[1], "0123456789", 10));
    DO(splice(ends[0], NULL, appends, NULL, 5, 0));
    DO(splice(-1, NULL, ends[1], NULL, 5, 0));
    DO(splice(ends[0], NULL, -1, NULL, 5, 0));
    DO(copy_file_range(-1, NULL, fd, NULL, 5, 0));
    DO(syscall(SYS_io_setup, 1, NULL));
    close(ends[0]);
    close(ends[1]);
    close(appends);
}

static void paths(int fd) {
    char buffer[64], before[PATH_MAX];
    struct stat found;
    if (!getcwd(before, sizeof before) || chdir(root)) return;
    DO(readlink("", buffer, sizeof buffer));
    DO(fchmodat(fd, "", 0644, 0));
    DO(fchmodat(fd, zeros(PATH_MAX), 0644, 0));
    DO(fchmodat(fd, "x", 0644, 0));
    DO(fstatat(-5, "x", &found, 0));
    DO(openat(-5, "x", O_RDONLY));
    int socket_ = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_un at = {.sun_family = AF_UNIX, .sun_path = "."};
    DO(bind(socket_, (struct sockaddr *)&at, sizeof at));
    strcpy(at.sun_path, "socket");
    DO(bind(socket_, (struct sockaddr *)&at, sizeof at));
    DO(bind(-1, (struct sockaddr *)&at, sizeof at));
    close(socket_);
    DO(pathconf(P("a"), _PC_ASYNC_IO));
    DO(pathconf(root, _PC_ASYNC_IO));
    DO(pathconf(P("a"), _PC_REC_XFER_ALIGN) > 0);
    DO(pathconf(P("a"), _PC_ALLOC_SIZE_MIN) > 0);
    DO(pathconf(P("a/b"), -1));
    DO(pathconf(P("a/b"), _PC_NAME_MAX));
    DO(linkat(-5, "x", AT_FDCWD, P("new"), 0));
    DO(linkat(0, "x", AT_FDCWD, P("new"), 0));
    DO(linkat(AT_FDCWD, P("a"), -5, "new", 0));
    DO(linkat(AT_FDCWD, P("a"), 0, "new", 0));
    DO(linkat(AT_FDCWD, P("a"), AT_FDCWD, P("new"), 1));
    DO(renameat(AT_FDCWD, P("a"), -5, "new"));
    DO(renameat(-5, "x", AT_FDCWD, P("new")));
    DO(rename("/none/none", P("new")));
    DO(link("/proc/none", P("new")));
    DO(link(P("a"), "/proc/none/new"));
    DO(rename(P("a"), "/proc/version"));
    if (chdir(before)) perror("chdir");
}

/* A directory that is open, and gone. */
static void removed(void) {
    struct stat found;
    mkdir(P("gone"), 0755);
    int dir = open(P("gone"), O_RDONLY | O_DIRECTORY);
    rmdir(P("gone"));
    DO(mkdirat(dir, "x", 0755));
    DO(symlinkat("y", dir, "x"));
    DO(openat(dir, "x", O_RDWR | O_CREAT, 0644));
    DO(openat(dir, "x", O_RDONLY));
    DO(linkat(AT_FDCWD, P("a"), dir, "x", 0));
    DO(linkat(dir, "x", AT_FDCWD, P("new"), 0));
    DO(renameat(AT_FDCWD, P("a"), dir, "x"));
    DO(unlinkat(dir, "x", 0));
    DO(unlinkat(dir, "x", AT_REMOVEDIR));
    DO(fstatat(dir, "x", &found, 0));
    DO(faccessat(dir, "x", R_OK, 0));
    DO(fchmodat(dir, "x", 0644, 0));
    DO(mknodat(dir, "x", S_IFIFO | 0644, 0));
    close(dir);
}

static void mappings(int fd) {
    DO(mmap(NULL, 4096, PROT_READ, 0, fd, 0) == MAP_FAILED ? -1 : 0);
    int writer = open(P("a"), O_WRONLY);
    DO(mmap(NULL, 4096, PROT_READ, 0, writer, 0) == MAP_FAILED ? -1 : 0);
    close(writer);
    ftruncate(fd, 16384);
    for (int page = 0; page < 4; page++) pwrite(fd, &"abcd"[page], 1, page * 4096);
    char *four = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *room = mmap(NULL, 16384, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    DO(mremap(four + 4096, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, room) == room);
    fprintf(out, "%c %c\n", room[0], four[8192]);
    room[1] = 'R';
    DO(msync(room, 4096, MS_SYNC));
    DO(mremap(room, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, four + 4096) == four + 4096);
    four[4098] = 'S';
    DO(msync(four, 16384, MS_SYNC));
    DO(mremap(four, 4096, 4096, MREMAP_FIXED, room) == MAP_FAILED ? -1 : 0);
    DO(mremap(four, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, room + 1) == MAP_FAILED ? -1 : 0);
    char read[4] = "";
    DO(pread(fd, read, 3, 4096));
    text("read", read);
    munmap(four, 16384);
    munmap(room, 16384);
    ftruncate(fd, 32768);
    pwrite(fd, "e", 1, 5 * 4096);
    pwrite(fd, "f", 1, 6 * 4096);
    char *one = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 5 * 4096);
    /* Neither unmaps it: it can grow as before. */
    DO(munmap(one - 1, 4097));
    DO(mmap(one - 1, 4097, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED ? -1 : 0);
    one = mremap(one, 4096, 8192, MREMAP_MAYMOVE);
    fprintf(out, "%c %c\n", one[0], one[4096]);
    munmap(one, 8192);
    ftruncate(fd, 10);
}

static void attributes(int fd) {
    char buffer[256] = "";
    DO(setxattr(P("a"), "security.forebay", "label", 5, 0));
    DO(getxattr(P("a"), "security.forebay", buffer, sizeof buffer));
    text("label", buffer);
    DO(fsetxattr(fd, "security.forebay", "x", 1, XATTR_CREATE));
    long len = flistxattr(fd, buffer, sizeof buffer);
    for (long at = 0; at < len; at += strlen(buffer + at) + 1)
        if (!strcmp(buffer + at, "security.forebay")) fprintf(out, "listed\n");
    DO(removexattr(P("a"), "security.forebay"));
    DO(getxattr(P("a"), "security.forebay", buffer, sizeof buffer));
}

static int visited;
static int count(const char *path, const struct stat *found, int kind, struct FTW *level) {
    visited++;
    return 0;
}

/* Says where it is called. */
static int beside(const char *path, const struct stat *found, int kind, struct FTW *level) {
    struct stat seen;
    fprintf(out, "%s %d: %s\n", path + level->base, kind, lstat(path + level->base, &seen) ? strerrorname_np(errno) : "there");
    return 0;
}

static void walks(void) {
    mkdir(P("tree"), 0755);
    mkdir(P("tree/sub"), 0755);
    put("tree/sub/file", "x");
    symlink("sub", P("tree/twin"));
    symlink("..", P("tree/sub/up"));
    symlink("file", P("tree/sub/again"));
    nftw(P("tree"), count, 8, 0);
    fprintf(out, "visited %d\n", visited);
    visited = 0;
    nftw(P("tree"), count, 8, FTW_PHYS);
    fprintf(out, "visited %d\n", visited);
    char before[PATH_MAX], after[PATH_MAX];
    if (!getcwd(before, sizeof before) || chdir(P("tree/sub"))) return;
    unlink("up");
    unlink("again");
    DO(nftw(".", beside, 8, FTW_PHYS | FTW_CHDIR));
    DO(nftw(P("tree/sub"), beside, 8, FTW_PHYS | FTW_CHDIR));
    fprintf(out, "%s\n", getcwd(after, sizeof after) && !strcmp(after, P("tree/sub")) ? "back" : after);
    if (chdir(before)) perror("chdir");
}

/* Large enough for the file that all this is printed to. */
#define LIMIT (1 << 20)

static void limits(void) {
    struct rlimit before, limit;
    getrlimit(RLIMIT_FSIZE, &before);
    limit = before;
    limit.rlim_cur = LIMIT;
    signal(SIGXFSZ, SIG_IGN);
    int fd = open(P("limited"), O_RDWR | O_CREAT, 0644);
    DO(setrlimit(RLIMIT_FSIZE, &limit));
    DO(pwrite(fd, zeros(200), 60, LIMIT - 60));
    DO(pwrite(fd, zeros(200), 60, LIMIT - 40));
    DO(pwrite(fd, "x", 1, LIMIT));
    DO(pwrite(fd, "x", 1, LIMIT + 1000));
    DO(ftruncate(fd, LIMIT + 100));
    DO(ftruncate(fd, LIMIT - 50));
    DO(truncate(P("limited"), LIMIT + 1));
    DO(truncate(P("limited"), LIMIT));
    DO(fallocate(fd, 0, 0, LIMIT + 200));
    lseek(fd, LIMIT - 5, SEEK_SET);
    DO(write(fd, zeros(200), 60));
    DO(lseek(fd, 0, SEEK_CUR));
    DO(write(fd, "x", 1));
    meta("limited");
    DO(setrlimit(RLIMIT_FSIZE, &before));
    DO(pwrite(fd, "x", 1, LIMIT + 1000));
    /* By number, and by another process. */
    DO(syscall(SYS_prlimit64, 0, RLIMIT_FSIZE, &limit, NULL));
    DO(pwrite(fd, "x", 1, LIMIT + 2000));
    DO(syscall(SYS_prlimit64, 0, RLIMIT_FSIZE, &before, NULL));
    DO(pwrite(fd, "x", 1, LIMIT + 2000));
    pid_t child = fork();
    if (child == 0) _exit(prlimit(getppid(), RLIMIT_FSIZE, &limit, NULL) != 0);
    waitpid(child, NULL, 0);
    usleep(20000);
    DO(pwrite(fd, "x", 1, LIMIT + 3000));
    DO(setrlimit(RLIMIT_FSIZE, &before));
    close(fd);
}

int main(int argc, char **argv) {
    if (begin(argc, argv)) return 2;
    put("a", "0123456789");
    int fd = open(P("a"), O_RDWR);
    controls(fd);
    transfers(fd);
    paths(fd);
    removed();
    mappings(fd);
    attributes(fd);
    walks();
    limits();
    list(".");
    fprintf(out, "end\n");
    return 0;
}

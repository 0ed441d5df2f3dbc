/* Changes users in every possible way, and tries what each user may and may not do: one line for each call.
   Arguments: a directory, and a file for the lines. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define ALICE 4001
#define BOB 4002
#define FRIENDS 4100

static int out;
static const char *way;

static void line(const char *what, const char *text) {
    char words[512];
    int len = snprintf(words, sizeof words, "%s: %s: %s\n", way, what, text);
    if (write(out, words, len) != len) abort();
}

static long show(const char *what, long result) {
    char text[64];
    if (result < 0) snprintf(text, sizeof text, "%s", strerrorname_np(errno));
    else snprintf(text, sizeof text, "ok");
    line(what, text);
    return result;
}

static void owner(const char *what, int fd, const char *path) {
    struct stat st;
    char text[64];
    if ((path ? fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) : fstat(fd, &st)) < 0)
        snprintf(text, sizeof text, "%s", strerrorname_np(errno));
    else
        snprintf(text, sizeof text, "%d:%d %o %ld", st.st_uid, st.st_gid, st.st_mode, (long)st.st_size);
    line(what, text);
}

static void opens(const char *what, const char *path, int flags) {
    int fd = show(what, open(path, flags, 0644));
    if (fd >= 0) close(fd);
}

static void put(const char *path, const char *bytes, mode_t mode, uid_t uid, gid_t gid) {
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    if (fd < 0 || write(fd, bytes, strlen(bytes)) < 0 || fchown(fd, uid, gid) || fchmod(fd, mode)) {
        show(path, -1);
        exit(3);
    }
    close(fd);
}

static void contents(const char *what, int fd) {
    char bytes[128] = "";
    if (pread(fd, bytes, sizeof bytes - 1, 0) < 0) snprintf(bytes, sizeof bytes, "%s", strerrorname_np(errno));
    line(what, bytes);
}

/* Operations of a user other than root on root's files: `old` and `dir` are root's descriptors. */
static void as_stranger(int old, int dir) {
    opens("read a secret", "secret", O_RDONLY);
    opens("write a public file", "public", O_WRONLY);
    opens("read a public file", "public", O_RDONLY);
    opens("read a file of the group", "group", O_RDONLY);
    opens("create", "made", O_CREAT | O_EXCL | O_RDWR);
    owner("made", -1, "made");
    int at = show("create by a directory", openat(dir, "by-dir", O_CREAT | O_RDWR, 0600));
    if (at >= 0) {
        show("write there", write(at, "mine", 4));
        contents("read there", at);
        close(at);
    }
    show("write through the old descriptor", pwrite(old, "after ", 6, 0));
    contents("read through it", old);
    owner("ask about it", old, NULL);
    show("cut it", ftruncate(old, 20));
    show("change its mode", fchmod(old, 0644));
    show("change a mode", chmod("public", 0666));
    show("change an owner", chown("public", ALICE, -1));
    show("change my own mode", chmod("made", 0604));
    show("remove in a closed directory", unlink("closed/file"));
    opens("enter a closed directory", "hidden/file", O_RDONLY);
    show("make a directory", mkdir("dir", 0755));
    show("rename", rename("made", "dir/moved"));
    show("link", link("dir/moved", "linked"));
    show("symbolic link", symlink("secret", "sym"));
    opens("read by it", "sym", O_RDONLY);
    show("access a secret", access("secret", R_OK));
    show("eaccess a secret", eaccess("secret", R_OK));
    char here[256] = "";
    show("change directory", chdir("dir"));
    line("there", strrchr(getcwd(here, sizeof here) ?: "/?", '/'));
    opens("a relative path", "moved", O_RDWR);
    opens("a relative path upwards", "../secret", O_RDONLY);
    show("into a closed directory", chdir("../hidden"));
    show("back", chdir(".."));
    pid_t child = fork();
    if (child == 0) {
        opens("the child reads a secret", "secret", O_RDONLY);
        opens("the child creates", "child", O_CREAT | O_RDWR);
        owner("child", -1, "child");
        show("the child writes through the old descriptor", pwrite(old, "CHILD", 5, 6));
        _exit(0);
    }
    waitpid(child, NULL, 0);
    contents("after the child", old);
    const char *names[] = {"dir/moved", "linked", "sym", "by-dir", "child"};
    for (int i = 0; i < 5; i++) show(names[i], unlink(names[i]));
    show("remove the directory", rmdir("dir"));
}

static void as_root(int old) {
    opens("root reads a secret", "secret", O_RDONLY);
    opens("root creates", "of-root", O_CREAT | O_EXCL | O_RDWR);
    owner("of-root", -1, "of-root");
    contents("root reads through the old descriptor", old);
    show("root removes", unlink("of-root"));
}

static gid_t groups[] = {FRIENDS};

static void become(int how) {
    switch (how) {
    case 0: setgroups(1, groups); setgid(ALICE); setuid(ALICE); break;
    case 1: setgroups(0, NULL); setegid(ALICE); seteuid(ALICE); break;
    case 2: setregid(ALICE, ALICE); setreuid(ALICE, ALICE); break;
    case 3: setgroups(1, groups); setresgid(ALICE, ALICE, ALICE); setresuid(ALICE, ALICE, ALICE); break;
    case 4: setfsgid(ALICE); setfsuid(ALICE); break;
    case 5: syscall(SYS_setgroups, 1, groups); syscall(SYS_setgid, ALICE); syscall(SYS_setuid, ALICE); break;
    case 6: syscall(SYS_setresgid, -1, ALICE, -1); syscall(SYS_setresuid, -1, ALICE, -1); break;
    case 7: syscall(SYS_setfsgid, ALICE); syscall(SYS_setfsuid, ALICE); break;
    case 8: setreuid(ALICE, 0); setregid(-1, ALICE); setreuid(0, ALICE); break;
    case 9: initgroups("nobody", ALICE); setgid(ALICE); setresuid(-1, ALICE, -1); break;
    }
}

static const char *ways[] = {"setuid",     "seteuid",     "setreuid",     "setresuid", "setfsuid",
                             "raw setuid", "raw seteuid", "raw setfsuid", "swapped",   "initgroups"};

/* Becomes root again, where that is possible. */
static int back(int how) {
    switch (how) {
    case 1: return seteuid(0) == 0 && setegid(0) == 0 && setgroups(0, NULL) == 0;
    case 4: setfsuid(0); setfsgid(0); return 1;
    case 6: return syscall(SYS_setresuid, -1, 0, -1) == 0 && syscall(SYS_setresgid, -1, 0, -1) == 0;
    case 7: syscall(SYS_setfsuid, 0); syscall(SYS_setfsgid, 0); return 1;
    case 9: return setresuid(-1, 0, -1) == 0 && setgid(0) == 0 && setgroups(0, NULL) == 0;
    default: return 0;
    }
}

/* Creates a directory of root that other users may write to, and makes it the working directory. */
static void prepare(const char *name) {
    if (mkdir(name, 0777) || chmod(name, 0777) || chdir(name)) abort();
    put("secret", "secret", 0600, 0, 0);
    put("public", "public", 0644, 0, 0);
    put("group", "group", 0640, 0, FRIENDS);
    if (mkdir("closed", 0755) || mkdir("hidden", 0700)) abort();
    put("closed/file", "x", 0666, 0, 0);
    put("hidden/file", "x", 0666, 0, 0);
}

static void drops(int how) {
    way = ways[how];
    prepare(way);
    int old = open("old", O_CREAT | O_RDWR, 0600), dir = open(".", O_PATH | O_DIRECTORY);
    if (old < 0 || dir < 0 || write(old, "before", 6) != 6) abort();
    become(how);
    as_stranger(old, dir);
    if (back(how)) as_root(old);
    else show("root again", seteuid(0));
    close(old);
    close(dir);
}

/* One thread alone changes its user. */
static pthread_barrier_t turn;

static void *other_thread(void *old) {
    syscall(SYS_setresgid, ALICE, ALICE, ALICE);
    syscall(SYS_setresuid, ALICE, ALICE, ALICE);
    opens("the thread reads a secret", "secret", O_RDONLY);
    opens("the thread creates", "of-thread", O_CREAT | O_RDWR);
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
    opens("the thread still reads no secret", "secret", O_RDONLY);
    show("the thread writes through the old descriptor", pwrite((int)(long)old, "thread", 6, 0));
    return NULL;
}

static void threads(void) {
    way = "threads";
    prepare(way);
    int old = open("old", O_CREAT | O_RDWR, 0600);
    if (write(old, "before", 6) != 6) abort();
    pthread_t thread;
    pthread_barrier_init(&turn, NULL, 2);
    pthread_create(&thread, NULL, other_thread, (void *)(long)old);
    pthread_barrier_wait(&turn);
    opens("the first thread reads a secret", "secret", O_RDONLY);
    owner("of-thread", -1, "of-thread");
    pthread_barrier_wait(&turn);
    pthread_join(thread, NULL);
    contents("the first thread reads", old);
    /* The C library's functions change all threads. */
    seteuid(BOB);
    opens("another reads a secret", "secret", O_RDONLY);
    seteuid(0);
    opens("root reads it", "secret", O_RDONLY);
}

/* Another user for every operation, as permission test suites do. */
static void matrix(void) {
    static const mode_t modes[] = {0600, 0640, 0604, 0060, 0006, 0444, 0222, 0777};
    static const uid_t users[] = {0, ALICE, BOB};
    static const gid_t of[][1] = {{FRIENDS}, {BOB}};
    char what[128], text[64];
    way = "matrix";
    if (mkdir("matrix", 0777) || chmod("matrix", 01777) || chdir("matrix")) abort();
    for (int m = 0; m < 8; m++)
        for (int o = 0; o < 3; o++)
            for (int u = 0; u < 3; u++)
                for (int g = 0; g < 2; g++) {
                    put("file", "x", modes[m], users[o], FRIENDS);
                    setgroups(1, of[g]);
                    setegid(users[u]);
                    seteuid(users[u]);
                    int reads = open("file", O_RDONLY), writes = open("file", O_WRONLY);
                    int mode = chmod("file", modes[m] | 0100), gave = chown("file", -1, FRIENDS);
                    int removes = unlink("file");
                    seteuid(0);
                    setegid(0);
                    if (reads >= 0) close(reads);
                    if (writes >= 0) close(writes);
                    snprintf(what, sizeof what, "%o of %d, as %d in %d", modes[m], users[o], users[u], of[g][0]);
                    snprintf(text, sizeof text, "read %d write %d chmod %d chown %d unlink %d", reads >= 0, writes >= 0,
                             mode, gave, removes);
                    line(what, text);
                    unlink("file");
                }
}

static void in_child(void (*work)(int), int how) {
    pid_t child = fork();
    if (child == 0) {
        work(how);
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) {
        line("ended", "badly");
        exit(4);
    }
}

/* The mode of a pipe or socket counts, for its owner too. */
static void specials(int how) {
    static const int modes[] = {0600, 0400, 0200, 0};
    struct sockaddr_un at = {.sun_family = AF_UNIX, .sun_path = "socket"};
    way = "special";
    if (setgroups(0, NULL) || setresgid(ALICE, ALICE, ALICE) || setresuid(ALICE, ALICE, ALICE)) exit(5);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    show("pipe", mkfifo("pipe", 0600));
    show("socket", bind(listener, (struct sockaddr *)&at, sizeof at));
    show("listen", listen(listener, 9));
    for (int m = 0; m < 4; m++) {
        char text[64];
        snprintf(text, sizeof text, "mode %o", modes[m]);
        line("owner", text);
        show("chmod", chmod("pipe", modes[m]) | chmod("socket", modes[m]));
        opens("for reading", "pipe", O_RDONLY | O_NONBLOCK);
        opens("for both", "pipe", O_RDWR | O_NONBLOCK);
        opens("for writing", "pipe", O_WRONLY | O_NONBLOCK);
        int client = socket(AF_UNIX, SOCK_STREAM, 0);
        show("connect", connect(client, (struct sockaddr *)&at, sizeof at));
        close(client);
    }
    chmod("pipe", 0600);
    close(listener);
    put("readable", "x", 0666, ALICE, ALICE);
    opens("without a trace", "readable", O_RDONLY | O_NOATIME);
    show("root", chroot("."));
    show("none", chroot("none"));
    show("directory", mkdir("closed", 0600));
    show("root", chroot("closed"));
}

static void of_another_user(int how) {
    way = "another user's";
    if (setgroups(0, NULL) || setresgid(BOB, BOB, BOB) || setresuid(BOB, BOB, BOB)) exit(5);
    opens("for reading", "pipe", O_RDONLY | O_NONBLOCK);
    opens("for both", "pipe", O_RDWR | O_NONBLOCK);
    opens("without a trace", "readable", O_RDONLY | O_NOATIME);
    opens("cut without a trace", "readable", O_RDWR | O_TRUNC | O_CREAT | O_NOATIME);
    owner("readable", -1, "readable");
}

static void in_threads(int how) { threads(); }

static void in_matrix(int how) { matrix(); }

int main(int argc, char **argv) {
    out = open(argv[2], O_CREAT | O_WRONLY | O_TRUNC | O_APPEND, 0644);
    umask(022);
    if (out < 0 || chmod(argv[1], 0777) || chdir(argv[1])) return 2;
    for (int how = 0; how < sizeof ways / sizeof *ways; how++) in_child(drops, how);
    in_child(in_threads, 0);
    in_child(in_matrix, 0);
    in_child(specials, 0);
    in_child(of_another_user, 0);
    return write(out, "end\n", 4) == 4 ? 0 : 2;
}

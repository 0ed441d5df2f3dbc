/* Several processes map one file: stores, reads, writes, truncations and kills. Each process opens and maps the file itself. */
#include "table.h"
#include <setjmp.h>

#define SIZE (64 << 10)
#define CHILDREN 3
#define ROUNDS 20000

static sigjmp_buf back;
static void hurt(int signal) { siglongjmp(back, signal); }

/* The result of touching an address: 0, or the signal. */
static int touch(volatile char *at) {
    int signal = sigsetjmp(back, 1);
    if (!signal) (void)*at;
    return signal;
}

static char *map_file(int flags, int protection, size_t len) {
    int fd = open(P("shared"), flags);
    if (fd < 0) return MAP_FAILED;
    char *map = mmap(0, len, protection, MAP_SHARED, fd, 0);
    int error = errno;
    close(fd);
    errno = error;
    return map;
}

static char *writable(size_t len) {
    char *map = map_file(O_RDWR, PROT_READ | PROT_WRITE, len);
    if (map == MAP_FAILED) { perror("mmap"); _exit(3); }
    return map;
}

/* A child that does a step, reports it, and waits for the parent before the next. */
struct child { pid_t pid; int to, from; };
static int told = -1, tells = -1;
static void pass(void) { char c = 'x'; if (write(tells, &c, 1) != 1 || read(told, &c, 1) != 1) _exit(4); }
static struct child start(void (*act)(int), int which) {
    int down[2], up[2];
    if (pipe(down) || pipe(up)) exit(2);
    struct child child = {fork(), down[1], up[0]};
    if (child.pid == 0) { told = down[0]; tells = up[1]; act(which); _exit(0); }
    close(down[0]); close(up[1]);
    return child;
}
static void await(struct child *child) { char c; if (read(child->from, &c, 1) != 1) exit(5); }
static void go_on(struct child *child) { char c = 'y'; if (write(child->to, &c, 1) != 1) exit(6); }
static void end(struct child *child, const char *what) {
    int status = 0;
    waitpid(child->pid, &status, 0);
    say(what, status);
    close(child->to); close(child->from);
}

static void add(int which) {
    char *map = writable(SIZE);
    for (int i = 0; i < ROUNDS; i++) {
        __sync_fetch_and_add((long *)map, 1);
        map[4096 * (which + 1) + i % 4096] = 'a' + which;
    }
    if (munmap(map, SIZE)) _exit(7);
}

static void talk(int which) {
    char *map = writable(SIZE);
    strcpy(map + 100, "stored by the child");
    pass();
    int fd = open(P("seen"), O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (write(fd, map + 200, 24) != 24) _exit(8);
    close(fd);
    strcpy(map + 300, "stored before it was cut");
    pass();
    /* The parent has truncated the file to one and a half pages. */
    int first = touch(map + 4096 + 2047), second = touch(map + 8192);
    map[4096] = 'p';
    pass();
    /* And has extended it again. */
    int third = touch(map + 8192);
    fd = open(P("seen"), O_WRONLY | O_TRUNC);
    dprintf(fd, "%d %d %d %d", first, second, third, map[8192]);
    close(fd);
}

static void die(int which) {
    char *map = writable(SIZE);
    strcpy(map + 1000, "stored by the killed");
    pass();
    kill(getpid(), SIGKILL);
}

static void show_at(const char *what, off_t offset, size_t len) {
    char bytes[64] = "";
    int fd = open(P("shared"), O_RDONLY);
    say(what, pread(fd, bytes, len, offset));
    text(what, bytes);
    close(fd);
}

static long counted(void) {
    long all = 0;
    int fd = open(P("shared"), O_RDONLY);
    if (pread(fd, &all, sizeof all, 0) != sizeof all) exit(9);
    close(fd);
    return all;
}

int main(int argc, char **argv) {
    strcpy(root, argv[1]);
    out = fopen(argv[2], "w");
    signal(SIGBUS, hurt);
    signal(SIGPIPE, SIG_IGN);
    struct child children[CHILDREN];
    int fd = open(P("shared"), O_RDWR | O_CREAT, 0644);
    DO(ftruncate(fd, SIZE));
    fflush(out);

    for (int i = 0; i < CHILDREN; i++) children[i] = start(add, i);
    for (int i = 0; i < CHILDREN; i++) end(&children[i], "a child that adds");
    say("additions", counted());
    for (int i = 0; i < CHILDREN; i++) show_at("a child's page", 4096 * (i + 1) + 5, 3);

    children[0] = start(talk, 0);
    await(&children[0]);
    show_at("what the child stored", 100, 19);
    DO(pwrite(fd, "written by the parent..", 24, 200));
    go_on(&children[0]);
    await(&children[0]);
    show("seen");
    DO(ftruncate(fd, 6144));
    show_at("behind the cut", 6100, 60);
    go_on(&children[0]);
    await(&children[0]);
    show_at("stored after it was cut", 4096, 1);
    DO(ftruncate(fd, SIZE));
    go_on(&children[0]);
    end(&children[0], "a child that talks");
    show("seen");
    show_at("stored before it was cut", 300, 24);
    show_at("what was cut off", 8192 + 5, 3);

    children[0] = start(die, 0);
    await(&children[0]);
    go_on(&children[0]);
    end(&children[0], "a child that is killed");
    show_at("what the killed stored", 1000, 20);

    /* A read-only mapping cannot be stored to, and sees the stores of others. */
    char *map = map_file(O_RDONLY, PROT_READ, SIZE);
    DO(mprotect(map, SIZE, PROT_READ | PROT_WRITE));
    DO(pwrite(fd, "followed", 8, 500));
    text("a mapping for reading", map + 500);
    DO(map_file(O_RDONLY, PROT_READ | PROT_WRITE, SIZE) == MAP_FAILED ? -1 : 0);
    char *longer = map_file(O_RDWR, PROT_READ | PROT_WRITE, 4 * SIZE);
    DO(touch(longer + SIZE));
    DO(pwrite(fd, "grown", 5, 2 * SIZE));
    text("behind the old end", longer + 2 * SIZE);
    DO(msync(longer, 4 * SIZE, MS_SYNC));
    DO(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096));
    DO(longer[100]);
    longer[100] = 'z';
    DO(unlink(P("shared")));
    DO(longer[100] + longer[4096 * 2 + 5]);
    DO(close(fd));
    DO(munmap(longer, 4 * SIZE));
    DO(munmap(map, SIZE));
    fprintf(out, "end\n");
    return fclose(out);
}

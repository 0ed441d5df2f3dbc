/* io_uring on files of the directory and on others, in one ring, without liburing. */
#include "table.h"
#include <linux/io_uring.h>
#include <linux/openat2.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>

static long ask(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return result;
}

static struct ring {
    int fd;
    _Atomic unsigned *head, *tail, *reaped, *done;
    unsigned mask, events_mask, *array, queued;
    struct io_uring_sqe *entries;
    struct io_uring_cqe *events;
} ring;

static long make(unsigned flags) {
    struct io_uring_params made = {.flags = flags};
    long fd = ask(SYS_io_uring_setup, 16, (long)&made, 0, 0, 0, 0);
    if (fd < 0) return fd;
    size_t size = made.cq_off.cqes + made.cq_entries * sizeof(struct io_uring_cqe);
    if (size < made.sq_off.array + made.sq_entries * 4) size = made.sq_off.array + made.sq_entries * 4;
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQ_RING);
    ring.fd = fd;
    ring.head = (void *)(memory + made.sq_off.head);
    ring.tail = (void *)(memory + made.sq_off.tail);
    ring.reaped = (void *)(memory + made.cq_off.head);
    ring.done = (void *)(memory + made.cq_off.tail);
    ring.mask = *(unsigned *)(memory + made.sq_off.ring_mask);
    ring.events_mask = *(unsigned *)(memory + made.cq_off.ring_mask);
    ring.array = (void *)(memory + made.sq_off.array);
    ring.events = (void *)(memory + made.cq_off.cqes);
    ring.entries = mmap(NULL, made.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQES);
    return 0;
}

static struct io_uring_sqe *queue(int opcode, int fd, const void *address, unsigned len, unsigned long offset, int name) {
    unsigned slot = *ring.tail & ring.mask;
    struct io_uring_sqe *entry = &ring.entries[slot];
    memset(entry, 0, sizeof *entry);
    entry->opcode = opcode;
    entry->fd = fd;
    entry->addr = (uintptr_t)address;
    entry->len = len;
    entry->off = offset;
    entry->user_data = name;
    ring.array[slot] = slot;
    atomic_store(ring.tail, *ring.tail + 1);
    ring.queued++;
    return entry;
}

/* Submits the queued entries, and prints the results sorted by name. */
static void flush(const char *what) {
    int results[64], known[64] = {0};
    unsigned count = ring.queued, left = count;
    long submitted = ask(SYS_io_uring_enter, ring.fd, count, count, IORING_ENTER_GETEVENTS, 0, 0);
    ring.queued = 0;
    fprintf(out, "%s: %ld submitted\n", what, submitted);
    while (left > 0) {
        while (*ring.reaped != atomic_load(ring.done)) {
            struct io_uring_cqe *event = &ring.events[*ring.reaped & ring.events_mask];
            results[event->user_data] = event->res;
            known[event->user_data] = 1;
            atomic_store(ring.reaped, *ring.reaped + 1);
            left--;
        }
        if (left > 0 && ask(SYS_io_uring_enter, ring.fd, 0, 1, IORING_ENTER_GETEVENTS, 0, 0) < 0) break;
    }
    for (int i = 0; i < 64; i++)
        if (known[i] && results[i] >= 0) fprintf(out, "  %d: %d\n", i, results[i]);
        else if (known[i]) fprintf(out, "  %d: %s\n", i, strerrorname_np(-results[i]));
}

static void transfers(int fd, int foreign) {
    static char buffer[8192], other[64];
    memset(buffer, 'x', sizeof buffer);
    queue(IORING_OP_WRITE, fd, buffer, 5000, 100, 1);
    flush("write");
    queue(IORING_OP_READ, fd, buffer, 8192, 0, 1);
    flush("read");
    fprintf(out, "read: %d %d %d\n", buffer[99], buffer[100], buffer[5099]);
    struct iovec parts[2] = {{"hello ", 6}, {"world", 5}}, into[2] = {{buffer, 3}, {other, 8}};
    queue(IORING_OP_WRITEV, fd, parts, 2, 0, 1);
    flush("write parts");
    queue(IORING_OP_READV, fd, into, 2, 0, 1);
    flush("read parts");
    fprintf(out, "parts: %.3s|%.8s\n", buffer, other);
    queue(IORING_OP_WRITE, foreign, "outside", 7, 0, 1);
    queue(IORING_OP_WRITE, fd, "inside", 6, 0, 2);
    queue(IORING_OP_FSYNC, fd, NULL, 0, 0, 3);
    queue(IORING_OP_NOP, -1, NULL, 0, 0, 4);
    flush("mixed");
    lseek(fd, 2, SEEK_SET);
    queue(IORING_OP_READ, fd, other, 4, -1, 1);
    flush("read where it stands");
    fprintf(out, "%.4s, then at %ld\n", other, (long)lseek(fd, 0, SEEK_CUR));
    queue(IORING_OP_FALLOCATE, fd, (void *)100, 0, 9000, 1);
    queue(IORING_OP_FADVISE, fd, NULL, 10, 0, 2);
    flush("lengths");
    queue(IORING_OP_READ, 999, other, 4, 0, 1);
    queue(IORING_OP_READ, fd, (void *)8, 4, 0, 2);
    queue(IORING_OP_POLL_ADD, fd, NULL, 0, 0, 3)->poll_events = POLLIN;
    flush("errors");
}

static void links(int fd, int foreign) {
    static char one[64], two[64];
    queue(IORING_OP_WRITE, fd, "linked", 6, 0, 1)->flags = IOSQE_IO_LINK;
    queue(IORING_OP_READ, fd, one, 6, 0, 2);
    flush("linked");
    fprintf(out, "%.6s\n", one);
    queue(IORING_OP_READ, fd, (void *)8, 6, 0, 1)->flags = IOSQE_IO_LINK;
    queue(IORING_OP_WRITE, fd, "never", 5, 0, 2)->flags = IOSQE_IO_LINK;
    queue(IORING_OP_WRITE, foreign, "never", 5, 0, 3);
    flush("a chain that fails");
    queue(IORING_OP_READ, fd, one, 64, 9090, 1)->flags = IOSQE_IO_LINK;
    queue(IORING_OP_WRITE, foreign, "never", 5, 0, 2)->flags = IOSQE_IO_LINK;
    queue(IORING_OP_WRITE, fd, "never", 5, 0, 3);
    flush("a chain that comes short");
    queue(IORING_OP_FSYNC, fd, NULL, 0, 0, 1)->flags = IOSQE_IO_DRAIN;
    flush("drained");
    long count = pread(foreign, two, 7, 0);
    fprintf(out, "outside: %.*s\n", (int)count, two);
}

static void names(void) {
    static struct statx found;
    queue(IORING_OP_MKDIRAT, AT_FDCWD, P("dir"), 0755, 0, 1);
    flush("mkdir");
    queue(IORING_OP_OPENAT, AT_FDCWD, P("dir/file"), 0600, 0, 1)->open_flags = O_CREAT | O_WRONLY;
    flush("open");
    int fd = open(P("dir/file"), O_WRONLY);
    queue(IORING_OP_WRITE, fd, "text", 4, 0, 1);
    flush("write");
    queue(IORING_OP_STATX, AT_FDCWD, P("dir/file"), STATX_SIZE, (uintptr_t)&found, 1);
    flush("statx");
    fprintf(out, "size %ld\n", (long)found.stx_size);
    queue(IORING_OP_RENAMEAT, AT_FDCWD, P("dir/file"), AT_FDCWD, (uintptr_t)P("dir/moved"), 1);
    flush("rename");
    queue(IORING_OP_LINKAT, AT_FDCWD, P("dir/moved"), AT_FDCWD, (uintptr_t)P("dir/link"), 1);
    queue(IORING_OP_SYMLINKAT, AT_FDCWD, "moved", 0, (uintptr_t)P("dir/symbolic"), 2);
    flush("links");
    list("dir");
    show("dir/moved");
    queue(IORING_OP_CLOSE, fd, NULL, 0, 0, 1);
    flush("close");
    errno = 0;
    DO(write(fd, "x", 1));
    for (int i = 0; i < 3; i++) queue(IORING_OP_UNLINKAT, AT_FDCWD, P((char *[]){"dir/moved", "dir/link", "dir/symbolic"}[i]), 0, 0, i);
    flush("unlink");
    queue(IORING_OP_UNLINKAT, AT_FDCWD, P("dir"), 0, 0, 1)->unlink_flags = AT_REMOVEDIR;
    queue(IORING_OP_OPENAT, AT_FDCWD, P("none"), 0, 0, 2);
    flush("remove");
}

static void sockets(void) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    strncpy(at.sun_path, P("socket"), sizeof at.sun_path - 1);
    int one = socket(AF_UNIX, SOCK_STREAM, 0), two = socket(AF_UNIX, SOCK_STREAM, 0);
    queue(IORING_OP_CONNECT, two, &at, 0, sizeof at, 1);
    flush("connect to nothing");
    DO(bind(one, (void *)&at, sizeof at));
    DO(listen(one, 1));
    queue(IORING_OP_CONNECT, two, &at, 0, sizeof at, 1);
    flush("connect");
    DO(write(two, "said", 4));
    DO(unlink(P("socket")));
    close(one);
    close(two);
}

int main(int argc, char **argv) {
    if (begin(argc, argv)) return 2;
    char template[] = "/tmp/fb-ring-XXXXXX";
    int foreign = mkstemp(template);
    unlink(template);
    if (make(0) < 0) return 3;
    int fd = open(P("a"), O_RDWR | O_CREAT, 0644);
    transfers(fd, foreign);
    links(fd, foreign);
    names();
    sockets();
    fprintf(out, "close %d\n", close(ring.fd));
    fprintf(out, "end\n");
    return 0;
}

/* io_uring features that are not supported on files of Forebay: prints each with its error, and fails if a refused one has read
 * or written anything. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void say(const char *what, long result) {
    printf("%s %s\n", what, result < 0 ? strerrorname_np(errno) : "done");
}

static struct io_uring_params made;
static long make(unsigned flags) {
    memset(&made, 0, sizeof made);
    made.flags = flags;
    return syscall(SYS_io_uring_setup, 4L, &made);
}

static long ring;
static char *memory;
static struct io_uring_sqe *entries;
static unsigned *at(unsigned offset) { return (unsigned *)(memory + offset); }

static struct io_uring_sqe *queue(int opcode, int fd, void *address, unsigned len) {
    unsigned tail = *at(made.sq_off.tail), slot = tail & *at(made.sq_off.ring_mask);
    struct io_uring_sqe *entry = memset(&entries[slot], 0, sizeof *entry);
    entry->opcode = opcode, entry->fd = fd, entry->addr = (unsigned long)address, entry->len = len;
    at(made.sq_off.array)[slot] = slot;
    atomic_store((_Atomic unsigned *)at(made.sq_off.tail), tail + 1);
    return entry;
}

/* Submits the queued entries, and prints the result of the last. */
static void submit(const char *what, unsigned count) {
    struct io_uring_cqe *events = (void *)(memory + made.cq_off.cqes);
    if (syscall(SYS_io_uring_enter, ring, (long)count, (long)count, (long)IORING_ENTER_GETEVENTS, NULL, 0L) != count) {
        say(what, -1);
        return;
    }
    int result = 0;
    for (unsigned taken = 0; taken < count; taken++) {
        unsigned head = *at(made.cq_off.head);
        struct io_uring_cqe *event = &events[head & *at(made.cq_off.ring_mask)];
        if (event->user_data == 0) result = event->res;
        atomic_store((_Atomic unsigned *)at(made.cq_off.head), head + 1);
    }
    errno = -result;
    say(what, result < 0 ? -1 : 0);
}

static void refuse_entries(int fd, int null) {
    char buffer[16] = "untouched";
    queue(IORING_OP_READ, fd, buffer, 9)->flags = IOSQE_BUFFER_SELECT;
    submit("provided buffer", 1);
    queue(49, fd, NULL, 0)->flags = IOSQE_BUFFER_SELECT;
    submit("multishot read", 1);
    struct io_uring_sqe *first = queue(IORING_OP_WRITE, null, "x", 1);
    first->flags = IOSQE_IO_LINK, first->user_data = 1;
    queue(IORING_OP_WRITE, fd, "written!", 8);
    submit("after another's in a chain", 2);
    int files[2] = {null, fd};
    queue(IORING_OP_FILES_UPDATE, -1, files, 2);
    submit("registering ours by an entry", 1);
    queue(60, fd, NULL, 1);
    submit("registered buffers", 1);
    char found[16] = "";
    if (strcmp(buffer, "untouched") || pread(fd, found, 15, 0) != 7 || strcmp(found, "content") || lseek(fd, 0, SEEK_CUR) != 7)
        printf("a refused entry was done: %s, %s\n", buffer, found);
}

int main(int argc, char **argv) {
    int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644), null = open("/dev/null", O_RDWR);
    if (write(fd, "content", 7) != 7) return 1;
    say("polling thread", make(IORING_SETUP_SQPOLL));
    say("polling thread on a processor", make(IORING_SETUP_SQPOLL | IORING_SETUP_SQ_AFF));
    say("rings of the program's", make(1U << 14));
    say("registered ring alone", make(1U << 15 | 1U << 14));
    say("entries of two sizes", make(1U << 19));
    ring = make(0);
    say("plain", ring);
    if (ring < 0) return 0;
    int files[2] = {null, fd};
    say("register others", syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES, files, 1L));
    struct io_uring_files_update update = {.offset = 0, .fds = (unsigned long)&files[1]};
    say("update to ours", syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES_UPDATE, &update, 1L));
    struct io_uring_rsrc_update2 update2 = {.offset = 0, .data = (unsigned long)&files[1], .nr = 1};
    say("update to ours, tagged", syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES_UPDATE2, &update2, (long)sizeof update2));
    say("unregister", syscall(SYS_io_uring_register, ring, IORING_UNREGISTER_FILES, NULL, 0L));
    say("register ours", syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES, files, 2L));
    struct io_uring_rsrc_register table = {.nr = 2, .data = (unsigned long)files};
    say("register ours, tagged", syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES2, &table, (long)sizeof table));
    struct io_uring_rsrc_update own = {.offset = -1U, .data = ring};
    say("register the ring", syscall(SYS_io_uring_register, ring, 20L, &own, 1L));
    say("restrictions", syscall(SYS_io_uring_register, ring, 11L, NULL, 0L));
    say("resize", syscall(SYS_io_uring_register, ring, 33L, NULL, 0L));
    say("enter by index", syscall(SYS_io_uring_enter, 0L, 1L, 0L, 1L << 4, NULL, 0L));
    size_t size = made.cq_off.cqes + made.cq_entries * sizeof(struct io_uring_cqe);
    memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    entries = mmap(NULL, made.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    if (memory == MAP_FAILED || entries == MAP_FAILED) return 2;
    refuse_entries(fd, null);
    return 0;
}

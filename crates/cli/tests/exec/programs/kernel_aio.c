/* Kernel AIO on files of the directory and on others, in one context. */
#include "table.h"
#include <linux/aio_abi.h>
#include <pthread.h>
#include <sys/eventfd.h>

static aio_context_t context;

static struct iocb request(int opcode, int fd, void *buffer, long len, long offset) {
    struct iocb made = {.aio_lio_opcode = opcode, .aio_fildes = fd, .aio_buf = (uintptr_t)buffer, .aio_nbytes = len,
                        .aio_offset = offset, .aio_data = 1000 + opcode};
    return made;
}

static long submit(struct iocb *one) { return syscall(SYS_io_submit, context, 1L, &one); }

static void event(const char *what, struct iocb *expected) {
    struct io_event got = {0};
    struct timespec patience = {60, 0};
    long count = syscall(SYS_io_getevents, context, 1L, 1L, &got, &patience);
    fprintf(out, "%s: %ld event, data %lld, request %s, result %lld\n", what, count, (long long)got.data,
            got.obj == (uintptr_t)expected ? "mine" : "another", (long long)got.res);
}

static void one(const char *what, struct iocb made) {
    errno = 0;
    long done = submit(&made);
    say(what, done);
    if (done == 1) event(what, &made);
}

static void *waiter(void *got) {
    struct timespec patience = {60, 0};
    return (void *)syscall(SYS_io_getevents, context, 1L, 1L, got, &patience);
}

int main(int argc, char **argv) {
    if (begin(argc, argv)) return 2;
    char buffer[8192], other[64] = "", template[] = "/tmp/fb-aio-XXXXXX";
    int foreign = mkstemp(template);
    unlink(template);
    DO(syscall(SYS_io_setup, 64L, &context));
    DO(syscall(SYS_io_setup, 64L, &context));
    int fd = open(P("a"), O_RDWR | O_CREAT, 0644);
    memset(buffer, 'x', sizeof buffer);
    one("write", request(IOCB_CMD_PWRITE, fd, buffer, 5000, 100));
    one("read", request(IOCB_CMD_PREAD, fd, buffer, 8192, 0));
    fprintf(out, "read: %d %d %d\n", buffer[99], buffer[100], buffer[5099]);
    one("read past the end", request(IOCB_CMD_PREAD, fd, buffer, 10, 99999));
    struct iovec parts[2] = {{"hello ", 6}, {"world", 5}};
    one("write parts", request(IOCB_CMD_PWRITEV, fd, parts, 2, 0));
    struct iovec into[2] = {{buffer, 3}, {other, 8}};
    one("read parts", request(IOCB_CMD_PREADV, fd, into, 2, 0));
    fprintf(out, "parts: %.3s|%.8s\n", buffer, other);
    one("sync", request(IOCB_CMD_FSYNC, fd, NULL, 0, 0));
    one("data sync", request(IOCB_CMD_FDSYNC, fd, NULL, 0, 0));
    one("bad offset", request(IOCB_CMD_PREAD, fd, buffer, 10, -5));
    one("bad opcode", request(99, fd, buffer, 10, 0));
    one("bad descriptor", request(IOCB_CMD_PREAD, 999, buffer, 10, 0));
    one("bad buffer", request(IOCB_CMD_PREAD, fd, (void *)8, 10, 0));
    int reader = open(P("a"), O_RDONLY);
    one("write to what is open for reading", request(IOCB_CMD_PWRITE, reader, buffer, 10, 0));
    struct iocb appended = request(IOCB_CMD_PWRITE, fd, "tail", 4, 0);
    appended.aio_rw_flags = RWF_APPEND;
    one("append", appended);
    meta("a");

    /* Requests of one submission have no order: none reads what another writes. */
    struct iocb mixed[4] = {request(IOCB_CMD_PWRITE, foreign, "outside", 7, 0), request(IOCB_CMD_PWRITE, fd, "inside", 6, 0),
                            request(IOCB_CMD_PREAD, fd, other, 5, 6), request(IOCB_CMD_PREAD, foreign, buffer, 7, 4096)};
    DO(pwrite(foreign, "already", 7, 4096));
    struct iocb *list[4] = {&mixed[0], &mixed[1], &mixed[2], &mixed[3]};
    DO(syscall(SYS_io_submit, context, 4L, list));
    struct io_event got[4];
    long sum = 0, own = 0;
    DO(syscall(SYS_io_getevents, context, 4L, 4L, got, NULL));
    for (int i = 0; i < 4; i++) {
        sum += got[i].res;
        for (int j = 0; j < 4; j++) own += got[i].obj == (uintptr_t)&mixed[j];
    }
    fprintf(out, "mixed: %ld bytes, %ld known, %.5s, %.7s\n", sum, own, other, buffer);
    DO(pread(fd, other, 6, 0));
    fprintf(out, "mixed: then %.6s\n", other);
    struct iocb bad = request(IOCB_CMD_PREAD, 999, buffer, 1, 0);
    struct iocb *half[3] = {&mixed[1], &bad, &mixed[2]};
    DO(syscall(SYS_io_submit, context, 3L, half));
    DO(syscall(SYS_io_getevents, context, 1L, 4L, got, NULL));

    /* What the kernel does not accept was not submitted, and is not done. */
    struct iocb twice[2] = {request(IOCB_CMD_PWRITE, fd, "once", 4, 0), request(IOCB_CMD_PWRITE, fd, "none", 4, 0)};
    for (int i = 0; i < 2; i++) twice[i].aio_rw_flags = RWF_APPEND;
    twice[1].aio_flags = IOCB_FLAG_RESFD;
    twice[1].aio_resfd = 999;
    struct iocb *both[2] = {&twice[0], &twice[1]};
    DO(syscall(SYS_io_submit, context, 2L, both));
    event("the first of two", &twice[0]);
    meta("a");
    pid_t child = fork();
    if (child == 0) _exit(submit(&twice[0]) < 0 ? errno == EINVAL ? 1 : 2 : 3);
    int status = 0;
    waitpid(child, &status, 0);
    fprintf(out, "a forked child: %d\n", WEXITSTATUS(status));
    meta("a");
    aio_context_t small = 0;
    DO(syscall(SYS_io_setup, 1L, &small));
    long taken = 0, before = lseek(fd, 0, SEEK_END);
    for (int i = 0; i < 5000 && taken == i; i++) {
        struct iocb *next = &twice[0];
        if (syscall(SYS_io_submit, small, 1L, &next) == 1) taken++;
    }
    /* Waits for all that were accepted. */
    DO(syscall(SYS_io_destroy, small));
    fprintf(out, "full: %d, bytes for each %d\n", taken < 5000, lseek(fd, 0, SEEK_END) - before == 4 * taken);

    int told = eventfd(0, 0);
    struct iocb signalled = request(IOCB_CMD_PWRITE, fd, "signal", 6, 0);
    signalled.aio_flags = IOCB_FLAG_RESFD;
    signalled.aio_resfd = told;
    DO(submit(&signalled));
    uint64_t count = 0;
    DO(read(told, &count, 8));
    fprintf(out, "signalled %ld\n", (long)count);
    event("signalled", &signalled);

    pthread_t thread;
    void *waited;
    pthread_create(&thread, NULL, waiter, got);
    struct iocb wakes = request(IOCB_CMD_PREAD, fd, other, 6, 0);
    DO(submit(&wakes));
    pthread_join(thread, &waited);
    fprintf(out, "another thread: %ld, %s, %lld\n", (long)waited, got[0].obj == (uintptr_t)&wakes ? "mine" : "another",
            (long long)got[0].res);

    struct timespec now = {0, 0};
    DO(syscall(SYS_io_getevents, context, 1L, 1L, got, &now));
    DO(syscall(SYS_io_cancel, context, &wakes, got) < 0);
    DO(syscall(SYS_io_destroy, context));
    DO(syscall(SYS_io_submit, context, 1L, list));
    DO(syscall(SYS_io_destroy, context));
    show("a");
    fprintf(out, "end\n");
    return 0;
}

/* Copies between files of the directory and pipes. */
#include "table.h"
#include <sys/resource.h>

static int ends[2];

static void fresh(void) {
    if (ends[0]) { close(ends[0]); close(ends[1]); }
    if (pipe(ends)) perror("pipe");
}

static long drain(void) {
    static char buffer[1 << 17];
    long sum = 0, count;
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    while ((count = read(ends[0], buffer, sizeof buffer)) > 0)
        for (long i = 0; i < count; i++) sum += (unsigned char)buffer[i];
    fcntl(ends[0], F_SETFL, 0);
    return sum;
}

int main(int argc, char **argv) {
    if (begin(argc, argv)) return 2;
    static char bytes[300000];
    for (int i = 0; i < (int)sizeof bytes; i++) bytes[i] = i / 7;
    int fd = open(P("a"), O_RDWR | O_CREAT, 0644);
    DO(write(fd, bytes, sizeof bytes));
    DO(lseek(fd, 0, SEEK_SET));
    fresh();
    DO(splice(fd, NULL, ends[1], NULL, 300000, 0));
    DO(lseek(fd, 0, SEEK_CUR));
    DO(splice(fd, NULL, ends[1], NULL, 300000, SPLICE_F_NONBLOCK));
    DO(drain());
    loff_t at = 100;
    DO(splice(fd, &at, ends[1], NULL, 5000, SPLICE_F_MOVE | SPLICE_F_MORE));
    fprintf(out, "at %ld, file at %ld\n", (long)at, (long)lseek(fd, 0, SEEK_CUR));
    DO(drain());
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    DO(splice(fd, NULL, ends[1], NULL, 300000, 0));
    DO(splice(fd, NULL, ends[1], NULL, 300000, 0));
    DO(drain());
    fresh();
    DO(lseek(fd, 299990, SEEK_SET));
    DO(splice(fd, NULL, ends[1], NULL, 300000, 0));
    DO(drain());
    DO(splice(fd, NULL, ends[1], NULL, 300000, 0));
    DO(splice(fd, NULL, ends[1], NULL, 10, 1 << 10));
    DO(splice(fd, NULL, ends[1], &at, 10, 0));
    DO(splice(fd, NULL, fd, NULL, 10, 0));
    DO(splice(ends[0], NULL, fd, NULL, 10, SPLICE_F_NONBLOCK));
    DO(write(ends[1], "from a pipe", 11));
    at = 5;
    DO(splice(ends[0], NULL, fd, &at, 100, 0));
    DO(write(ends[1], "more", 4));
    DO(splice(ends[0], NULL, fd, NULL, 4, SPLICE_F_NONBLOCK));
    at = 0;
    DO(sendfile(ends[1], fd, &at, 300000));
    fprintf(out, "at %ld\n", (long)at);
    DO(drain());
    /* A write that fails leaves the bytes in the pipe. */
    struct rlimit before, limit;
    getrlimit(RLIMIT_FSIZE, &before);
    limit = before;
    limit.rlim_cur = 1 << 20;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    DO(write(ends[1], "not lost", 8));
    at = 1 << 20;
    DO(splice(ends[0], NULL, fd, &at, 8, 0));
    fprintf(out, "at %ld\n", (long)at);
    setrlimit(RLIMIT_FSIZE, &before);
    at = 0;
    DO(splice(ends[0], NULL, fd, &at, 3, 0));
    DO(read(ends[0], bytes, 100));
    text("left", (bytes[5] = 0, bytes));
    close(ends[1]);
    DO(splice(ends[0], NULL, fd, NULL, 10, 0));
    meta("a");
    DO(pread(fd, bytes, 20, 0));
    fprintf(out, "%.11s\nend\n", bytes + 5);
    return 0;
}

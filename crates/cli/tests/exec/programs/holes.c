/* Data and holes of files. */
#include "table.h"

/* Everything that is data, and everything that is not. */
static void extents(const char *what, int fd) {
    long at = 0;
    fprintf(out, "%s:", what);
    for (int i = 0; i < 20; i++) {
        long data = lseek(fd, at, SEEK_DATA);
        if (data < 0) { fprintf(out, " %s", strerrorname_np(errno)); break; }
        long hole = lseek(fd, data, SEEK_HOLE);
        fprintf(out, " %ld..%ld", data, hole);
        if (hole < 0) break;
        at = hole;
    }
    fprintf(out, "\n");
}

int main(int argc, char **argv) {
    if (begin(argc, argv)) return 2;
    char page[4096];
    memset(page, 'x', sizeof page);
    int fd = open(P("sparse"), O_RDWR | O_CREAT, 0644);
    DO(lseek(fd, 0, SEEK_DATA));
    DO(lseek(fd, 0, SEEK_HOLE));
    DO(pwrite(fd, page, 4096, 0));
    DO(pwrite(fd, page, 4096, 1 << 20));
    DO(pwrite(fd, page, 10, (2 << 20) + 100));
    extents("written", fd);
    DO(lseek(fd, 100, SEEK_DATA));
    DO(lseek(fd, 100, SEEK_HOLE));
    DO(lseek(fd, 5000, SEEK_DATA));
    DO(lseek(fd, 5000, SEEK_HOLE));
    DO(lseek(fd, 0, SEEK_CUR));
    DO(lseek(fd, -1, SEEK_DATA));
    DO(lseek(fd, -1, SEEK_HOLE));
    DO(lseek(fd, (2 << 20) + 110, SEEK_DATA));
    DO(lseek(fd, (2 << 20) + 110, SEEK_HOLE));
    DO(lseek(fd, (2 << 20) + 109, SEEK_HOLE));
    DO(ftruncate(fd, 4 << 20));
    extents("longer", fd);
    for (int i = 0; i < 8; i++) pwrite(fd, page, 4096, (3 << 20) + i * 4096);
    extents("more", fd);
    DO(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (3 << 20) + 8192, 8192));
    extents("punched", fd);
    DO(ftruncate(fd, (3 << 20) + 4096));
    extents("cut", fd);
    DO(ftruncate(fd, 0));
    extents("empty", fd);
    DO(ftruncate(fd, 1 << 20));
    extents("one hole", fd);
    DO(lseek(fd, 0, SEEK_HOLE));
    close(fd);
    fd = open(P("sparse"), O_WRONLY);
    DO(pwrite(fd, page, 4096, 8192));
    extents("not readable", fd);
    close(fd);
    fprintf(out, "end\n");
    return 0;
}

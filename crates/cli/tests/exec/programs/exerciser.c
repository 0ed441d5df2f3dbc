/* Random operations on one file against a copy in memory: exerciser PATH SEED OPERATIONS. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST = 256 << 10, LONGEST = 16 << 10 };
static unsigned char model[MOST], buffer[MOST];
static long size, step;
static unsigned long state, seed;
static int fd;
static const char *path;

static unsigned long dice(unsigned long below) {
    state = state * 6364136223846793005UL + 1442695040888963407UL;
    return (state >> 33) % below;
}

static void die(const char *what, long offset, long len) {
    fprintf(stderr, "seed %lu step %ld: %s at %ld, %ld bytes\n", seed, step, what, offset, len);
    perror("last error");
    exit(1);
}

static void range(long *offset, long *len, long limit) {
    *offset = dice(limit);
    *len = 1 + dice(LONGEST);
    if (*offset + *len > limit) *len = limit - *offset;
}

static void grow(long end) { if (end > size) size = end; }

static void do_read(int how) {
    long offset, len;
    range(&offset, &len, MOST);
    long expected = offset >= size ? 0 : offset + len > size ? size - offset : len;
    long got;
    if (how) {
        lseek(fd, offset, SEEK_SET);
        got = read(fd, buffer, len);
    } else got = pread(fd, buffer, len, offset);
    if (got != expected) die("read came short", offset, len);
    if (memcmp(buffer, model + offset, got)) die("read differs", offset, len);
}

static void do_write(int how) {
    long offset, len;
    range(&offset, &len, MOST);
    for (long i = 0; i < len; i++) buffer[i] = dice(256);
    long done;
    if (how) {
        lseek(fd, offset, SEEK_SET);
        done = write(fd, buffer, len);
    } else done = pwrite(fd, buffer, len, offset);
    if (done != len) die("write came short", offset, len);
    memcpy(model + offset, buffer, len);
    grow(offset + len);
}

static void do_truncate(int how) {
    long new = dice(MOST);
    if (how ? truncate(path, new) : ftruncate(fd, new)) die("truncate", new, 0);
    if (new < size) memset(model + new, 0, size - new);
    size = new;
}

static void do_punch(void) {
    long offset, len;
    if (!size) return;
    range(&offset, &len, size);
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, len)) die("punch", offset, len);
    memset(model + offset, 0, len);
}

/* Of a file without shared memory only copies can be mapped, while no program has it open for writing. */
static int copies;

static void do_map(int writes) {
    long offset, len;
    if (!size) return;
    range(&offset, &len, size);
    long start = offset & ~4095L;
    int protection = writes ? PROT_READ | PROT_WRITE : PROT_READ;
    int from = fd;
    if (copies && !writes) {
        close(fd);
        from = open(path, O_RDONLY);
    }
    unsigned char *map = mmap(NULL, offset + len - start, protection, MAP_SHARED, from, start);
    if (copies && writes) {
        if (map != MAP_FAILED || errno != ENODEV) die("mmap of a copy for writing", offset, len);
        return;
    }
    if (map == MAP_FAILED) die("mmap", offset, len);
    if (copies) {
        close(from);
        fd = open(path, O_RDWR);
    }
    if (memcmp(map + offset - start, model + offset, len)) die("mapping differs", offset, len);
    if (writes) {
        for (long i = 0; i < len; i++) model[offset + i] = map[offset - start + i] = dice(256);
        if (dice(2) && msync(map, offset + len - start, MS_SYNC)) die("msync", offset, len);
    }
    munmap(map, offset + len - start);
}

static void do_reopen(void) {
    struct stat s;
    close(fd);
    fd = open(path, O_RDWR);
    if (fd < 0 || fstat(fd, &s) || s.st_size != size) die("size after reopening", s.st_size, size);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    path = argv[1];
    copies = getenv("COPIES") != NULL;
    state = seed = strtoul(argv[2], NULL, 0);
    long operations = atol(argv[3]);
    fd = open(path, O_CREAT | O_RDWR | O_TRUNC, 0644);
    if (fd < 0) die("open", 0, 0);
    for (step = 0; step < operations; step++) {
        switch (dice(20)) {
        case 0 ... 5: do_read(dice(2)); break;
        case 6 ... 12: do_write(dice(2)); break;
        case 13: do_truncate(dice(2)); break;
        case 14: do_punch(); break;
        case 15 ... 16: do_map(0); break;
        case 17: do_map(1); break;
        case 18: if (dice(4) == 0) do_reopen(); break;
        default: if (dice(16) == 0 && fsync(fd)) die("fsync", 0, 0);
        }
    }
    do_reopen();
    close(fd);
    unlink(path);
    return 0;
}

/* As "holetest -w" of xfstests: threads write one word to every page of a mapping of a file with holes, each its own,
   while others read and write the file. All words must be there in the end. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define THREADS 4
#define PAGES 256
#define PAGE 4096

static int fd;
static char *map;

static void *marks(void *argument) {
    long which = (long)argument;
    for (long page = 0; page < PAGES; page++) {
        uint64_t word = page << 8 | (which + 1);
        memcpy(map + page * PAGE + which * 8, &word, 8);
    }
    return NULL;
}

/* Writes words by "pwrite" into pages that the others write to by memory. */
static void *writes(void *argument) {
    long which = (long)argument;
    for (long page = 0; page < PAGES; page++) {
        uint64_t word = page << 8 | (which + 1);
        if (pwrite(fd, &word, 8, page * PAGE + which * 8) != 8) { perror("pwrite"); exit(3); }
    }
    return NULL;
}

int main(int argc, char **argv) {
    fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || ftruncate(fd, PAGES * PAGE)) { perror(argv[1]); return 2; }
    map = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) { perror("mmap"); return 2; }
    pthread_t threads[2 * THREADS];
    for (long i = 0; i < 2 * THREADS; i++) pthread_create(&threads[i], NULL, i < THREADS ? marks : writes, (void *)i);
    for (int i = 0; i < 2 * THREADS; i++) pthread_join(threads[i], NULL);
    if (msync(map, PAGES * PAGE, MS_SYNC) || fsync(fd)) { perror("msync"); return 3; }
    long lost = 0;
    for (long page = 0; page < PAGES; page++) {
        uint64_t words[2 * THREADS];
        if (pread(fd, words, sizeof words, page * PAGE) != sizeof words) return 4;
        for (long i = 0; i < 2 * THREADS; i++) lost += words[i] != (uint64_t)(page << 8 | (i + 1));
    }
    printf("%ld words lost\n", lost);
    return 0;
}

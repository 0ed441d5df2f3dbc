/* Random operations of several processes on one file: mapped, read and written concurrently. Each process owns every n-th word
 * of the file and checks its own words through mappings and reads; some processes are killed, and others continue in their place. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROCESSES 3
#define PAGE 4096L
#define WORDS (64 * PAGE / 8)
#define SIZE (WORDS * 8)

struct shared {
    uint64_t words[WORDS];
    uint64_t state[PROCESSES];
    long left[PROCESSES];
};
static struct shared *shared;
static const char *path;

static void fail(const char *what, long at, uint64_t found, uint64_t wanted) {
    fprintf(stderr, "%s: word %ld is %016lx instead of %016lx\n", what, at, found, wanted);
    _exit(1);
}
static uint64_t draw(int who) {
    uint64_t x = shared->state[who];
    x ^= x << 13; x ^= x >> 7; x ^= x << 17;
    return shared->state[who] = x;
}
static void check(const char *what, int who, const uint64_t *words, long from, long count) {
    for (long at = from; at < from + count; at++)
        if ((who < 0 || at % PROCESSES == who) && words[at - from] != shared->words[at])
            fail(what, at, words[at - from], shared->words[at]);
}

/* Maps a part of the file that begins at a page. */
struct map { uint64_t *words; long from, count; };
static struct map map_some(int fd, int who) {
    long first = draw(who) % 60, pages = 1 + draw(who) % (64 - first);
    struct map map = {mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, first * PAGE), first * 512, pages * 512};
    if (map.words == MAP_FAILED) { perror("mmap"); _exit(2); }
    return map;
}

static void work(int who) {
    int fd = open(path, O_RDWR);
    struct map map = map_some(fd, who);
    while (shared->left[who]-- > 0) {
        long at = draw(who) % (WORDS / PROCESSES) * PROCESSES + who, count = 1 + draw(who) % 2000;
        uint64_t word = draw(who);
        static uint64_t buffer[2000];
        switch (word % 100) {
        case 0 ... 39:
            if (at < map.from || at >= map.from + map.count) break;
            shared->words[at] = word;
            __atomic_store_n(&map.words[at - map.from], word, __ATOMIC_RELEASE);
            break;
        case 40 ... 59:
            shared->words[at] = word;
            if (pwrite(fd, &word, 8, at * 8) != 8) { perror("pwrite"); _exit(3); }
            break;
        case 60 ... 74:
            if (at + count > WORDS) count = WORDS - at;
            if (pread(fd, buffer, count * 8, at * 8) != count * 8) { perror("pread"); _exit(4); }
            check("read", who, buffer, at, count);
            break;
        case 75 ... 89: check("mapped", who, map.words, map.from, map.count); break;
        case 90 ... 91: if (msync(map.words, map.count * 8, MS_SYNC)) { perror("msync"); _exit(5); } break;
        case 92: if (fsync(fd)) { perror("fsync"); _exit(6); } break;
        case 93 ... 97:
            munmap(map.words, map.count * 8);
            map = map_some(fd, who);
            break;
        case 98: kill(getpid(), SIGKILL); break;
        default:
            close(fd);
            fd = open(path, O_RDWR);
        }
    }
    _exit(0);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    path = argv[1];
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (ftruncate(fd, SIZE)) return 3;
    pid_t people[PROCESSES];
    for (int who = 0; who < PROCESSES; who++) {
        shared->state[who] = strtoull(argv[2], 0, 10) * 2654435761u + who + 1;
        shared->left[who] = atol(argv[3]);
        if (!(people[who] = fork())) work(who);
    }
    for (int alive = PROCESSES; alive > 0;) {
        int status;
        pid_t pid = wait(&status);
        for (int who = 0; who < PROCESSES; who++) {
            if (people[who] != pid) continue;
            if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
                if (!(people[who] = fork())) work(who);
            } else if (status) return 4;
            else alive--;
        }
    }
    static uint64_t all[WORDS];
    if (pread(fd, all, SIZE, 0) != SIZE) return 5;
    check("read at the end", -1, all, 0, WORDS);
    uint64_t *mapped = mmap(0, SIZE, PROT_READ, MAP_SHARED, fd, 0);
    check("mapped at the end", -1, mapped, 0, WORDS);
    return 0;
}

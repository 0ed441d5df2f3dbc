/* Random operations of several processes on one file: mapped, read and written concurrently. Each process owns every n-th word
 * of the file and checks its own words through mappings and reads; some processes are killed, and others continue in their place.
 * Half of the operations are on a few words with two values, so that pages often return to an earlier content. One operation at a
 * time truncates, extends or punches, while the others wait. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/falloc.h>
#include <sched.h>
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
    long size;
    /* The number of processes at work; -1 while one changes the size. */
    int lock;
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

static void lock(int alone) {
    for (;;) {
        int now = __atomic_load_n(&shared->lock, __ATOMIC_ACQUIRE);
        if ((alone ? now == 0 : now >= 0)
            && __atomic_compare_exchange_n(&shared->lock, &now, alone ? -1 : now + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return;
        sched_yield();
    }
}
static void unlock(int alone) {
    if (alone) __atomic_store_n(&shared->lock, 0, __ATOMIC_RELEASE);
    else __atomic_fetch_sub(&shared->lock, 1, __ATOMIC_ACQ_REL);
}
static void clear(long from, long end) {
    for (long at = from; at < end; at++) shared->words[at] = 0;
}

/* Truncates, extends or punches the file. */
static void reshape(int fd, int who) {
    long from = draw(who) % WORDS, count = 1 + draw(who) % 2000;
    if (draw(who) % 2) {
        if (ftruncate(fd, from * 8)) { perror("ftruncate"); _exit(7); }
        if (from < shared->size) clear(from, shared->size);
        shared->size = from;
        /* Most of the time the file is long. */
        if (draw(who) % 4 == 0) return;
        if (fallocate(fd, 0, 0, SIZE)) { perror("fallocate"); _exit(8); }
        shared->size = WORDS;
    } else if (from < shared->size) {
        if (from + count > shared->size) count = shared->size - from;
        if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from * 8, count * 8)) { perror("punch"); _exit(9); }
        clear(from, from + count);
    }
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
        int kind = word % 100, alone = kind == 97;
        static uint64_t buffer[2000];
        if (draw(who) % 2) at = 512 * 6 + draw(who) % 3 * PROCESSES + who, word = 1 + draw(who) % 2;
        /* Killed without the lock. */
        if (kind == 98) kill(getpid(), SIGKILL);
        lock(alone);
        switch (kind) {
        case 0 ... 39:
            if (at < map.from || at >= map.from + map.count || at >= shared->size) break;
            shared->words[at] = word;
            __atomic_store_n(&map.words[at - map.from], word, __ATOMIC_RELEASE);
            break;
        case 40 ... 59:
            if (at >= shared->size) break;
            shared->words[at] = word;
            if (pwrite(fd, &word, 8, at * 8) != 8) { perror("pwrite"); _exit(3); }
            break;
        case 60 ... 74:
            if (at >= shared->size) break;
            if (at + count > shared->size) count = shared->size - at;
            if (pread(fd, buffer, count * 8, at * 8) != count * 8) { perror("pread"); _exit(4); }
            check("read", who, buffer, at, count);
            break;
        case 75 ... 89:
            count = shared->size - map.from < map.count ? shared->size - map.from : map.count;
            check("mapped", who, map.words, map.from, count);
            break;
        case 90 ... 91: if (msync(map.words, map.count * 8, MS_SYNC)) { perror("msync"); _exit(5); } break;
        case 92: if (fsync(fd)) { perror("fsync"); _exit(6); } break;
        case 93 ... 96:
            munmap(map.words, map.count * 8);
            map = map_some(fd, who);
            break;
        case 97: reshape(fd, who); break;
        default:
            close(fd);
            fd = open(path, O_RDWR);
        }
        unlock(alone);
    }
    _exit(0);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    path = argv[1];
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (ftruncate(fd, SIZE)) return 3;
    shared->size = WORDS;
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
    if (pread(fd, all, SIZE, 0) != shared->size * 8) return 5;
    check("read at the end", -1, all, 0, shared->size);
    uint64_t *mapped = mmap(0, SIZE, PROT_READ, MAP_SHARED, fd, 0);
    check("mapped at the end", -1, mapped, 0, shared->size);
    return 0;
}

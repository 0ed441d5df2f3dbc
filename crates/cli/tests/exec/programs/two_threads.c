/* Two threads submit to one ring: one reads a file of the directory of the first argument, the other a file elsewhere.
   Prints how many reads came short. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ROUNDS 20000

static int ring, files[2];
static _Atomic unsigned *tail, *reaped, *done;
static unsigned mask, events_mask, *array;
static struct io_uring_sqe *entries;
static struct io_uring_cqe *events;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic long finished[2], wrong[2];

static void reap(void) {
    pthread_mutex_lock(&lock);
    while (*reaped != atomic_load(done)) {
        struct io_uring_cqe *event = &events[*reaped & events_mask];
        if (event->res != 6) wrong[event->user_data]++;
        finished[event->user_data]++;
        atomic_store(reaped, *reaped + 1);
    }
    pthread_mutex_unlock(&lock);
}

static void *reader(void *argument) {
    long which = (long)argument;
    char buffer[8];
    for (long round = 1; round <= ROUNDS; round++) {
        pthread_mutex_lock(&lock);
        unsigned slot = *tail & mask;
        entries[slot] = (struct io_uring_sqe){.opcode = IORING_OP_READ, .fd = files[which], .addr = (unsigned long)buffer,
                                              .len = 6, .user_data = which};
        array[slot] = slot;
        atomic_store(tail, *tail + 1);
        pthread_mutex_unlock(&lock);
        syscall(SYS_io_uring_enter, ring, 1L, 0L, 0L, 0L, 0L);
        while (finished[which] < round) reap();
    }
    return NULL;
}

int main(int argc, char **argv) {
    struct io_uring_params made = {0};
    char elsewhere[] = "/tmp/fb-ring-XXXXXX";
    ring = syscall(SYS_io_uring_setup, 16L, &made);
    files[0] = open(argv[1], O_RDWR | O_CREAT, 0644);
    files[1] = mkstemp(elsewhere);
    unlink(elsewhere);
    for (int i = 0; i < 2; i++)
        if (write(files[i], "sixsix", 6) != 6) return 2;
    size_t size = made.cq_off.cqes + made.cq_entries * sizeof(struct io_uring_cqe);
    if (size < made.sq_off.array + made.sq_entries * 4) size = made.sq_off.array + made.sq_entries * 4;
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    entries = mmap(NULL, made.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    if (memory == MAP_FAILED || (void *)entries == MAP_FAILED) return 3;
    tail = (void *)(memory + made.sq_off.tail);
    reaped = (void *)(memory + made.cq_off.head);
    done = (void *)(memory + made.cq_off.tail);
    mask = *(unsigned *)(memory + made.sq_off.ring_mask);
    events_mask = *(unsigned *)(memory + made.cq_off.ring_mask);
    array = (void *)(memory + made.sq_off.array);
    events = (void *)(memory + made.cq_off.cqes);
    pthread_t threads[2];
    for (long i = 0; i < 2; i++) pthread_create(&threads[i], NULL, reader, (void *)i);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    printf("%ld and %ld short\n", wrong[0], wrong[1]);
    return 0;
}

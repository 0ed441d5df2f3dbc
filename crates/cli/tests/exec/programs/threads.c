/* 64 threads write records to one descriptor, and read them back from one; every record exists once. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 64, RECORDS = 50, SIZE = 64 };
static int fd;
static char seen[THREADS][RECORDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *writer(void *argument) {
    char record[SIZE + 1];
    for (int i = 0; i < RECORDS; i++) {
        snprintf(record, sizeof record, "%03ld %03d %0*d\n", (long)argument, i, SIZE - 9, i);
        if (write(fd, record, SIZE) != SIZE) { perror("write"); exit(1); }
    }
    return NULL;
}

static void *reader(void *argument) {
    char record[SIZE];
    (void)argument;
    long count;
    while ((count = read(fd, record, SIZE)) == SIZE) {
        int thread, number;
        if (sscanf(record, "%d %d", &thread, &number) != 2 || record[SIZE - 1] != '\n') { fprintf(stderr, "torn\n"); exit(1); }
        pthread_mutex_lock(&lock);
        seen[thread][number]++;
        pthread_mutex_unlock(&lock);
    }
    if (count) { perror("read"); exit(1); }
    return NULL;
}

static void all(void *(*work)(void *)) {
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    fd = open(argv[1], O_CREAT | O_RDWR | O_TRUNC, 0644);
    all(writer);
    if (lseek(fd, 0, SEEK_CUR) != THREADS * RECORDS * SIZE) return 2;
    lseek(fd, 0, SEEK_SET);
    all(reader);
    for (int t = 0; t < THREADS; t++)
        for (int r = 0; r < RECORDS; r++)
            if (seen[t][r] != 1) { fprintf(stderr, "record %d of %d: %d times\n", r, t, seen[t][r]); return 3; }
    close(fd);
    return 0;
}

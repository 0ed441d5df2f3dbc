/* A signal handler writes to a file while the program allocates memory on two threads; handlers may do that. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

enum { WRITES = 400 };
static int fd;
static volatile int written;
static int counted;

static void handler(int number) {
    (void)number;
    if (written < WRITES && write(fd, "line\n", 5) == 5) written = __atomic_add_fetch(&counted, 1, __ATOMIC_SEQ_CST);
}

static void *allocate(void *argument) {
    (void)argument;
    unsigned long state = 7;
    void *blocks[64] = {0};
    while (written < WRITES) {
        state = state * 6364136223846793005UL + 1442695040888963407UL;
        int at = (state >> 33) % 64;
        free(blocks[at]);
        blocks[at] = malloc(1 + (state >> 40) % 200000);
    }
    return NULL;
}

int main(int argc, char **argv) {
    (void)argc;
    fd = open(argv[1], O_CREAT | O_RDWR | O_TRUNC, 0644);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &often, NULL);
    pthread_t other;
    pthread_create(&other, NULL, allocate, NULL);
    allocate(NULL);
    pthread_join(other, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    struct stat s;
    if (fstat(fd, &s) || s.st_size != counted * 5L || counted < WRITES) { fprintf(stderr, "%ld bytes\n", (long)s.st_size); return 3; }
    return 0;
}

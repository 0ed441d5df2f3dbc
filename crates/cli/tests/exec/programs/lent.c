/* A child of `clone` that shares its parent's memory closes the parent's open files: the parent keeps them open. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int fd;

/* Runs in the child before it executes a program. */
static int child(void *argument) {
    (void)argument;
    int null = open("/dev/null", O_RDWR);
    if (null < 0 || dup2(null, 0) != 0 || dup2(fd, 1) != 1 || close(fd) || close(null)) _exit(4);
    _exit(0);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    fd = open(argv[1], O_CREAT | O_RDWR, 0644);
    if (write(fd, "one", 3) != 3) return 3;
    char *stack = malloc(1 << 20);
    int status = 0;
    pid_t made = clone(child, stack + (1 << 20), CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
    if (made < 0 || waitpid(made, &status, 0) != made || status) { fprintf(stderr, "child: %x\n", status); return 6; }
    char bytes[7] = {0};
    if (write(fd, "two", 3) != 3 || pread(fd, bytes, 6, 0) != 6) { perror("parent"); return 7; }
    if (close(fd)) return 8;
    puts(bytes);
    return 0;
}

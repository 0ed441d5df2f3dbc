/* As setpriv does: gives up root, keeps and raises capabilities, and changes its group with them; while others keep the
   only processor busy. The first argument is a file to write to. Prints how many of the children failed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILDREN 40
#define BUSY 3

static int drop(int fd) {
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) || setresuid(4001, 4001, 4001)) return 1;
    if (syscall(SYS_capget, &head, data)) return 2;
    for (int i = 0; i < 2; i++) data[i].effective = data[i].permitted;
    if (syscall(SYS_capset, &head, data)) return 3;
    if (setresgid(4001, 4001, 4001) || setgroups(0, NULL)) return 4;
    return write(fd, "x", 1) != 1;
}

int main(int argc, char **argv) {
    cpu_set_t one;
    int failed = 0, status, fd = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0600);
    pid_t busy[BUSY];
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    for (int i = 0; i < BUSY; i++)
        if (!(busy[i] = fork())) for (;;) {}
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        if (!child) _exit(drop(fd));
        waitpid(child, &status, 0);
        if (status) fprintf(stderr, "child %d ended with status %d\n", i, status);
        failed += status != 0;
    }
    for (int i = 0; i < BUSY; i++) kill(busy[i], SIGKILL);
    printf("%d failed\n", failed);
    return 0;
}

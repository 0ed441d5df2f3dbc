/* io_uring features that are not supported on files of Forebay: prints each with its error. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void say(const char *what, long result) {
    printf("%s %s\n", what, result < 0 ? strerrorname_np(errno) : "done");
}

static long make(unsigned flags) {
    struct io_uring_params made = {.flags = flags};
    return syscall(SYS_io_uring_setup, 4L, &made);
}

int main(int argc, char **argv) {
    int fd = open(argv[1], O_RDWR | O_CREAT, 0644), null = open("/dev/null", O_RDWR);
    say("polling thread", make(IORING_SETUP_SQPOLL));
    say("rings of the program's", make(1U << 14));
    long ring = make(0);
    say("plain", ring);
    if (ring < 0) return 0;
    int files[2] = {null, fd};
    say("register others", syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES, files, 1L));
    say("unregister", syscall(SYS_io_uring_register, ring, IORING_UNREGISTER_FILES, NULL, 0L));
    say("register ours", syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES, files, 2L));
    return 0;
}

/* Two of these, linked statically, share locks and pages. "hold FILE": locks and maps the file, writes a word to the
   mapping, and waits for the end of its input. "try FILE": prints whether it gets the lock, and the word. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv) {
    char byte;
    int fd = open(argv[2], O_RDWR | O_CREAT, 0644);
    if (fd < 0 || ftruncate(fd, 4096)) { perror(argv[2]); return 2; }
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int locked = fcntl(fd, F_SETLK, &lock), error = errno;
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) { perror("mmap"); return 3; }
    if (!strcmp(argv[1], "hold")) strcpy(page, "in memory");
    printf("%s %s\n", locked == 0 ? "locked" : strerrorname_np(error), page);
    fflush(stdout);
    while (!strcmp(argv[1], "hold") && read(0, &byte, 1) > 0) {}
    return 0;
}

/* A running program never sees a descriptor that it has not opened, not even briefly, since it may use that number itself.
   Each child starts afresh and writes enough to be granted memory ahead. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN = 16, PIECES = 16, PIECE = 1 << 20, LOOKS = 2000, NEXT = 3 };

static int next_free(void) {
    int fd = dup(0);
    close(fd);
    return fd;
}

/* How often a descriptor existed that the program has not opened. */
static int strangers(void) {
    int first = next_free(), seen = 0;
    for (int look = 0; look < LOOKS; look++)
        for (int fd = first; fd < first + NEXT; fd++) seen += fcntl(fd, F_GETFD) >= 0;
    return seen;
}

static int child(const char *path) {
    static char bytes[PIECE];
    int fd = open(path, O_CREAT | O_TRUNC | O_RDWR, 0644);
    int seen = strangers();
    for (int piece = 0; piece < PIECES; piece++) {
        memset(bytes, piece, PIECE);
        if (write(fd, bytes, PIECE) != PIECE) return 3;
        /* The last one is closed when memory for the next may be about to arrive. */
        if (piece < PIECES - 1) seen += strangers();
    }
    if (close(fd)) return 4;
    seen += strangers();
    if (unlink(path)) return 4;
    if (seen) fprintf(stderr, "%d strangers\n", seen);
    return seen ? 5 : 0;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    int failed = 0;
    for (int number = 0; number < CHILDREN; number++) {
        pid_t made = fork();
        if (!made) exit(child(argv[1]));
        int status;
        if (waitpid(made, &status, 0) != made) return 6;
        failed += status != 0;
    }
    printf("%d of %d\n", failed, CHILDREN);
    return 0;
}

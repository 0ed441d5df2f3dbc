/* A checkpoint written and read back through Forebay's own calls:

       cc checkpoint.c -I../crates/preload/include "$(forebay library)" -o checkpoint
       FOREBAY_SERVICE=unix:/run/user/1000/forebay.sock ./checkpoint /run1 */
#include <errno.h>
#include <fcntl.h>
#include <forebay.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 4, VALUES = 100000 };

static void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

int main(int argc, char **argv) {
    static double field[VALUES], back[VALUES];
    char dir[256], name[300], final[300];
    snprintf(dir, sizeof dir, "%s", argc > 1 ? argv[1] : "/checkpoints");
    if (fb_connect()) die("no service");
    if (fb_mkdir(dir, 0755) && errno != EEXIST) die(dir);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < VALUES; i++) field[i] = step + i * 0.5;
        snprintf(name, sizeof name, "%s/step.tmp", dir);
        snprintf(final, sizeof final, "%s/step.%d", dir, step);
        int fd = fb_open(name, O_CREAT | O_WRONLY | O_TRUNC, 0644);
        if (fd < 0) die(name);
        if (fb_write(fd, field, sizeof field) != sizeof field) die("write");
        if (fb_fsync(fd) || fb_close(fd)) die("close");
        /* Whoever looks finds a whole checkpoint or none. */
        if (fb_rename(name, final, 0)) die(final);
    }
    struct stat found;
    if (fb_stat(final, &found)) die(final);
    int fd = fb_open(final, O_RDONLY, 0);
    if (fd < 0 || fb_pread(fd, back, sizeof back, 0) != sizeof back) die("read");
    if (memcmp(field, back, sizeof back)) { fprintf(stderr, "%s differs\n", final); return 1; }
    fb_close(fd);
    printf("%s: %ld bytes (libforebay %s)\n", final, (long)found.st_size, fb_version());
    return 0;
}

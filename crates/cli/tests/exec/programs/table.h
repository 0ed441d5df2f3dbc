/* Shared by tables of operations: each operation is printed with its result. */
#define _GNU_SOURCE
#include <aio.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

static char root[PATH_MAX];
static FILE *out;

static void say(const char *what, long value) {
    int error = errno;
    if (value < 0) fprintf(out, "%s: %ld %s\n", what, value, strerrorname_np(error));
    else fprintf(out, "%s: %ld\n", what, value);
    errno = 0;
}
#define DO(call) (errno = 0, say(#call, (long)(call)))

static void text(const char *what, const char *value) { fprintf(out, "%s: %s\n", what, value ? value : "(null)"); }

static char *P(const char *name) {
    static char ring[16][PATH_MAX * 2];
    static int next;
    char *path = ring[next++ % 16];
    snprintf(path, sizeof ring[0], "%s/%s", root, name);
    return path;
}

static void put(const char *name, const char *bytes) {
    int fd = open(P(name), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (write(fd, bytes, strlen(bytes)) < 0) perror(name);
    close(fd);
}

static void show(const char *name) {
    char buffer[4096];
    int fd = open(P(name), O_RDONLY);
    long count = fd < 0 ? -1 : read(fd, buffer, sizeof buffer - 1);
    if (fd >= 0) close(fd);
    if (count < 0) { fprintf(out, "content of %s: %s\n", name, strerrorname_np(errno)); return; }
    fprintf(out, "content of %s: %ld ", name, count);
    for (long i = 0; i < count; i++) fprintf(out, buffer[i] >= ' ' && buffer[i] < 127 ? "%c" : "\\%02x", buffer[i] & 255);
    fprintf(out, "\n");
}

static void meta(const char *name) {
    struct stat s, l;
    errno = 0;
    if (stat(P(name), &s)) fprintf(out, "stat %s: %s\n", name, strerrorname_np(errno));
    else if (S_ISDIR(s.st_mode)) fprintf(out, "stat %s: %o links %ld\n", name, s.st_mode, (long)s.st_nlink);
    else fprintf(out, "stat %s: %o links %ld size %ld\n", name, s.st_mode, (long)s.st_nlink, (long)s.st_size);
    if (!lstat(P(name), &l)) fprintf(out, "lstat %s: %o\n", name, l.st_mode);
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void list(const char *name) {
    char *names[512];
    int count = 0;
    DIR *dir = opendir(P(name));
    if (!dir) { fprintf(out, "list %s: %s\n", name, strerrorname_np(errno)); return; }
    struct dirent *entry;
    while ((entry = readdir(dir))) {
        char line[300];
        snprintf(line, sizeof line, "%s(%d)", entry->d_name, entry->d_type);
        names[count++] = strdup(line);
    }
    closedir(dir);
    qsort(names, count, sizeof *names, by_text);
    fprintf(out, "list %s:", name);
    for (int i = 0; i < count; i++) { fprintf(out, " %s", names[i]); free(names[i]); }
    fprintf(out, "\n");
}

/* Runs a table in the directory of the first argument, and prints to the file of the second. */
static int begin(int argc, char **argv) {
    if (argc != 3) return 2;
    snprintf(root, sizeof root, "%s", argv[1]);
    setenv("DIR", root, 1);
    out = fopen(argv[2], "w");
    setvbuf(out, NULL, _IOLBF, 0);
    umask(022);
    return 0;
}

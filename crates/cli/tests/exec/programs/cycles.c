/* Opens and closes a file 10,000 times: no descriptor, memory or mapping is leaked. Mappings of the buffer itself belong
   to the server and do not count. The library keeps a few rings for the next files: how many depends on how fast the
   server consumes them, so they are counted apart. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Most rings that one thread, which has one file open at a time, may leave idle. */
#define MOST_RINGS 8

static long rings;

static int is_ring(const char *number) {
    char path[300], target[512];
    snprintf(path, sizeof path, "/proc/self/fd/%s", number);
    long length = readlink(path, target, sizeof target);
    return length > 5 && !strncmp(target + length - 5, ".ring", 5);
}

/* The number of descriptors that are no rings. */
static long descriptors(void) {
    long count = 0;
    DIR *dir = opendir("/proc/self/fd");
    rings = 0;
    for (struct dirent *entry; (entry = readdir(dir));)
        if (is_ring(entry->d_name)) rings++;
        else count++;
    closedir(dir);
    return count;
}

static long status(const char *name) {
    char line[256];
    long value = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name))) value = atol(line + strlen(name) + 1);
    fclose(file);
    return value;
}

static void cycle(const char *path, int times) {
    for (int i = 0; i < times; i++) {
        int fd = open(path, O_CREAT | O_RDWR, 0644), two = dup(fd);
        if (fd < 0 || write(two, "x", 1) != 1) { perror(path); exit(1); }
        close(fd);
        close(two);
        if (i % 10 == 0) {
            FILE *file = fopen(path, "r");
            getc(file);
            fclose(file);
            closedir(opendir("/fb"));
        }
    }
}

int main(int argc, char **argv) {
    (void)argc;
    cycle(argv[1], 500);
    long before = descriptors(), memory = status("RssAnon:");
    cycle(argv[1], 10000);
    long after = descriptors(), more = status("RssAnon:") - memory;
    if (before != after) { fprintf(stderr, "%ld descriptors became %ld\n", before, after); return 2; }
    if (rings > MOST_RINGS) { fprintf(stderr, "%ld idle rings\n", rings); return 4; }
    if (more > 4096) { fprintf(stderr, "%ld KiB more\n", more); return 3; }
    return 0;
}

/* Opens and closes a file 10,000 times: no descriptor, memory or mapping is leaked. Mappings of the buffer itself belong
   to the server and do not count. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long descriptors(void) {
    long count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir)) count++;
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
    if (more > 4096) { fprintf(stderr, "%ld KiB more\n", more); return 3; }
    return 0;
}

/* Writes numbered records and reads them back, one at a time: steady PATH RECORDS. Prints a line when it has begun. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    (void)argc;
    long records = atol(argv[2]);
    char record[65], back[64];
    int fd = open(argv[1], O_CREAT | O_RDWR | O_TRUNC, 0644);
    for (long i = 0; i < records; i++) {
        snprintf(record, sizeof record, "%063ld\n", i);
        if (write(fd, record, 64) != 64) { perror("write"); return 1; }
        if (pread(fd, back, 64, i * 64) != 64 || memcmp(record, back, 64)) { perror("read"); return 2; }
        if (i == 0) { puts("begun"); fflush(stdout); }
        usleep(500);
    }
    return close(fd);
}

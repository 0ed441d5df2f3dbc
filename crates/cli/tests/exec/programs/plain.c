/* Writes its name, its second argument and its directory to the file of the first argument, reads that back, and exits
   with the code of the third; with a fourth argument it first waits for ever. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    char dir[4096], text[8192], back[8192];
    int len = snprintf(text, sizeof text, "%s %s %s\n", argv[0], argv[2], getcwd(dir, sizeof dir));
    int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0) { perror(argv[1]); return 1; }
    if (write(fd, text, len) != len || pread(fd, back, sizeof back, 0) != len || memcmp(text, back, len)) return 1;
    if (close(fd)) return 1;
    write(1, text, len);
    if (argc > 4) pause();
    return atoi(argv[3]);
}

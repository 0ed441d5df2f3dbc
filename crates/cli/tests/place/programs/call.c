/* Creates a placed file through the function of the library. */
#include "../../../../place/include/forebay_place.h"
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv) {
  int fd = forebay_place_create(argv[argc - 1], O_WRONLY, 0600, 4, 4 << 20);
  if (fd < 0 || write(fd, "x", 1) != 1 || close(fd)) {
    perror("forebay_place_create");
    return 1;
  }
  return 0;
}

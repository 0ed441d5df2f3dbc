/* Creates files in every way the C library has. The first argument is the directory. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *dir;

static char *in(const char *name) {
  static char path[4096];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  return path;
}

static void must(int ok, const char *what) {
  if (!ok) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
  }
}

int main(int argc, char **argv) {
  dir = argc > 1 ? argv[1] : ".";
  umask(022);
  errno = 77;
  int fd = open(in("opened"), O_CREAT | O_WRONLY | O_TRUNC, 0640);
  must(fd >= 0 && errno == 77, "open");
  must(fcntl(fd, F_GETFL) % 4 == O_WRONLY && !(fcntl(fd, F_GETFL) & O_APPEND), "flags");
  must(write(fd, "abc", 3) == 3 && close(fd) == 0, "write");
  struct stat st;
  must(stat(in("opened"), &st) == 0 && (st.st_mode & 07777) == 0640 && st.st_size == 3, "mode");

  must((fd = open(in("exclusive"), O_CREAT | O_EXCL | O_RDWR, 0444)) >= 0, "exclusive");
  must(write(fd, "x", 1) == 1 && fstat(fd, &st) == 0 && (st.st_mode & 07777) == 0444, "read-only mode");
  close(fd);
  must(open(in("exclusive"), O_CREAT | O_EXCL | O_RDWR, 0600) == -1 && errno == EEXIST, "exclusive again");

  int at = open(dir, O_RDONLY | O_DIRECTORY);
  must((fd = openat(at, "openat", O_CREAT | O_WRONLY, 0600)) >= 0, "openat");
  close(fd);
  must((fd = creat(in("creat"), 0600)) >= 0, "creat");
  close(fd);
  must(chdir(dir) == 0, "chdir");
  FILE *stream = fopen("fopen", "w");
  must(stream && fputs("text", stream) >= 0 && fclose(stream) == 0, "fopen");
  must((stream = fopen("fopenx", "wx")) != NULL && fclose(stream) == 0, "fopen exclusive");
  must(fopen("fopenx", "wx") == NULL && errno == EEXIST, "fopen exclusive again");
  must((stream = fopen("appended", "a")) != NULL && fclose(stream) == 0, "fopen to append");
  must(fopen("absent", "r") == NULL && errno == ENOENT, "fopen to read");
  must((fd = open("opened", O_CREAT | O_RDONLY, 0600)) >= 0, "open again");
  char text[4] = "";
  must(read(fd, text, 3) == 3 && !strcmp(text, "abc"), "what was there");
  puts("all is well");
  return 0;
}

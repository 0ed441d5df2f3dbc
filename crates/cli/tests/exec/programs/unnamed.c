/* Files without a name in the directory. */
#include "table.h"

static char *descriptor(int fd) {
    static char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}

/* Those that never get one. */
static void exclusive(void) {
    char buffer[16] = "";
    struct stat found;
    int fd = open(root, O_TMPFILE | O_EXCL | O_RDWR, 0600);
    DO(fd >= 0);
    DO(write(fd, "nameless", 8));
    DO(pread(fd, buffer, 16, 0));
    text("read", buffer);
    DO(fstat(fd, &found));
    fprintf(out, "%o links %ld size %ld\n", found.st_mode, (long)found.st_nlink, (long)found.st_size);
    DO(linkat(AT_FDCWD, descriptor(fd), AT_FDCWD, P("never"), AT_SYMLINK_FOLLOW));
    DO(close(fd));
    DO(open(root, O_TMPFILE | O_EXCL | O_RDONLY, 0600));
    DO(open(P("file"), O_TMPFILE | O_EXCL | O_RDWR, 0600));
    DO(open(P("none"), O_TMPFILE | O_EXCL | O_RDWR, 0600));
    DO(open(root, O_TMPFILE | O_RDONLY, 0600));
}

static void named_later(void) {
    struct stat found;
    int fd = open(root, O_TMPFILE | O_RDWR, 0640);
    DO(fd >= 0);
    DO(fcntl(fd, F_GETFL) & (O_ACCMODE | O_TMPFILE | O_EXCL));
    DO(write(fd, "first", 5));
    list(".");
    DO(linkat(AT_FDCWD, descriptor(fd), AT_FDCWD, P("file"), AT_SYMLINK_FOLLOW));
    DO(fstat(fd, &found));
    DO(found.st_nlink);
    DO(linkat(AT_FDCWD, descriptor(fd), AT_FDCWD, P("named"), AT_SYMLINK_FOLLOW));
    meta("named");
    show("named");
    DO(write(fd, " second", 7));
    DO(linkat(fd, "", AT_FDCWD, P("again"), AT_EMPTY_PATH));
    meta("again");
    DO(close(fd));
    show("again");
    DO(unlink(P("named")));
    show("again");
    DO(unlink(P("again")));
    list(".");
    /* One that is given a name, and loses it again while it is open. */
    fd = open(root, O_TMPFILE | O_RDWR, 0640);
    DO(linkat(AT_FDCWD, descriptor(fd), AT_FDCWD, P("short"), AT_SYMLINK_FOLLOW));
    DO(unlink(P("short")));
    DO(write(fd, "still", 5));
    DO(close(fd));
}

/* Files that had a name are not given another. */
static void lost(void) {
    put("gone", "x");
    int fd = open(P("gone"), O_RDWR);
    DO(unlink(P("gone")));
    DO(linkat(AT_FDCWD, descriptor(fd), AT_FDCWD, P("back"), AT_SYMLINK_FOLLOW));
    DO(linkat(fd, "", AT_FDCWD, P("back"), AT_EMPTY_PATH));
    DO(close(fd));
    int dir = open(root, O_RDONLY | O_DIRECTORY);
    DO(linkat(dir, "", AT_FDCWD, P("back"), AT_EMPTY_PATH));
    DO(close(dir));
}

/* The kernel's names for what is open. */
static void descriptors(void) {
    char buffer[PATH_MAX] = "";
    int fd = open(P("file"), O_RDWR);
    long len = readlink(descriptor(fd), buffer, sizeof buffer - 1);
    fprintf(out, "link: %s\n", len > 0 && !strncmp(buffer, root, strlen(root)) ? buffer + strlen(root) : strerrorname_np(errno));
    int again = open(descriptor(fd), O_RDONLY);
    memset(buffer, 0, sizeof buffer);
    DO(read(again, buffer, 9));
    text("read", buffer);
    DO(write(again, "y", 1));
    DO(close(again));
    DO(open(descriptor(fd), O_RDWR | O_CREAT | O_EXCL, 0600));
    DO(open(descriptor(fd), O_RDONLY | O_NOFOLLOW));
    DO(unlink(P("file")));
    len = readlink(descriptor(fd), buffer, sizeof buffer - 1);
    buffer[len < 0 ? 0 : len] = 0;
    fprintf(out, "link: %s\n", len > (long)strlen(root) ? buffer + strlen(root) : strerrorname_np(errno));
    again = open(descriptor(fd), O_RDONLY);
    DO(read(again, buffer, 9));
    DO(close(again));
    DO(close(fd));
}

int main(int argc, char **argv) {
    if (begin(argc, argv)) return 2;
    put("file", "x");
    exclusive();
    named_later();
    lost();
    descriptors();
    list(".");
    fprintf(out, "end\n");
    return 0;
}

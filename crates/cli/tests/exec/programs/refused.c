/* Unsupported calls fail at once with a clear error: refused DIRECTORY. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

static char path[4096];
static const char *P(const char *root, const char *name) {
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

static void say(const char *what, long value) { printf("%s %s\n", what, value < 0 ? strerrorname_np(errno) : "works"); }

int main(int argc, char **argv) {
    (void)argc;
    const char *root = argv[1];
    int fd = open(P(root, "file"), O_CREAT | O_RDWR, 0644);
    say("inotify", inotify_add_watch(inotify_init(), P(root, "file"), IN_MODIFY));
    say("inotify of nothing", inotify_add_watch(inotify_init(), P(root, "none"), IN_MODIFY));
    struct { struct file_handle handle; char room[128]; } handle = {.handle.handle_bytes = 128};
    int mount;
    say("handle", name_to_handle_at(AT_FDCWD, P(root, "file"), &handle.handle, &mount, 0));
    say("fanotify", fanotify_mark(-1, FAN_MARK_ADD, FAN_OPEN, AT_FDCWD, P(root, "file")));
    char *roots[] = {(char *)root, NULL};
    say("fts", fts_open(roots, FTS_PHYSICAL, NULL) ? 0 : -1);
    say("reflink", ioctl(fd, FICLONE, fd));
    say("terminal", ioctl(fd, 0x5401, path));
    say("lease", fcntl(fd, F_SETLEASE, F_WRLCK));
    say("collapse", fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, 4096));
    say("rename", rename(P(root, "file"), "/tmp/elsewhere"));
    FILE *stream = fdopen(fd, "w");
    errno = 0;
    printf("wide %s\n", fputws(L"wide", stream) < 0 ? "refused" : "works");
    return 0;
}

/* Forebay for programs that know of it: a burst buffer's files by calls of their own.

   Link with libforebay.so (`forebay library` says where it is). FOREBAY_SERVICE names the service, and FOREBAY_KEY the
   key file over TCP. Paths start at the root of the service. All calls set errno as their namesakes do. */

#ifndef FOREBAY_H
#define FOREBAY_H

#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens a file of the service; flags and mode as for `open`. Gives a descriptor, or -1 with `errno` set.
int fb_open(const char *path, int flags, mode_t mode);

// Closes a descriptor that `fb_open` gave.
int fb_close(int fd);

// Reads from the current offset.
ssize_t fb_read(int fd, void *into, size_t len);

// Writes at the current offset. When it returns, every later read anywhere sees the bytes.
ssize_t fb_write(int fd, const void *from, size_t len);

// Reads from an offset; the current one stays.
ssize_t fb_pread(int fd, void *into, size_t len, off_t offset);

// Writes at an offset; the current one stays.
ssize_t fb_pwrite(int fd, const void *from, size_t len, off_t offset);

// Moves the current offset.
off_t fb_lseek(int fd, off_t offset, int whence);

// Waits until everything written to the file is on the device.
int fb_fsync(int fd);

// Sets the length of an open file.
int fb_ftruncate(int fd, off_t size);

// Attributes of an open file.
int fb_fstat(int fd, struct stat *into);

// Attributes of what is at a path, links followed.
int fb_stat(const char *path, struct stat *into);

// Makes a directory.
int fb_mkdir(const char *path, mode_t mode);

// Removes an empty directory.
int fb_rmdir(const char *path);

// Removes a name of a file.
int fb_unlink(const char *path);

// Moves a name; flags as for `renameat2`.
int fb_rename(const char *from, const char *to, unsigned int flags);

// Connects now rather than at the first call, and says whether the service answers.
int fb_connect(void);

// The version of the library, such as "0.1.0". It stays where it is.
const char *fb_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FOREBAY_H */

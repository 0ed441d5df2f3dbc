/* Functions of Forebay, a burst-buffer file system, for programs that call it directly.

   Link with libforebay.so (`forebay library` prints its path). FOREBAY_SERVICE names the service, and FOREBAY_KEY the
   key file over TCP. Paths start at the root of the service. All functions set errno as their POSIX counterparts do. */

#ifndef FOREBAY_H
#define FOREBAY_H

#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Opens a file of the service; flags and mode as for `open`. Returns a descriptor, or -1 with `errno` set.
int fb_open(const char *path, int flags, mode_t mode);

// Closes a descriptor that `fb_open` returned.
int fb_close(int fd);

// Reads from the current offset.
ssize_t fb_read(int fd, void *into, size_t len);

// Writes at the current offset. After it returns, every later read on any node sees the bytes.
ssize_t fb_write(int fd, const void *from, size_t len);

// Reads from an offset; the current offset does not change.
ssize_t fb_pread(int fd, void *into, size_t len, off_t offset);

// Writes at an offset; the current offset does not change.
ssize_t fb_pwrite(int fd, const void *from, size_t len, off_t offset);

// Moves the current offset.
off_t fb_lseek(int fd, off_t offset, int whence);

// Waits until all data written to the file is on stable storage.
int fb_fsync(int fd);

// Sets the size of an open file.
int fb_ftruncate(int fd, off_t size);

// Returns the attributes of an open file.
int fb_fstat(int fd, struct stat *into);

// Returns the attributes of the file at a path; follows symbolic links.
int fb_stat(const char *path, struct stat *into);

// Creates a directory.
int fb_mkdir(const char *path, mode_t mode);

// Removes an empty directory.
int fb_rmdir(const char *path);

// Removes a name of a file.
int fb_unlink(const char *path);

// Renames a file or directory; flags as for `renameat2`.
int fb_rename(const char *from, const char *to, unsigned int flags);

// Connects now instead of at the first call. Fails if the service does not answer.
int fb_connect(void);

// Returns the version of the library, such as "0.1.0". The string is static.
const char *fb_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FOREBAY_H */

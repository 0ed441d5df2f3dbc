/* Emulates an old Lustre: statfs reports Lustre, and layouts are set and read by its ioctl, not by the attribute. To be
   preloaded after the library; a layout reaches the file system under another attribute name. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

int fstatfs(int fd, struct statfs *found) {
  int code = syscall(SYS_fstatfs, fd, found);
  if (code == 0) found->f_type = 0x0BD00BD0;
  return code;
}

int ioctl(int fd, unsigned long request, ...) {
  va_list list;
  va_start(list, request);
  char *lov = va_arg(list, char *);
  va_end(list);
  uint32_t magic, size;
  uint16_t count;
  if (request == 0x4008669A) {
    memcpy(&magic, lov, 4);
    memcpy(&size, lov + 4, 4);
    memcpy(&count, lov + 28, 2);
    if (magic != 0x0BD60BD0) size = 48 + 24 * count;
    return fsetxattr(fd, "old.lov", lov, size, 0);
  }
  if (request == 0x4008669B) {
    memcpy(&magic, lov, 4);
    memcpy(&count, lov + 28, 2);
    if (magic != 0x0BD30BD0 || count < 2000) {
      errno = EINVAL;
      return -1;
    }
    return fgetxattr(fd, "old.lov", lov, 65536) < 0 ? -1 : 0;
  }
  return syscall(SYS_ioctl, fd, request, lov);
}

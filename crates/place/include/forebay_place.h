/* Explicit placement of new files.

   Link with libforebay_place.so, which `forebay place exec` loads, or statically with `forebay place ldflags`. Without
   the settings from `forebay place exec`, files are created as by `open`. */

#ifndef FOREBAY_PLACE_H
#define FOREBAY_PLACE_H

#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif  // __cplusplus

// Opens a file as `open` does with O_CREAT; a new file gets the layout planned for the given writers and bytes
// (0: unknown). Returns a descriptor, or -1 with `errno` set.
int forebay_place_create(const char *path, int flags, mode_t mode, unsigned int writers, uint64_t bytes);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FOREBAY_PLACE_H */

/* Placement for programs that ask for it by name.

   Link with libforebay_place.so, which `forebay place exec` loads, or statically with `forebay place ldflags`. Without the
   setting that `forebay place exec` hands over, files are created as `open` does. */

#ifndef FOREBAY_PLACE_H
#define FOREBAY_PLACE_H

#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif  // __cplusplus

// Opens a file as `open` does with O_CREAT; one that is new lies as is planned for so many writers and bytes (0: not known).
// Gives a descriptor, or -1 with `errno` set.
int forebay_place_create(const char *path, int flags, mode_t mode, unsigned int writers, uint64_t bytes);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FOREBAY_PLACE_H */

/* A library with the mark of Go's linker. */
#include "go_mark.h"
long append(const char *path, const char *bytes, long count) { return count; }

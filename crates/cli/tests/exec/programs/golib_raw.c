/* A library with the mark of Go's linker that makes system calls by its own instruction, as Go does. */
#include "go_mark.h"
#include "rawlib.c"

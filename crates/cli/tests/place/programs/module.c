/* A module that depends on MPI: one rank, with a file of its own. */
#include <mpi.h>
#include <stdio.h>

int make(const char *dir) {
  char path[4096];
  int provided;
  MPI_File file;
  snprintf(path, sizeof path, "%s/module", dir);
  if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) return 1;
  int mode = MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_WRONLY;
  if (MPI_File_open(MPI_COMM_WORLD, path, mode, MPI_INFO_NULL, &file) != MPI_SUCCESS) return 2;
  if (MPI_File_write_at(file, 0, "text", 4, MPI_CHAR, MPI_STATUS_IGNORE) != MPI_SUCCESS) return 3;
  return MPI_File_close(&file) != MPI_SUCCESS || MPI_Finalize() != MPI_SUCCESS;
}

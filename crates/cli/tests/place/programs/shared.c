/* Files of several ranks. The first argument is the directory. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *dir;

static const char *in(const char *name) {
  static char path[4096];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  return path;
}

static void must(int code, const char *what) {
  if (code != MPI_SUCCESS) {
    char text[MPI_MAX_ERROR_STRING];
    int length;
    MPI_Error_string(code, text, &length);
    fprintf(stderr, "%s: %s\n", what, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

static void make(MPI_Comm comm, const char *name, int mode, MPI_Info info) {
  MPI_File file;
  int rank;
  MPI_Comm_rank(comm, &rank);
  must(MPI_File_open(comm, in(name), MPI_MODE_CREATE | MPI_MODE_RDWR | mode, info, &file), name);
  char block[1000];
  memset(block, 'a' + rank, sizeof block);
  must(MPI_File_write_at_all(file, rank * 1000, block, 1000, MPI_CHAR, MPI_STATUS_IGNORE), "write");
  must(MPI_File_close(&file), "close");
}

int main(int argc, char **argv) {
  int rank, size;
  must(MPI_Init(&argc, &argv), "init");
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  dir = argv[1];
  MPI_Info info;
  MPI_Info_create(&info);
  MPI_Info_set(info, "fileSize", "4194304");
  make(MPI_COMM_WORLD, "sized", 0, info);
  make(MPI_COMM_WORLD, "exclusive", MPI_MODE_EXCL, info);
  MPI_File file;
  int again = MPI_File_open(MPI_COMM_WORLD, in("exclusive"), MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_EXCL, info, &file);
  if (again == MPI_SUCCESS) {
    fprintf(stderr, "an exclusive file was made twice\n");
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Info_set(info, "striping_factor", "2");
  MPI_Info_set(info, "striping_unit", "131072");
  make(MPI_COMM_WORLD, "asked", 0, info);
  MPI_Info_free(&info);
  MPI_Info_create(&info);
  MPI_Info_set(info, "file_size", "2097152");
  MPI_Info_set(info, "writers_per_file", "2");
  make(MPI_COMM_WORLD, "pair", 0, info);
  MPI_Info_free(&info);
  make(MPI_COMM_WORLD, "unknown.1", 0, MPI_INFO_NULL);
  make(MPI_COMM_WORLD, "unknown.2", 0, MPI_INFO_NULL);
  char name[64];
  snprintf(name, sizeof name, "own.%d", rank);
  make(MPI_COMM_SELF, name, 0, MPI_INFO_NULL);
  MPI_Comm half;
  MPI_Comm_split(MPI_COMM_WORLD, rank / 2, rank, &half);
  MPI_Info_create(&info);
  MPI_Info_set(info, "file_size", "2097152");
  snprintf(name, sizeof name, "half.%d", rank / 2);
  make(half, name, 0, info);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) puts("all is well");
  MPI_Finalize();
  return 0;
}

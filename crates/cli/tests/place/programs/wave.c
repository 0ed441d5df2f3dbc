/* One file per rank. The first argument is the prefix of its path. */
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv) {
  int rank;
  char path[4096];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  snprintf(path, sizeof path, "%s%d", argv[1], rank);
  FILE *file = fopen(path, "w");
  if (!file || fputs("text", file) < 0 || fclose(file)) MPI_Abort(MPI_COMM_WORLD, 1);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) puts("all is well");
  MPI_Finalize();
  return 0;
}

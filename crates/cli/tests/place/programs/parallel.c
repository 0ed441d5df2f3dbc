/* Datasets of several ranks in HDF5 files: one created exclusively with a given size, and one of unknown size whose datasets
   are aligned. The first argument is the path of the first; the other's ends with "aligned". */
#include <hdf5.h>
#include <stdio.h>

static int rank, size;

static int made(const char *path, unsigned how, hid_t access) {
  hid_t file = H5Fcreate(path, how, H5P_DEFAULT, access);
  hsize_t count = size, one = 1, at = rank;
  hid_t space = H5Screate_simple(1, &count, NULL), mine = H5Screate_simple(1, &one, NULL);
  hid_t set = H5Dcreate2(file, "ranks", H5T_NATIVE_INT, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  H5Sselect_hyperslab(space, H5S_SELECT_SET, &at, NULL, &one, NULL);
  int done = file >= 0 && set >= 0 && H5Dwrite(set, H5T_NATIVE_INT, mine, space, H5P_DEFAULT, &rank) >= 0;
  H5Dclose(set);
  return done && H5Fclose(file) >= 0;
}

int main(int argc, char **argv) {
  int provided;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Info info;
  MPI_Info_create(&info);
  MPI_Info_set(info, "file_size", "4194304");
  hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_fapl_mpio(access, MPI_COMM_WORLD, info);
  int done = made(argv[1], H5F_ACC_EXCL, access);
  H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL);
  H5Pset_alignment(access, 1, 2 << 20);
  char path[4096];
  snprintf(path, sizeof path, "%saligned", argv[1]);
  done = done && made(path, H5F_ACC_TRUNC, access);
  int all;
  MPI_Allreduce(&done, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (rank == 0 && all) puts("all is well");
  MPI_Finalize();
  return !all;
}

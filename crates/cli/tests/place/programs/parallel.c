/* A dataset of several ranks in one HDF5 file, made exclusively. */
#include <hdf5.h>
#include <stdio.h>

int main(int argc, char **argv) {
  int rank, size;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Info info;
  MPI_Info_create(&info);
  MPI_Info_set(info, "file_size", "4194304");
  hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_fapl_mpio(access, MPI_COMM_WORLD, info);
  hid_t file = H5Fcreate(argv[1], H5F_ACC_EXCL, H5P_DEFAULT, access);
  hsize_t count = size, one = 1, at = rank;
  hid_t space = H5Screate_simple(1, &count, NULL), mine = H5Screate_simple(1, &one, NULL);
  hid_t set = H5Dcreate2(file, "ranks", H5T_NATIVE_INT, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  H5Sselect_hyperslab(space, H5S_SELECT_SET, &at, NULL, &one, NULL);
  int done = file >= 0 && set >= 0 && H5Dwrite(set, H5T_NATIVE_INT, mine, space, H5P_DEFAULT, &rank) >= 0;
  H5Dclose(set);
  done = done && H5Fclose(file) >= 0;
  int all;
  MPI_Allreduce(&done, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (rank == 0 && all) puts("all is well");
  MPI_Finalize();
  return !all;
}

/* HDF5 by one process: a file created exclusively, and a family of files of one MiB. The first argument is the directory. */
#include <hdf5.h>
#include <stdio.h>
#include <string.h>

static char path[4096];

static const char *in(const char *dir, const char *name) {
  snprintf(path, sizeof path, "%s/%s", dir, name);
  return path;
}

static int filled(hid_t file) {
  static char bytes[3 << 20];
  hsize_t size = sizeof bytes;
  hid_t space = H5Screate_simple(1, &size, NULL);
  hid_t set = H5Dcreate2(file, "bytes", H5T_NATIVE_CHAR, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  int done = H5Dwrite(set, H5T_NATIVE_CHAR, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes) >= 0;
  H5Dclose(set);
  H5Sclose(space);
  return H5Fclose(file) >= 0 && done;
}

int make(const char *dir) {
  if (!filled(H5Fcreate(in(dir, "single.h5"), H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT))) return 1;
  H5E_BEGIN_TRY { if (H5Fcreate(path, H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT) >= 0) return 2; }
  H5E_END_TRY
  hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  if (H5Pset_fapl_family(access, 1 << 20, H5P_DEFAULT) < 0) return 3;
  if (!filled(H5Fcreate(in(dir, "family%d.h5"), H5F_ACC_TRUNC, H5P_DEFAULT, access))) return 4;
  return 0;
}

#ifndef MODULE
int main(int argc, char **argv) {
  int code = make(argv[argc - 1]);
  if (code == 0) puts("all is well");
  return code;
}
#endif

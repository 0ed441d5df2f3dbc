// Parallel HDF5: a dataset of all ranks with an attribute, written collectively and independently, and read back in reverse rank order.
#include <hdf5.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 64, COLUMNS = 1000 };
static int rank, ranks;

#define THAT(condition)                                                                                   \
    do {                                                                                                  \
        if (!(condition)) {                                                                               \
            fprintf(stderr, "rank %d, line %d: %s\n", rank, __LINE__, #condition);                        \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                 \
        }                                                                                                 \
    } while (0)

static hid_t access_by_all(void) {
    hid_t list = H5Pcreate(H5P_FILE_ACCESS);
    THAT(H5Pset_fapl_mpio(list, MPI_COMM_WORLD, MPI_INFO_NULL) >= 0);
    return list;
}

static hid_t rows_of(hid_t set, int owner) {
    hid_t space = H5Dget_space(set);
    hsize_t start[2] = {owner * (hsize_t)ROWS, 0}, count[2] = {ROWS, COLUMNS};
    THAT(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL) >= 0);
    return space;
}

int main(int argc, char **argv) {
    static double written[ROWS][COLUMNS], found[ROWS][COLUMNS];
    char name[4096];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    snprintf(name, sizeof name, "%s/data.h5", argv[1]);
    hid_t list = access_by_all();
    hid_t file = H5Fcreate(name, H5F_ACC_TRUNC, H5P_DEFAULT, list);
    THAT(file >= 0);
    hsize_t all[2] = {ranks * (hsize_t)ROWS, COLUMNS}, chunk[2] = {ROWS / 2, COLUMNS}, part[2] = {ROWS, COLUMNS};
    hid_t space = H5Screate_simple(2, all, NULL), memory = H5Screate_simple(2, part, NULL);
    hid_t chunked = H5Pcreate(H5P_DATASET_CREATE);
    THAT(H5Pset_chunk(chunked, 2, chunk) >= 0);
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < COLUMNS; column++) written[row][column] = rank * 1e6 + row * 1e3 + column;
    for (int together = 0; together < 2; together++) {
        hid_t set = H5Dcreate2(file, together ? "together" : "apart", H5T_NATIVE_DOUBLE, space, H5P_DEFAULT,
                               together ? chunked : H5P_DEFAULT, H5P_DEFAULT);
        hid_t how = H5Pcreate(H5P_DATASET_XFER);
        THAT(H5Pset_dxpl_mpio(how, together ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT) >= 0);
        hid_t mine = rows_of(set, rank);
        THAT(H5Dwrite(set, H5T_NATIVE_DOUBLE, memory, mine, how, written) >= 0);
        H5Sclose(mine);
        H5Pclose(how);
        H5Dclose(set);
    }
    hid_t one = H5Screate(H5S_SCALAR);
    hid_t note = H5Acreate2(file, "ranks", H5T_NATIVE_INT, one, H5P_DEFAULT, H5P_DEFAULT);
    THAT(H5Awrite(note, H5T_NATIVE_INT, &ranks) >= 0);
    H5Aclose(note);
    THAT(H5Fclose(file) >= 0);
    MPI_Barrier(MPI_COMM_WORLD);

    file = H5Fopen(name, H5F_ACC_RDONLY, list);
    THAT(file >= 0);
    int next = (rank + 1) % ranks, noted = 0;
    for (int together = 0; together < 2; together++) {
        hid_t set = H5Dopen2(file, together ? "together" : "apart", H5P_DEFAULT);
        hid_t how = H5Pcreate(H5P_DATASET_XFER);
        THAT(H5Pset_dxpl_mpio(how, together ? H5FD_MPIO_INDEPENDENT : H5FD_MPIO_COLLECTIVE) >= 0);
        hid_t theirs = rows_of(set, next);
        memset(found, 0, sizeof found);
        THAT(H5Dread(set, H5T_NATIVE_DOUBLE, memory, theirs, how, found) >= 0);
        for (int row = 0; row < ROWS; row++)
            for (int column = 0; column < COLUMNS; column++)
                THAT(found[row][column] == next * 1e6 + row * 1e3 + column);
        H5Sclose(theirs);
        H5Pclose(how);
        H5Dclose(set);
    }
    note = H5Aopen(file, "ranks", H5P_DEFAULT);
    THAT(H5Aread(note, H5T_NATIVE_INT, &noted) >= 0 && noted == ranks);
    H5Aclose(note);
    THAT(H5Fclose(file) >= 0);
    if (rank == 0) printf("%d ranks agree\n", ranks);
    MPI_Finalize();
    return 0;
}

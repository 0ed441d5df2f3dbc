// Ranks write and read files by POSIX and by MPI-IO in all its modes; every byte is compared.
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int rank, ranks;
static char path[4096];
static const char *root, *kind = "";

#define MUST(call) must((call), #call, __LINE__)
#define THAT(condition) that((condition), #condition, __LINE__)

static void die(const char *what, int line, const char *why) {
    fprintf(stderr, "rank %d, line %d, %s: %s\n", rank, line, what, why);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void must(int code, const char *what, int line) {
    if (code != MPI_SUCCESS) {
        char why[MPI_MAX_ERROR_STRING];
        int length;
        MPI_Error_string(code, why, &length);
        die(what, line, why);
    }
}

static void that(int condition, const char *what, int line) {
    if (!condition) die(what, line, strerror(errno));
}

static const char *in(const char *name) {
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

// The same for MPI-IO, whose file names may carry the kind of file system.
static const char *of_mpi(const char *name) {
    snprintf(path, sizeof path, "%s%s/%s", kind, root, name);
    return path;
}

// The data at an offset of a file: different for every file and every offset.
static int word(int file, long place) { return (int)(place * 2654435761u + file * 40503u); }

static void fill(int *words, int file, long first, int count) {
    for (int i = 0; i < count; i++) words[i] = word(file, first + i);
}

static int same(const int *words, int file, long first, int count) {
    for (int i = 0; i < count; i++)
        if (words[i] != word(file, first + i)) return 0;
    return 1;
}

enum { COUNT = 40000 };
static int out[COUNT], back[COUNT];
static const size_t BYTES = COUNT * sizeof(int);

static MPI_File open_new(const char *name, int mode) {
    MPI_File file;
    MUST(MPI_File_open(MPI_COMM_WORLD, of_mpi(name), mode | MPI_MODE_CREATE, MPI_INFO_NULL, &file));
    MUST(MPI_File_set_size(file, 0));
    return file;
}

static long size_of(const char *name) {
    struct stat facts;
    THAT(stat(in(name), &facts) == 0);
    return facts.st_size;
}

static void posix(void) {
    char name[64];
    snprintf(name, sizeof name, "own.%d", rank);
    fill(out, 1, rank * (long)COUNT, COUNT);
    int fd = open(in(name), O_CREAT | O_TRUNC | O_WRONLY, 0644);
    THAT(fd >= 0 && write(fd, out, BYTES) == (ssize_t)BYTES && close(fd) == 0);
    fd = open(in("shared"), O_CREAT | O_RDWR, 0644);
    THAT(fd >= 0 && pwrite(fd, out, BYTES, rank * BYTES) == (ssize_t)BYTES);
    MPI_Barrier(MPI_COMM_WORLD);
    int next = (rank + 1) % ranks;
    THAT(pread(fd, back, BYTES, next * BYTES) == (ssize_t)BYTES && close(fd) == 0);
    THAT(same(back, 1, next * (long)COUNT, COUNT));
    snprintf(name, sizeof name, "own.%d", next);
    FILE *stream = fopen(in(name), "r");
    THAT(stream && fread(back, 1, BYTES, stream) == BYTES && fclose(stream) == 0);
    THAT(same(back, 1, next * (long)COUNT, COUNT));
    // Lines appended by all ranks stay whole.
    stream = fopen(in("log"), "a");
    for (int i = 0; i < 100; i++) THAT(fprintf(stream, "rank %d line %02d\n", rank, i) > 0 && fflush(stream) == 0);
    THAT(fclose(stream) == 0);
    MPI_Barrier(MPI_COMM_WORLD);
    THAT(size_of("log") == ranks * 1500L);
}

static void independent(void) {
    MPI_File file = open_new("independent", MPI_MODE_RDWR);
    fill(out, 2, rank * (long)COUNT, COUNT);
    MPI_Request request;
    MUST(MPI_File_write_at(file, rank * BYTES, out, COUNT / 2, MPI_INT, MPI_STATUS_IGNORE));
    MUST(MPI_File_iwrite_at(file, rank * BYTES + BYTES / 2, out + COUNT / 2, COUNT / 2, MPI_INT, &request));
    MUST(MPI_Wait(&request, MPI_STATUS_IGNORE));
    MUST(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    MUST(MPI_File_sync(file));
    int next = (rank + 1) % ranks, count;
    MPI_Status status;
    MUST(MPI_File_seek(file, next * BYTES, MPI_SEEK_SET));
    MUST(MPI_File_read(file, back, COUNT, MPI_INT, &status));
    MPI_Get_count(&status, MPI_INT, &count);
    THAT(count == COUNT && same(back, 2, next * (long)COUNT, COUNT));
    MPI_Offset size;
    MUST(MPI_File_get_size(file, &size));
    THAT(size == (MPI_Offset)(ranks * BYTES));
    MUST(MPI_File_close(&file));
    THAT(size_of("independent") == (long)(ranks * BYTES));
}

// Ranks alternate in small blocks; the gaps belong to other ranks, so that data sieving reads, modifies and writes them.
static void collective(int file_number, const char *name, int all, MPI_Info info) {
    enum { BLOCK = 50 };
    MPI_File file;
    MPI_Datatype blocks;
    MUST(MPI_File_open(MPI_COMM_WORLD, of_mpi(name), MPI_MODE_RDWR | MPI_MODE_CREATE, info, &file));
    MUST(MPI_File_set_size(file, 0));
    MPI_Type_vector(COUNT / BLOCK, BLOCK, BLOCK * ranks, MPI_INT, &blocks);
    MPI_Type_commit(&blocks);
    MUST(MPI_File_set_view(file, rank * BLOCK * sizeof(int), MPI_INT, blocks, "native", info));
    for (int block = 0; block < COUNT / BLOCK; block++)
        fill(out + block * BLOCK, file_number, (block * (long)ranks + rank) * BLOCK, BLOCK);
    if (all)
        MUST(MPI_File_write_all(file, out, COUNT, MPI_INT, MPI_STATUS_IGNORE));
    else
        MUST(MPI_File_write(file, out, COUNT, MPI_INT, MPI_STATUS_IGNORE));
    MUST(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    MUST(MPI_File_sync(file));
    memset(back, 0, BYTES);
    MUST(all ? MPI_File_read_at_all(file, 0, back, COUNT, MPI_INT, MPI_STATUS_IGNORE)
             : MPI_File_read_at(file, 0, back, COUNT, MPI_INT, MPI_STATUS_IGNORE));
    THAT(memcmp(out, back, BYTES) == 0);
    MUST(MPI_File_close(&file));
    MPI_Type_free(&blocks);
    // The whole file, read by every rank.
    int fd = open(in(name), O_RDONLY);
    THAT(fd >= 0 && pread(fd, back, BYTES, rank * BYTES) == (ssize_t)BYTES && close(fd) == 0);
    THAT(same(back, file_number, rank * (long)COUNT, COUNT));
    THAT(size_of(name) == (long)(ranks * BYTES));
    MPI_Barrier(MPI_COMM_WORLD);
}

static void shared_pointers(void) {
    enum { PIECE = 1000, PIECES = 10 };
    MPI_File file = open_new("ordered", MPI_MODE_RDWR);
    fill(out, 5, rank * (long)PIECE, PIECE);
    MUST(MPI_File_write_ordered(file, out, PIECE, MPI_INT, MPI_STATUS_IGNORE));
    MUST(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    MUST(MPI_File_read_ordered(file, back, PIECE, MPI_INT, MPI_STATUS_IGNORE));
    THAT(same(back, 5, rank * (long)PIECE, PIECE));
    MUST(MPI_File_close(&file));
    file = open_new("pieces", MPI_MODE_RDWR);
    for (int piece = 0; piece < PIECES; piece++) {
        for (int i = 0; i < PIECE; i++) out[i] = rank * PIECES + piece;
        MUST(MPI_File_write_shared(file, out, PIECE, MPI_INT, MPI_STATUS_IGNORE));
    }
    MUST(MPI_File_close(&file));
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        // Every piece exists once and whole, in any order.
        int seen[1024] = {0}, fd = open(in("pieces"), O_RDONLY);
        for (int piece = 0; piece < ranks * PIECES; piece++) {
            THAT(read(fd, back, PIECE * sizeof(int)) == PIECE * sizeof(int));
            for (int i = 1; i < PIECE; i++) THAT(back[i] == back[0]);
            THAT(back[0] >= 0 && back[0] < ranks * PIECES && seen[back[0]]++ == 0);
        }
        THAT(read(fd, back, 1) == 0 && close(fd) == 0);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

// All ranks repeatedly write the same range; each reads only whole writes.
static void atomic_mode(void) {
    enum { PART = 5000, ROUNDS = 20 };
    MPI_File file = open_new("atomic", MPI_MODE_RDWR);
    int atomic = 0;
    for (int i = 0; i < PART; i++) out[i] = rank;
    MUST(MPI_File_set_atomicity(file, 1));
    MUST(MPI_File_get_atomicity(file, &atomic));
    THAT(atomic == 1);
    MUST(MPI_File_write_at(file, 0, out, PART, MPI_INT, MPI_STATUS_IGNORE));
    MPI_Barrier(MPI_COMM_WORLD);
    for (int round = 0; round < ROUNDS; round++) {
        MUST(MPI_File_write_at(file, 0, out, PART, MPI_INT, MPI_STATUS_IGNORE));
        MUST(MPI_File_read_at(file, 0, back, PART, MPI_INT, MPI_STATUS_IGNORE));
        for (int i = 1; i < PART; i++) THAT(back[i] == back[0]);
        THAT(back[0] >= 0 && back[0] < ranks);
    }
    MUST(MPI_File_close(&file));
}

static void names(void) {
    MPI_File file;
    MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN);
    int code = MPI_File_open(MPI_COMM_WORLD, of_mpi("none"), MPI_MODE_RDONLY, MPI_INFO_NULL, &file), kind;
    THAT(code != MPI_SUCCESS);
    MPI_Error_class(code, &kind);
    THAT(kind == MPI_ERR_NO_SUCH_FILE);
    file = open_new("sized", MPI_MODE_WRONLY);
    MUST(MPI_File_preallocate(file, 1 << 20));
    MUST(MPI_File_set_size(file, 12345));
    MUST(MPI_File_close(&file));
    THAT(size_of("sized") == 12345);
    MPI_Barrier(MPI_COMM_WORLD);
    file = open_new("gone", MPI_MODE_WRONLY | MPI_MODE_DELETE_ON_CLOSE);
    MUST(MPI_File_close(&file));
    MPI_Barrier(MPI_COMM_WORLD);
    THAT(access(in("gone"), F_OK) != 0 && errno == ENOENT);
    if (rank == 0) MUST(MPI_File_delete(of_mpi("sized"), MPI_INFO_NULL));
    MPI_Barrier(MPI_COMM_WORLD);
    THAT(access(in("sized"), F_OK) != 0);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    root = argv[1];
    if (argc > 2) kind = argv[2];
    MPI_Info sieve;
    MPI_Info_create(&sieve);
    MPI_Info_set(sieve, "romio_ds_write", "enable");
    MPI_Info_set(sieve, "romio_ds_read", "enable");
    MPI_Info_set(sieve, "romio_cb_write", "disable");
    posix();
    independent();
    collective(3, "collective", 1, MPI_INFO_NULL);
    collective(4, "sieved", 0, sieve);
    shared_pointers();
    atomic_mode();
    names();
    if (rank == 0) printf("%d ranks agree\n", ranks);
    MPI_Finalize();
    return 0;
}

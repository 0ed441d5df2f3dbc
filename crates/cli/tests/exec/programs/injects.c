/* Succeeds if a no-operation of io_uring can complete with a given result (Linux 6.12). */
#include <fcntl.h>
#include <linux/io_uring.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void) {
    struct io_uring_params made;
    memset(&made, 0, sizeof made);
    int ring = syscall(SYS_io_uring_setup, 1L, &made);
    if (ring < 0) return 1;
    size_t size = made.cq_off.cqes + made.cq_entries * sizeof(struct io_uring_cqe) + 4096;
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entry = mmap(NULL, sizeof *entry, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    if (memory == MAP_FAILED || (void *)entry == MAP_FAILED) return 2;
    /* The flag IORING_NOP_INJECT_RESULT. */
    *entry = (struct io_uring_sqe){.opcode = IORING_OP_NOP, .fd = -1, .len = 77, .rw_flags = 1};
    *(unsigned *)(memory + made.sq_off.array) = 0;
    *(volatile unsigned *)(memory + made.sq_off.tail) = 1;
    if (syscall(SYS_io_uring_enter, ring, 1L, 1L, (long)IORING_ENTER_GETEVENTS, 0L, 0L) != 1) return 3;
    return ((struct io_uring_cqe *)(memory + made.cq_off.cqes))->res != 77;
}

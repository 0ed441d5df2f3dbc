/* libaio and liburing: a write to the file of the first argument, and a ring. */
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int io_setup(int count, aio_context_t *context);
int io_submit(aio_context_t context, long count, struct iocb **list);
int io_uring_queue_init(unsigned entries, void *ring, unsigned flags);

int main(int argc, char **argv) {
    static char ring[4096];
    aio_context_t context = 0;
    int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
    struct iocb one = {.aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = fd, .aio_buf = (uintptr_t)"bytes", .aio_nbytes = 5};
    struct iocb *list[] = {&one};
    int made = io_setup(4, &context), submitted = io_submit(context, 1, list);
    printf("setup %d submit %d ring %d size %ld\n", made, submitted, io_uring_queue_init(4, ring, 0), (long)lseek(fd, 0, SEEK_END));
    return 0;
}

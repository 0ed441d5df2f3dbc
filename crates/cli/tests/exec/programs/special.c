/* Named pipes and sockets in the directory. */
#include "table.h"
#include <sys/socket.h>
#include <sys/un.h>

static int at(int (*call)(int, const struct sockaddr *, socklen_t), int fd, const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    return call(fd, (void *)&address, sizeof address);
}
#define BIND(fd, path) at((void *)bind, fd, path)
#define CONNECT(fd, path) at((void *)connect, fd, path)

static void pipes(void) {
    char buffer[16] = "";
    DO(mkfifo(P("pipe"), 0600));
    DO(mkfifo(P("pipe"), 0600));
    meta("pipe");
    DO(open(P("pipe"), O_WRONLY | O_NONBLOCK));
    pid_t child = fork();
    if (!child) {
        int fd = open(P("pipe"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        _exit(write(fd, "through", 7) != 7);
    }
    int fd = open(P("pipe"), O_RDONLY), status;
    DO(fd >= 0);
    DO(read(fd, buffer, 16));
    text("read", buffer);
    DO(read(fd, buffer, 16));
    waitpid(child, &status, 0);
    DO(status);
    DO(lseek(fd, 0, SEEK_SET));
    close(fd);
    DO(rename(P("pipe"), P("moved")));
    fd = open(P("moved"), O_RDWR);
    DO(write(fd, "again", 5));
    DO(read(fd, buffer, 5));
    close(fd);
    DO(open(P("moved"), O_RDONLY | O_DIRECTORY));
    DO(unlink(P("moved")));
    DO(open(P("moved"), O_RDONLY));
}

static void sockets(void) {
    char buffer[16] = "";
    int one = socket(AF_UNIX, SOCK_STREAM, 0), two = socket(AF_UNIX, SOCK_STREAM, 0);
    DO(CONNECT(two, P("socket")));
    DO(BIND(one, P("socket")));
    meta("socket");
    DO(CONNECT(two, P("socket")));
    DO(listen(one, 1));
    DO(CONNECT(two, P("socket")));
    int got = accept(one, NULL, NULL);
    DO(write(two, "said", 4));
    DO(read(got, buffer, 16));
    text("heard", buffer);
    int three = socket(AF_UNIX, SOCK_STREAM, 0);
    DO(BIND(three, P("socket")));
    put("file", "x");
    DO(BIND(three, P("file")));
    DO(CONNECT(three, P("file")));
    DO(BIND(three, P("none/socket")));
    DO(open(P("socket"), O_RDWR));
    DO(unlink(P("socket")));
    DO(CONNECT(three, P("socket")));
    if (chdir(root)) perror("chdir");
    DO(BIND(three, "relative"));
    DO(listen(three, 1));
    int four = socket(AF_UNIX, SOCK_STREAM, 0);
    DO(CONNECT(four, "./relative"));
    meta("relative");
    DO(unlink("relative"));
    for (int fd = 0; fd < 5; fd++) close((int[]){one, two, three, four, got}[fd]);
}

static void datagrams(void) {
    char buffer[16] = "";
    int one = socket(AF_UNIX, SOCK_DGRAM, 0), two = socket(AF_UNIX, SOCK_DGRAM, 0);
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    strncpy(to.sun_path, P("datagrams"), sizeof to.sun_path - 1);
    DO(sendto(two, "none", 4, 0, (void *)&to, sizeof to));
    DO(BIND(one, P("datagrams")));
    DO(sendto(two, "sent", 4, 0, (void *)&to, sizeof to));
    DO(recv(one, buffer, 16, MSG_DONTWAIT));
    text("received", buffer);
    struct iovec part = {"message", 7};
    struct msghdr message = {.msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &part, .msg_iovlen = 1};
    DO(sendmsg(two, &message, 0));
    DO(recv(one, buffer, 16, MSG_DONTWAIT));
    text("received", buffer);
    DO(syscall(SYS_sendto, two, "raw", 3, 0, &to, sizeof to));
    DO(recv(one, buffer, 16, MSG_DONTWAIT));
    put("plain", "x");
    strncpy(to.sun_path, P("plain"), sizeof to.sun_path - 1);
    DO(sendto(two, "none", 4, 0, (void *)&to, sizeof to));
    close(one);
    close(two);
    DO(unlink(P("datagrams")));
    DO(unlink(P("plain")));
}

int main(int argc, char **argv) {
    if (begin(argc, argv)) return 2;
    signal(SIGPIPE, SIG_IGN);
    pipes();
    sockets();
    datagrams();
    list(".");
    fprintf(out, "end\n");
    return 0;
}

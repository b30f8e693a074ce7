/*
 * Makes sockets as a 32-bit x86 program does, through the C library and so through socketcall(2), as root inside a
 * sliver, and prints `name=result` lines: a result is `ok`, an errno's name, or a value. Linked statically, with -m32.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define FEW 16 /* descriptors that a process may have */

static void say(const char *name, long result)
{
    printf("%s=%s\n", name, result >= 0 ? "ok" : strerrorname_np(errno));
    fflush(stdout);
}

static void families(const char *who)
{
    static const struct {
        const char *name;
        int family, type, protocol;
    } all[] = {{"unix", AF_UNIX, SOCK_STREAM, 0},    {"inet", AF_INET, SOCK_STREAM, 0}, {"inet6", AF_INET6, SOCK_DGRAM, 0},
               {"netlink", AF_NETLINK, SOCK_RAW, 0}, {"raw", AF_INET, SOCK_RAW, 1},     {"packet", AF_PACKET, SOCK_RAW, 0},
               {"vsock", 40, SOCK_STREAM, 0},        {"xdp", 44, SOCK_RAW, 0},          {"alg", 38, SOCK_SEQPACKET, 0},
               {"rds", 21, SOCK_SEQPACKET, 0}};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        char name[32];

        snprintf(name, sizeof name, "%s_%s", who, all[i].name);
        say(name, socket(all[i].family, all[i].type, all[i].protocol));
    }
}

/* A datagram to itself, over loopback: the socket is the sliver's. */
static void loopback(void)
{
    struct sockaddr_in self = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof self;
    char text[8] = "";
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    say("bind", bind(fd, (struct sockaddr *)&self, size));
    getsockname(fd, (struct sockaddr *)&self, &size);
    say("sendto", sendto(fd, "hello", 5, 0, (struct sockaddr *)&self, size));
    say("recv", recv(fd, text, sizeof text, MSG_DONTWAIT));
    printf("text=%s\ncloexec=%d\n", text, fcntl(fd, F_GETFD));
}

static void pairs(void)
{
    int pair[2] = {-1, -1};
    char byte = 0;

    say("pair", socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    say("pair_write", write(pair[0], "x", 1));
    say("pair_read", read(pair[1], &byte, 1));
    say("pair_vsock", socketpair(40, SOCK_STREAM, 0, pair));
    say("direct_pair_vsock", syscall(360, 40, SOCK_STREAM, 0, pair));
    say("bad_pointer", syscall(102, 1, 16));
}

static void as_user(void)
{
    pid_t pid = fork();

    if (pid == 0) {
        struct stat status;

        if (setgroups(0, NULL) < 0 || setresgid(1001, 1001, 1001) < 0 || setresuid(1000, 1000, 1000) < 0)
            _exit(1);
        families("user");
        fstat(socket(AF_INET, SOCK_STREAM, 0), &status);
        printf("owner=%d:%d\n", (int)status.st_uid, (int)status.st_gid);
        fflush(stdout);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
}

static void many(void)
{
    const struct rlimit few = {FEW, FEW};
    int made = 0;

    for (int i = 0; i < 2000; i++) { /* none stays anywhere */
        int fd = socket(AF_INET, SOCK_STREAM, 0);

        if (fd < 0)
            break;
        close(fd);
        made++;
    }
    printf("one_by_one=%d\n", made);
    setrlimit(RLIMIT_NOFILE, &few);
    while (socket(AF_INET, SOCK_STREAM, 0) >= 0)
        ;
    say("too_many", -1);
}

int main(void)
{
    families("root");
    loopback();
    pairs();
    as_user();
    many();
    return 0;
}

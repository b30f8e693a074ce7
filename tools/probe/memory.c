/* Kernel memory that a tenant can hold in addition: packet rings, fragments, socket buffers and per-user objects. */
#define _GNU_SOURCE
#include "probe.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <mqueue.h>
#include <net/ethernet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK (1L << 16)
#define MOST_SOCKETS 4096

static void all_descriptors(void)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
}

static int ring(long bytes)
{
    struct tpacket_req request = {.tp_block_size = BLOCK, .tp_block_nr = (unsigned int)(bytes / BLOCK),
                                  .tp_frame_size = 2048, .tp_frame_nr = (unsigned int)(bytes / 2048)};
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL));

    if (fd >= 0 && setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &request, sizeof request) < 0) {
        int error = errno;

        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* Allocate a ring of the given size, one of the size that tcpdump uses, and many of the latter. */
int probe_rings(char **arguments)
{
    long bytes = number(arguments[0]), total = number(arguments[1]), each = 2L << 20, held = 0;
    int fd;

    all_descriptors();
    fd = ring(bytes);
    say_result("rings.large", fd);
    if (fd >= 0)
        close(fd);
    fd = ring(each);
    say_result("rings.capture", fd);
    if (fd >= 0)
        close(fd);
    while (held < total && ring(each) >= 0)
        held += each;
    say("rings.sum", "%ld", held);
    return 0;
}

int probe_fragments(char **arguments)
{
    static const char *const paths[] = {"/proc/sys/net/ipv4/ipfrag_high_thresh", "/proc/sys/net/ipv6/ip6frag_high_thresh"};
    static const char *const names[] = {"fragments.ipv4", "fragments.ipv6"};

    for (size_t i = 0; i < LENGTH(paths); i++) {
        char before[32] = "", name[64];
        int fd = open(paths[i], O_RDONLY | O_CLOEXEC);
        ssize_t got = fd < 0 ? -1 : read(fd, before, sizeof before - 1);

        if (got > 0)
            say(names[i], "%ld", strtol(before, NULL, 10));
        close(fd);
        snprintf(name, sizeof name, "%s_raise", names[i]);
        fd = open(paths[i], O_WRONLY | O_CLOEXEC);
        say_result(name, fd < 0 ? -1 : write(fd, arguments[0], strlen(arguments[0])));
        if (fd >= 0 && got > 0 && lseek(fd, 0, SEEK_SET) == 0 && write(fd, before, (size_t)got) < 0)
            say("fragments.restore", "%s", error_name(errno));
        if (fd >= 0)
            close(fd);
    }
    return 0;
}

/* The bytes that the sliver's sockets hold, as its own network namespace counts them. */
static long socket_bytes(const char *kind)
{
    char line[256], *field;
    FILE *file = fopen("/proc/net/sockstat", "re");
    long pages = -1;

    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, kind, strlen(kind)) == 0 && (field = strstr(line, " mem ")) != NULL)
            pages = strtol(field + 5, NULL, 10);
    if (file)
        fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

static long queue_udp(const struct sockaddr_in *where, int sender)
{
    static char data[32768];
    long held = 0;

    while (sendto(sender, data, sizeof data, MSG_DONTWAIT, (const struct sockaddr *)where, sizeof *where) > 0 &&
           held < 1L << 20)
        held += (long)sizeof data;
    return held;
}

struct held {
    long bytes, sockets;
};

/* Fill receive queues until the kernel refuses or `bytes` are held; `held` is updated after each pair of sockets. */
static void hold_buffers(int udp, long bytes, volatile struct held *held)
{
    const char *kind = udp ? "UDP:" : "TCP:";
    static char data[65536];
    long before = socket_bytes(kind);
    int most = 4 << 20;

    for (; held->sockets < 2 * MOST_SOCKETS && held->bytes < bytes; held->sockets += 2) {
        struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t length = sizeof where;
        int end = socket(AF_INET, (udp ? SOCK_DGRAM : SOCK_STREAM) | SOCK_CLOEXEC, 0);
        int sender = socket(AF_INET, (udp ? SOCK_DGRAM : SOCK_STREAM) | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

        if (end < 0 || sender < 0 || bind(end, (struct sockaddr *)&where, sizeof where) < 0 ||
            getsockname(end, (struct sockaddr *)&where, &length) < 0)
            break;
        if (udp) { /* with TCP, a size set by the program would exceed the limit of cgroup v1: see the threat model */
            setsockopt(end, SOL_SOCKET, SO_RCVBUF, &most, sizeof most);
            setsockopt(sender, SOL_SOCKET, SO_SNDBUF, &most, sizeof most);
            if (queue_udp(&where, sender) == 0)
                break;
        } else {
            if (listen(end, 1) < 0 ||
                (connect(sender, (struct sockaddr *)&where, sizeof where) < 0 && errno != EINPROGRESS))
                break;
            usleep(1000);
            while (send(sender, data, sizeof data, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
                ;
        }
        held->bytes = socket_bytes(kind) - before;
    }
    held->bytes = socket_bytes(kind) - before;
}

/*
 * A child does it, which the kernel kills first: if buffers count as memory (cgroup v2), a process is killed at the
 * limit, and it must not be the sliver's sshd.
 */
int probe_buffers(char **arguments)
{
    int udp = strcmp(arguments[0], "udp") == 0, status = 0, score;
    long bytes = number(arguments[1]);
    struct held *held = mmap(NULL, sizeof *held, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid = held == MAP_FAILED ? -1 : fork();

    if (pid == 0) {
        if ((score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC)) < 0 || write(score, "1000", 4) != 4)
            _exit(1);
        all_descriptors();
        hold_buffers(udp, bytes, held);
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) < 0 || (WIFEXITED(status) && WEXITSTATUS(status))) {
        say_result("buffers", -1);
        return 0;
    }
    say(udp ? "buffers.udp" : "buffers.tcp", "%ld", held->bytes);
    say("buffers.sockets", "%ld", held->sockets);
    say("buffers.end", "%s", WIFSIGNALED(status) ? "killed" : "refused");
    return 0;
}

int probe_inotify(char **arguments)
{
    long most = number(arguments[0]), count = 0;

    all_descriptors();
    while (count < most && inotify_init1(IN_CLOEXEC) >= 0)
        count++;
    say("inotify", "%ld", count);
    hold();
    return 0;
}

int probe_signals(char **arguments)
{
    long most = number(arguments[0]), count = 0;
    sigset_t blocked;
    struct rlimit limit;

    if (getrlimit(RLIMIT_SIGPENDING, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_SIGPENDING, &limit);
    }
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    while (count < most && sigqueue(getpid(), SIGRTMIN, (union sigval){0}) == 0)
        count++;
    say("signals", "%ld", count);
    hold();
    return 0;
}

int probe_queues(char **arguments)
{
    long most = number(arguments[0]), count = 0;
    char name[64];

    for (; count < most; count++) {
        mqd_t queue;

        snprintf(name, sizeof name, "/sliver-probe-%d-%ld", (int)getpid(), count);
        if ((queue = mq_open(name, O_CREAT | O_EXCL | O_RDWR, 0600, NULL)) == (mqd_t)-1)
            break;
        mq_unlink(name); /* it exists as long as the descriptor */
    }
    say("queues", "%ld", count);
    hold();
    return 0;
}

/*
 * Tries what a tenant must not be able to do, as root inside a sliver, and prints `name=result` lines:
 * a result is `ok`, an errno's name, or a number. Linked statically: it runs in any root.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define MANY 200 /* beyond every limit that is tested, and harmless to the host */

static void say(const char *name, long result)
{
    const char *text = result >= 0 ? "ok" : strerrorname_np(errno);

    printf("%s=%s\n", name, text ? text : "unknown");
    fflush(stdout);
}

/* In a child, for a success would change what is tried next. */
static void say_in_child(const char *name, long number, long a)
{
    pid_t pid = fork();

    if (pid == 0) {
        say(name, syscall(number, a));
        _exit(0);
    }
    waitpid(pid, NULL, 0);
}

#ifdef __x86_64__
/* A system call as a 32-bit program makes it. */
static long call32(long number, long a, long b, long c)
{
    long result;

    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory", "r8", "r9", "r10", "r11");
    if ((int)result < 0) {
        errno = -(int)result;
        return -1;
    }
    return result;
}
#endif

static void calls(void)
{
    static const char map[] = "";

    say("keyctl", syscall(SYS_keyctl, 0, -4, 1));
    say("add_key", syscall(SYS_add_key, "user", "probe", "x", 1, -2));
    say("bpf", syscall(SYS_bpf, 0, map, 0));
    say("perf_event_open", syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0));
    say("io_uring_setup", syscall(SYS_io_uring_setup, 1, NULL));
    say("userfaultfd", syscall(SYS_userfaultfd, O_CLOEXEC | 1));
    say("open_tree", syscall(SYS_open_tree, AT_FDCWD, "/", 0));
    say("fsopen", syscall(SYS_fsopen, "tmpfs", 0));
    say("mount", syscall(SYS_mount, "tmpfs", "/tmp", "tmpfs", 0, NULL));
    say("umount2", syscall(SYS_umount2, "/sys/fs/cgroup", 0));
    say("pivot_root", syscall(SYS_pivot_root, "/", "/"));
    say("sethostname", syscall(SYS_sethostname, "other", 5));
    say("setns", syscall(SYS_setns, -1, 0));
    say_in_child("unshare_user", SYS_unshare, CLONE_NEWUSER);
    say_in_child("unshare_mount", SYS_unshare, CLONE_NEWNS);
    say("open_by_handle_at", syscall(SYS_open_by_handle_at, -1, NULL, 0));
    say("fanotify_init", syscall(SYS_fanotify_init, 0x10, 0));
    say("syslog", syscall(SYS_syslog, 10, NULL, 0));
    say("quotactl", syscall(SYS_quotactl, 0x80000100, NULL, 0, NULL));
    say("move_pages", syscall(SYS_move_pages, 0, 0, NULL, NULL, NULL, 0));
    say("btrfs_sync", ioctl(STDIN_FILENO, 0x9408));
    say("btrfs_start_sync", ioctl(STDIN_FILENO, 0x80089418, NULL));
    say("btrfs_wait_sync", ioctl(STDIN_FILENO, 0x40089416, NULL));
    say("kcmp", syscall(SYS_kcmp, getpid(), getpid(), 0, 0, 0));
#ifdef __x86_64__
    say("btrfs_sync32", call32(54, STDIN_FILENO, 0x9408, 0));
    say("keyctl32", call32(288, 0, -4, 1));
    say("socket32_inet", call32(359, AF_INET, SOCK_STREAM, 0));
    say("socket32_alg", call32(359, 38, SOCK_SEQPACKET, 0));
    say("socketcall32", call32(102, 99, 0, 0));
    say("x32", syscall(0x40000000 | 39));
#endif
}

static void sockets(void)
{
    static const struct {
        const char *name;
        int family, type;
    } all[] = {{"unix", AF_UNIX, SOCK_STREAM},    {"inet", AF_INET, SOCK_STREAM},  {"inet6", AF_INET6, SOCK_STREAM},
               {"netlink", AF_NETLINK, SOCK_RAW}, {"packet", AF_PACKET, SOCK_RAW}, {"raw", AF_INET, SOCK_RAW},
               {"alg", 38, SOCK_SEQPACKET},       {"vsock", 40, SOCK_STREAM},      {"rds", 21, SOCK_SEQPACKET},
               {"xdp", 44, SOCK_RAW}};
    char name[32];

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        snprintf(name, sizeof name, "socket_%s", all[i].name);
        say(name, socket(all[i].family, all[i].type, all[i].family == AF_INET && all[i].type == SOCK_RAW ? 1 : 0));
    }
}

static void files(void)
{
    static const char *const paths[] = {"/proc/sysrq-trigger",
                                        "/proc/sys/kernel/core_pattern",
                                        "/proc/sys/kernel/hostname",
                                        "/proc/sys/vm/drop_caches",
                                        "/proc/sys/user/max_user_namespaces",
                                        "/proc/irq/default_smp_affinity",
                                        "/sys/kernel/uevent_helper",
                                        "/sys/power/state",
                                        "/.slicemgr/init"};
    char name[64];

    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        snprintf(name, sizeof name, "write:%s", paths[i]);
        say(name, open(paths[i], O_WRONLY));
    }
    say("mknod", mknod("/tmp/probe-device", S_IFBLK | 0600, makedev(254, 0)));
    say("chroot", chroot("/"));
}

static void counts(void)
{
    int many = 0, ptys = 0;

    signal(SIGTERM, SIG_IGN);
    while (ptys < MANY && open("/dev/ptmx", O_RDWR | O_NOCTTY) >= 0)
        ptys++;
    printf("ptys=%d\n", ptys);
    fflush(stdout);
    for (;;) {
        pid_t pid = many < MANY ? fork() : -1;

        if (pid == 0) {
            signal(SIGTERM, SIG_DFL);
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;)
                pause();
        }
        if (pid < 0)
            break;
        many++;
    }
    printf("forks=%d\n", many);
}

int main(int argc, char **argv)
{
    if (access("/.slicemgr/init", F_OK) != 0) { /* as root of a host it would mount, umount and rename in earnest */
        fputs("probe: this is not the inside of a sliver\n", stderr);
        return 2;
    }
    calls();
    sockets();
    files();
    if (argc > 1 && strcmp(argv[1], "all") == 0)
        counts();
    return 0;
}

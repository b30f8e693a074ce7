/* System calls by number, in each ABI that the kernel offers a 64-bit x86 program, and socket families. */
#define _GNU_SOURCE
#include "probe.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define X32 0x40000000
#define KILLED 255
#define FIRST_UNKNOWN 467 /* open_tree_attr: no program needs it or later calls */
#define LAST_UNKNOWN 1100
#define FAMILIES 46

/* Arguments that reach the kernel's own check and change nothing if the call is allowed. */
static const struct call {
    const char *name;
    int number, number32;
    long a, b, c;
} calls[] = {
    {"acct", 163, 51, -1, 0, 0},
    {"add_key", 248, 286, 0, 0, 0},
    {"bpf", 321, 357, 0, 0, 0},
    {"clock_settime", 227, 264, -1, 0, 0},
    {"delete_module", 176, 129, 0, 0, 0},
    {"fanotify_init", 300, 338, 0x10, 0, 0},
    {"finit_module", 313, 350, -1, 0, 0},
    {"fsconfig", 431, 431, -1, 0, 0},
    {"fsmount", 432, 432, -1, 0, 0},
    {"fsopen", 430, 430, 0, 0, 0},
    {"fspick", 433, 433, -1, 0, 0},
    {"init_module", 175, 128, 0, 0, 0},
    {"io_uring_enter", 426, 426, -1, 0, 0},
    {"io_uring_register", 427, 427, -1, 0, 0},
    {"io_uring_setup", 425, 425, 0, 0, 0},
    {"ioperm", 173, 101, 0, 0, 0},
    {"iopl", 172, 110, 3, 0, 0},
    {"kcmp", 312, 349, 1, 1, 0},
    {"kexec_file_load", 320, -1, -1, -1, 0},
    {"kexec_load", 246, 283, 0, 0, 0},
    {"keyctl", 250, 288, 0, -4, 1},
    {"migrate_pages", 256, 294, 0, 0, 0},
    {"mount", 165, 21, 0, 0, 0},
    {"mount_setattr", 442, 442, -1, 0, 0},
    {"move_mount", 429, 429, -1, 0, -1},
    {"move_pages", 279, 317, 0, 0, 0},
    {"open_by_handle_at", 304, 342, -1, 0, 0},
    {"open_tree", 428, 428, -1, 0, 0},
    {"open_tree_attr", 467, 467, -1, 0, 0},
    {"perf_event_open", 298, 336, 0, 0, -1},
    {"pivot_root", 155, 217, 0, 0, 0},
    {"quotactl", 179, 131, 0x80000100, 0, 0},
    {"quotactl_fd", 443, 443, -1, 0, 0},
    {"reboot", 169, 88, 0, 0, 0},
    {"request_key", 249, 287, 0, 0, 0},
    {"setdomainname", 171, 121, 0, 1, 0},
    {"sethostname", 170, 74, 0, 1, 0},
    {"setns", 308, 346, -1, 0, 0},
    {"settimeofday", 164, 79, 0, 1, 0},
    {"swapoff", 168, 115, 0, 0, 0},
    {"swapon", 167, 87, 0, 0, 0},
    {"syslog", 103, 103, 10, 0, 0},
    {"umount2", 166, 52, 0, 0, 0},
    {"unshare_cgroup", 272, 310, 0x02000000, 0, 0},
    {"unshare_mount", 272, 310, 0x00020000, 0, 0},
    {"unshare_net", 272, 310, 0x40000000, 0, 0},
    {"unshare_user", 272, 310, 0x10000000, 0, 0},
    {"userfaultfd", 323, 374, -1, 0, 0},
};

static long call32(long number, long a, long b, long c)
{
    long result;

    __asm__ volatile("int $0x80"
                     : "=a"(result)
                     : "a"(number), "b"(a), "c"(b), "d"(c)
                     : "memory", "r8", "r9", "r10", "r11");
    return (int)result;
}

static long call64(long number, long a, long b, long c)
{
    long result = syscall(number, a, b, c, 0L, 0L);

    return result < 0 ? -errno : result;
}

/* Make the call in a child, which it may change or end; the result is 0, an errno or KILLED. */
static int outcome(long (*call)(long, long, long, long), long number, long a, long b, long c)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        long result = call(number, a, b, c);

        _exit(result < 0 && result > -KILLED ? (int)-result : 0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) < 0 || !WIFEXITED(status))
        return KILLED;
    return WEXITSTATUS(status);
}

static void say_outcome(const char *abi, const char *name, int result)
{
    char line[64];

    snprintf(line, sizeof line, "%s.%s", abi, name);
    say(line, "%s", result == 0 ? "ok" : result == KILLED ? "killed" : error_name(result));
}

/* Report the first number beyond the known ones that does not fail with ENOSYS. */
static void say_unknown(const char *abi, long (*call)(long, long, long, long), long base)
{
    char line[64];

    snprintf(line, sizeof line, "%s.unknown", abi);
    for (long number = FIRST_UNKNOWN; number <= LAST_UNKNOWN; number++) {
        int result = outcome(call, base | number, -1, 0, 0);

        if (result != ENOSYS) {
            say(line, "%ld:%s", number, result == 0 ? "ok" : result == KILLED ? "killed" : error_name(result));
            return;
        }
    }
    say(line, "ENOSYS");
}

int probe_calls(char **arguments)
{
    (void)arguments;
    for (size_t i = 0; i < LENGTH(calls); i++) {
        const struct call *one = &calls[i];

        say_outcome("call64", one->name, outcome(call64, one->number, one->a, one->b, one->c));
        if (one->number32 >= 0)
            say_outcome("call32", one->name, outcome(call32, one->number32, one->a, one->b, one->c));
    }
    say_outcome("x32", "getpid", outcome(call64, X32 | 39, 0, 0, 0));
    say_unknown("call64", call64, 0);
    say_unknown("call32", call32, 0);
    return 0;
}

static int opens64(int family, int type)
{
    return outcome(call64, 41, family, type, 0) == 0;
}

static int opens32(int family, int type)
{
    return outcome(call32, 359, family, type, 0) == 0;
}

/* socketcall(2): its arguments are in memory, which must be below 4 GiB for a 32-bit call. */
static int opens_by_socketcall(int family, int type)
{
    static unsigned int *words;

    if (words == NULL)
        words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    if (words == MAP_FAILED)
        return 0;
    words[0] = (unsigned int)family;
    words[1] = (unsigned int)type;
    words[2] = 0;
    return outcome(call32, 102, 1, (long)words, 0) == 0;
}

static void say_families(const char *name, int (*opens)(int family, int type))
{
    static const int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET};
    char found[FAMILIES * 4] = "";

    for (int family = 0; family < FAMILIES; family++)
        for (size_t i = 0; i < LENGTH(types); i++)
            if (opens(family, types[i])) {
                snprintf(found + strlen(found), sizeof found - strlen(found), "%s%d", *found ? "," : "", family);
                break;
            }
    say(name, "%s", *found ? found : "none");
}

int probe_sockets(char **arguments)
{
    (void)arguments;
    say_families("families64", opens64);
    say_families("families32", opens32);
    say_families("families_socketcall", opens_by_socketcall);
    return 0;
}

/*
 * Loaded into libvirt_lxc by the launcher: creates the container's user namespace with a user id of the sliver's own,
 * and, if the image's systemd is to be its init, a cgroup namespace.
 *
 * Inotify instances and watches, pending signals, message queues and locked memory are counted in the namespace and
 * also for the user id that created it. libvirt_lxc is root, so otherwise all slivers would share the counts of the
 * host's root. Only the effective id of the calling thread changes, and only for this call; its privileges are kept.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "../launcher.h"

typedef int clone_call(int (*)(void *), void *, int, void *, ...);

typedef int hostname_call(const char *, size_t);

static uid_t maker;
static int has_subtree;

/* Remove the variables: no program that libvirt_lxc starts needs them. */
static void __attribute__((constructor)) take_environment(void)
{
    const char *value = getenv(MAKER_VARIABLE);

    maker = value ? (uid_t)strtoul(value, NULL, 10) : 0;
    has_subtree = getenv(SUBTREE_VARIABLE) != NULL;
    unsetenv(MAKER_VARIABLE);
    unsetenv(SUBTREE_VARIABLE);
    unsetenv("LD_PRELOAD");
}

/* Restore the effective privileges, which a change from root to another effective id removes. */
static int keep_privileges(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2];

    if (syscall(SYS_capget, &header, sets) < 0)
        return -1;
    sets[0].effective = sets[0].permitted;
    sets[1].effective = sets[1].permitted;
    return (int)syscall(SYS_capset, &header, sets);
}

static int become(uid_t user)
{
    return (int)syscall(SYS_setresuid, (uid_t)-1, user, (uid_t)-1) < 0 || keep_privileges() < 0 ? -1 : 0;
}

int clone(int (*function)(void *), void *stack, int flags, void *argument, ...)
{
    clone_call *real = (clone_call *)dlsym(RTLD_NEXT, "clone");
    pid_t *parent, *child;
    void *tls;
    va_list rest;
    int pid, error;

    va_start(rest, argument);
    parent = va_arg(rest, pid_t *);
    tls = va_arg(rest, void *);
    child = va_arg(rest, pid_t *);
    va_end(rest);
    if (real == NULL || !(flags & CLONE_NEWUSER))
        return real ? real(function, stack, flags, argument, parent, tls, child) : -1;
    if (maker == 0) {
        errno = EPERM;
        return -1;
    }
    if (become(maker) < 0)
        return -1;
    pid = real(function, stack, flags, argument, parent, tls, child);
    error = errno;
    if (become(0) < 0)
        _exit(EXIT_FAILURE);
    prctl(PR_SET_DUMPABLE, 1); /* as before; a change of ids clears it */
    errno = error;
    return pid;
}

/*
 * Calls of the filter by names that fail with ENOSYS once the guard has ended. systemd expects EPERM of a container that
 * may not make them: umount2, pivot_root, mount, sethostname, setdomainname, bpf; and umount of 32-bit programs.
 */
static const struct {
    unsigned int arch, calls[7];
} refused[] = {
    {AUDIT_ARCH_X86_64, {166, 155, 165, 170, 171, 321, 321}},
    {AUDIT_ARCH_I386, {52, 217, 21, 74, 121, 357, 22}},
    {AUDIT_ARCH_AARCH64, {39, 41, 40, 161, 162, 280, 280}},
    {AUDIT_ARCH_ARM, {52, 218, 21, 74, 121, 386, 22}},
};

static int refuse_calls(void)
{
    struct sock_filter code[LENGTH(refused) * (LENGTH(refused[0].calls) + 5) + 1];
    struct sock_fprog program = {.filter = code};
    const struct sock_filter refuse = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    const struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    const size_t calls = LENGTH(refused[0].calls);

    for (size_t i = 0; i < LENGTH(refused); i++) {
        struct sock_filter *next = code + program.len;

        *next++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
        *next++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, refused[i].arch, 0,
                                               (unsigned char)(calls + 3)); /* past the block */
        *next++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
        for (size_t j = 0; j < calls; j++) /* to the refusal, past the permission */
            *next++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, refused[i].calls[j],
                                                   (unsigned char)(calls - j), 0);
        *next++ = allow;
        *next++ = refuse;
        program.len = (unsigned short)(next - code);
    }
    code[program.len++] = allow;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/*
 * The last call of libvirt_lxc's child before it drops its capabilities; the guard has moved the child to the subtree
 * when it returns.
 */
int sethostname(const char *name, size_t length)
{
    hostname_call *real = (hostname_call *)dlsym(RTLD_NEXT, "sethostname");

    if (real == NULL || real(name, length) < 0)
        return -1;
    return has_subtree && (unshare(CLONE_NEWCGROUP) < 0 || refuse_calls() < 0) ? -1 : 0;
}

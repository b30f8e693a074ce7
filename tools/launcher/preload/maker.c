/*
 * Loaded into libvirt_lxc by the launcher: creates the container's user namespace with a user id of the sliver's own.
 *
 * Inotify instances and watches, pending signals, message queues and locked memory are counted in the namespace and
 * also for the user id that created it. libvirt_lxc is root, so otherwise all slivers would share the counts of the
 * host's root. Only the effective id of the calling thread changes, and only for this call; its privileges are kept.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "../launcher.h"

typedef int clone_call(int (*)(void *), void *, int, void *, ...);

static uid_t maker;

/* Remove both variables: no program that libvirt_lxc starts needs them. */
static void __attribute__((constructor)) take_environment(void)
{
    const char *value = getenv(MAKER_VARIABLE);

    maker = value ? (uid_t)strtoul(value, NULL, 10) : 0;
    unsetenv(MAKER_VARIABLE);
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

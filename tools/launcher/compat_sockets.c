/*
 * socketcall(2) in a 32-bit sliver. Its arguments are in the caller's memory, where no filter can read the socket
 * family, and the C library of Debian's i386 has no other way to create a socket. So in these slivers the guard runs as
 * long as the container: the filter by names passes it the two subcalls that create sockets, and it creates them
 * itself, from a copy of the arguments, with the caller's ids and privileges, in the sliver's namespaces and cgroups.
 * The caller's own call never continues, because its memory may have changed meanwhile. If the guard is killed, these
 * calls fail with ENOSYS until the sliver starts again; all other calls continue to work.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/net.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "launcher.h"

#define SOCKETCALL 102

/* The attributes that the kernel checks for a socket. The ids are numbers inside the sliver. */
struct caller {
    gid_t groups[NGROUPS_MAX];
    size_t group_count;
    uid_t user;
    gid_t group;
    uint64_t capabilities;
};

/* Join a cgroup, which is then charged for CPU time and the sockets' memory. `controller` is "" for cgroup v2. */
static void join_group(const char *mount_point, const char *controller, const char *group)
{
    char path[2 * PATH_MAX];

    snprintf(path, sizeof path, "%s%s%s%s/cgroup.procs", mount_point, *controller ? "/" : "", controller, group);
    write_file(AT_FDCWD, path, "0");
}

/* Replace the subtree by libvirt_lxc's group: a process in the subtree's root would prevent limits on its groups. */
static void leave_subtree(const struct launch *launch, char *group)
{
    char *last = strrchr(group, '/');

    if (last && *launch->subtree && *launch->cgroup2 && strcmp(last + 1, launch->subtree) == 0)
        snprintf(last + 1, (size_t)NAME_MAX, "%s", EMULATOR_GROUP);
}

static void join_groups(const struct launch *launch, pid_t init)
{
    char path[64], line[PATH_MAX];
    FILE *membership;

    snprintf(path, sizeof path, "/proc/%d/cgroup", init);
    if ((membership = fopen(path, "re")) == NULL)
        die("cannot open %s", path);
    while (fgets(line, sizeof line, membership)) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;

        if (group == NULL)
            continue;
        *controllers++ = *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        leave_subtree(launch, group);
        if (*launch->cgroup2 && *controllers == '\0')
            join_group(launch->cgroup2, "", group);
        for (char *one = strtok(controllers, ","); one && !*launch->cgroup2; one = strtok(NULL, ","))
            if (strcmp(one, "memory") == 0 || strcmp(one, "cpu") == 0)
                join_group(CGROUP_V1, one, group);
    }
    fclose(membership);
    errno = 0;
}

void enter_sliver(const struct launch *launch, pid_t init)
{
    int user = namespace_of(init, "user"), net = namespace_of(init, "net");

    join_groups(launch, init);
    if (setns(net, CLONE_NEWNET) < 0 || setns(user, CLONE_NEWUSER) < 0)
        die("cannot enter the container's namespaces");
    close(net);
    close(user);
    if (setresgid(0, 0, 0) < 0 || setgroups(0, NULL) < 0 || setresuid(0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0) < 0)
        die("cannot become the container's root");
}

static int read_caller(pid_t pid, struct caller *caller)
{
    char path[64], line[16 + 11 * 1024];
    int known = 0;
    FILE *status;

    snprintf(path, sizeof path, "/proc/%d/status", pid);
    if ((status = fopen(path, "re")) == NULL)
        return -1;
    caller->group_count = 0;
    while (fgets(line, sizeof line, status)) {
        known += sscanf(line, "Uid: %*u %u", &caller->user);
        known += sscanf(line, "Gid: %*u %u", &caller->group);
        known += sscanf(line, "CapEff: %lx", &caller->capabilities);
        if (strncmp(line, "Groups:", 7) == 0) {
            char *word = strtok(line + 7, " \t\n");

            for (; word && caller->group_count < LENGTH(caller->groups); word = strtok(NULL, " \t\n"))
                caller->groups[caller->group_count++] = (gid_t)strtoul(word, NULL, 10);
        }
    }
    fclose(status);
    return known == 3 ? 0 : -1;
}

static int set_effective(uint64_t capabilities)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2];

    if (syscall(SYS_capget, &header, sets) < 0)
        return -1;
    sets[0].effective = sets[0].permitted & (uint32_t)capabilities;
    sets[1].effective = sets[1].permitted & (uint32_t)(capabilities >> 32);
    return (int)syscall(SYS_capset, &header, sets);
}

/* socket(2), or socketpair(2) if `pair`, with the caller's rights; 0 or -errno. */
static int make_sockets(const struct caller *caller, const uint32_t *arguments, int pair, int *sockets)
{
    int result = -EPERM;

    if (setgroups(caller->group_count, caller->groups) == 0 && setresgid(-1U, caller->group, -1U) == 0 &&
        setresuid(-1U, caller->user, -1U) == 0 && set_effective(caller->capabilities) == 0) {
        const int family = (int)arguments[0], type = (int)arguments[1], protocol = (int)arguments[2];

        if (pair)
            result = socketpair(family, type, protocol, sockets) < 0 ? -errno : 0;
        else
            result = (sockets[0] = socket(family, type, protocol)) < 0 ? -errno : 0;
    }
    if (setresuid(-1U, 0, -1U) < 0 || set_effective(UINT64_MAX) < 0 || setresgid(-1U, 0, -1U) < 0)
        die("cannot become the container's root again");
    return result;
}

/* Give the caller the sockets. The result is that of the call: a descriptor, 0 for a pair, or -errno. */
static int hand_over(int listener, const struct seccomp_notif *call, const uint32_t *arguments, int pair, int *sockets)
{
    struct seccomp_notif_addfd addition = {
        .id = call->id, .newfd_flags = arguments[1] & SOCK_CLOEXEC ? O_CLOEXEC : 0};
    uint32_t numbers[2];
    struct iovec from = {numbers, sizeof numbers}, to = {(void *)(uintptr_t)arguments[3], sizeof numbers};

    for (int i = 0; i <= pair; i++) {
        int number;

        addition.srcfd = (uint32_t)sockets[i];
        if ((number = ioctl(listener, SECCOMP_IOCTL_NOTIF_ADDFD, &addition)) < 0)
            return -errno;
        numbers[i] = (uint32_t)number;
    }
    if (!pair)
        return (int)numbers[0];
    return process_vm_writev((pid_t)call->pid, &from, 1, &to, 1, 0) == sizeof numbers ? 0 : -EFAULT;
}

static int make_call(int listener, const struct seccomp_notif *call)
{
    static struct caller caller;
    const int pair = (uint32_t)call->data.args[0] == SYS_SOCKETPAIR;
    uint32_t arguments[4] = {0};
    const size_t size = (pair ? 4 : 3) * sizeof *arguments;
    struct iovec to = {arguments, size}, from = {(void *)(uintptr_t)(uint32_t)call->data.args[1], size};
    int sockets[2] = {-1, -1}, result;

    if (call->data.arch != AUDIT_ARCH_I386 || call->data.nr != SOCKETCALL)
        return -ENOSYS; /* a call that only libvirt_lxc needs */
    if (process_vm_readv((pid_t)call->pid, &to, 1, &from, 1, 0) != (ssize_t)size)
        return -EFAULT;
    if (!is_compat_family(arguments[0]))
        return -EAFNOSUPPORT;
    if (read_caller((pid_t)call->pid, &caller) < 0 || ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &call->id) < 0)
        return -EINTR; /* the pid may belong to another process by now */
    if ((result = make_sockets(&caller, arguments, pair, sockets)) == 0)
        result = hand_over(listener, call, arguments, pair, sockets);
    for (size_t i = 0; i < LENGTH(sockets); i++)
        if (sockets[i] >= 0)
            close(sockets[i]);
    return result;
}

void answer_socketcall(int listener, const struct seccomp_notif *call, struct seccomp_notif_resp *answer)
{
    int result = make_call(listener, call);

    if (result < 0)
        answer->error = result;
    else
        answer->val = result;
}

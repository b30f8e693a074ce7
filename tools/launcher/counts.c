/*
 * The kernel's counts per user: a sliver has its own counts, with its own limits.
 *
 * The limits that the creator of a user namespace has at that time apply to all users in it together
 * (user_namespaces(7), ucounts). Processes need no limit here: the pids cgroup limits them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/nsfs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "launcher.h"

#ifndef MAKER_LIBRARY
#error "MAKER_LIBRARY is the path of the library that is made of preload/maker.c"
#endif
__asm__(".pushsection .rodata\n"
        "maker_library: .incbin \"" MAKER_LIBRARY "\"\n"
        "maker_library_end: .popsection\n");
extern const char maker_library[], maker_library_end[];

static const struct {
    __rlimit_resource_t resource;
    rlim_t most;
} limits[] = {
    {RLIMIT_SIGPENDING, 8192},     /* signals; the kernel's default is a quarter of the pages of memory */
    {RLIMIT_MSGQUEUE, 819200},     /* bytes of POSIX message queues; the kernel's default */
    {RLIMIT_MEMLOCK, 8L << 20},    /* bytes; the kernel's default */
};

void limit_counts(void)
{
    for (size_t i = 0; i < LENGTH(limits); i++) {
        struct rlimit limit;

        if (getrlimit(limits[i].resource, &limit) < 0)
            die("cannot read what is counted for a user");
        if (limit.rlim_max > limits[i].most) /* RLIM_INFINITY is the largest number */
            limit.rlim_max = limits[i].most;
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(limits[i].resource, &limit) < 0)
            die("cannot limit what is counted for a user");
    }
}

static uid_t maker(const struct launch *launch)
{
    return (uid_t)(launch->uid + launch->count - 1);
}

/* Load the library from memory: the launcher is one file. libvirt_lxc closes the descriptor in the container. */
void load_maker(const struct launch *launch)
{
    const size_t size = (size_t)(maker_library_end - maker_library);
    int fd = memfd_create("sliver-maker", 0);
    char text[32];

    if (fd < 0 || write(fd, maker_library, size) != (ssize_t)size)
        die("cannot load the maker of the user namespace");
    snprintf(text, sizeof text, "/proc/self/fd/%d", fd);
    setenv("LD_PRELOAD", text, 1);
    snprintf(text, sizeof text, "%u", maker(launch));
    setenv(MAKER_VARIABLE, text, 1);
    if (*launch->subtree)
        setenv(SUBTREE_VARIABLE, "1", 1);
}

void check_maker(const struct launch *launch, int user_namespace)
{
    uid_t owner;

    if (ioctl(user_namespace, NS_GET_OWNER_UID, &owner) < 0)
        die("cannot see who made the container's user namespace");
    errno = 0;
    if (owner != maker(launch))
        die("user %u made the container's user namespace, not %u", owner, maker(launch));
}

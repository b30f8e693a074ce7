/*
 * sliver-launcher: the <emulator> of every lxc sliver. libvirtd runs it in place of libvirt_lxc, with
 * libvirt_lxc's arguments; it confines itself and becomes libvirt_lxc. What libvirt-LXC lacks is done here:
 *
 *   - an idmapped mount of the sliver's root on ROOT_MOUNT, in a mount namespace that ends with the container,
 *     so the host's mount table never sees it and the pool itself can stay closed to everyone but root;
 *   - protection of libvirt_lxc from the kernel's memory killer, which the container does not inherit;
 *   - an empty read-only file of the sliver's own on MASK_MOUNT, which libvirt binds over what is to read as empty;
 *   - seccomp filters, inherited by all that runs in the container;
 *   - what must be done *inside* the container before the tenant's first instruction: limits on processes and
 *     ptys, no nested user namespaces, the slice's host name. libvirt_lxc's child calls sethostname() when its
 *     namespaces are complete and just before it gives up its capabilities. The filter stops that call (seccomp
 *     user notification) until a guard process has done the work. Then the guard ends, and with it every call
 *     on `setup_calls`: only libvirt_lxc needs them, and a listener that is gone means ENOSYS for ever;
 *   - a user id and limits of the sliver's own for what the kernel counts for each user: counts.c.
 *
 * Everything fails closed: without the launch file, or if the guard dies, the container does not start.
 * What it prints on stderr is what libvirt reports. The sliver's values come from LAUNCH_DIR/NAME, written by
 * slicemgr/drivers/libvirt/launch.py as key=value lines.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher.h"

static const char *const controllers[] = {"/usr/lib/libvirt/libvirt_lxc", "/usr/libexec/libvirt_lxc",
                                          "/usr/lib64/libvirt/libvirt_lxc"};

void die(const char *format, ...)
{
    int error = errno;
    va_list arguments;

    fputs("sliver-launcher: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, error ? ": %s\n" : "\n", strerror(error));
    exit(EXIT_FAILURE);
}

void write_file(int directory, const char *path, const char *text)
{
    int fd = openat(directory, path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);

    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
        die("cannot write '%s' to %s", text, path);
    close(fd);
}

int namespace_of(pid_t pid, const char *kind)
{
    char path[64];
    int fd;

    snprintf(path, sizeof path, "/proc/%d/ns/%s", pid, kind);
    if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        die("cannot open %s", path);
    return fd;
}

/* libvirt_lxc needs its memory while it starts, and is then there for as long as the sliver: hundreds of them. */
static void keep_heap_small(void)
{
    setenv("MALLOC_ARENA_MAX", "1", 1);
    setenv("MALLOC_TOP_PAD_", "0", 1);
    setenv("MALLOC_TRIM_THRESHOLD_", "0", 1);
}

int main(int argc, char **argv)
{
    struct launch launch = read_launch(domain_name(argc, argv));
    int guard, listener;

    protect_from_oom();
    limit_counts();
    mount_root(&launch);
    mount_mask();
    guard = start_guard(&launch);
    filter_numbers(&launch);
    listener = install_filter(&launch);
    send_fd(guard, listener);
    close(listener);
    close(guard);
    keep_heap_small();
    load_maker(&launch);
    for (size_t i = 0; i < LENGTH(controllers); i++)
        execv(controllers[i], argv);
    die("cannot find libvirt_lxc");
}

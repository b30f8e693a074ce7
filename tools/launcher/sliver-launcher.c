/*
 * sliver-launcher: the <emulator> of every lxc sliver. libvirtd runs it in place of libvirt_lxc, with libvirt_lxc's
 * arguments; it confines itself and executes libvirt_lxc. It adds what libvirt's LXC driver lacks:
 *
 *   - an idmapped mount of the sliver's root on ROOT_MOUNT, in a mount namespace that ends with the container, so that
 *     the host's mount table never contains it and only root needs access to the pool;
 *   - protection of libvirt_lxc from the kernel's OOM killer, which the container does not inherit;
 *   - read-only mask sources of the sliver's own on MASK_MOUNT, which libvirt binds over paths that must read as empty;
 *   - seccomp filters, which all processes of the container inherit;
 *   - actions *inside* the container before the tenant's first instruction: limits on processes and ptys, no nested
 *     user namespaces, the slice's host name. libvirt_lxc's child calls sethostname() when its namespaces are complete,
 *     just before it drops its capabilities. The filter suspends that call (seccomp user notification) until a guard
 *     process has done the work. Then the guard ends, and with it every call in `setup_calls`: only libvirt_lxc needs
 *     them, and without a listener they fail with ENOSYS;
 *   - a user id and limits of the sliver's own for resources that the kernel counts per user: counts.c.
 *
 * It fails closed: without the launch file, or if the guard dies, the container does not start. libvirt reports
 * the launcher's standard error. The sliver's values come from LAUNCH_DIR/NAME, which
 * slicemgr/drivers/libvirt/launch.py writes as key=value lines.
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

/* Save memory: libvirt_lxc needs its heap during the start, and then runs as long as the sliver, one per sliver. */
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

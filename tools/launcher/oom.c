/*
 * Which process the kernel kills if the sliver's memory is full. libvirt_lxc is in the container's memory cgroup, and
 * is the largest process if the memory is full of files or of many small processes: its end would end the sliver.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "launcher.h"

#define PROTECTED "-900"
#define EXPOSED "500" /* for the container, if libvirt_lxc cannot be protected */

static int is_protected;

/* Lower the value, which needs CAP_SYS_RESOURCE. A node that is itself a container may lack it. */
void protect_from_oom(void)
{
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        die("cannot open /proc/self/oom_score_adj");
    is_protected = write(fd, PROTECTED, strlen(PROTECTED)) > 0;
    if (!is_protected && errno != EACCES)
        die("cannot write " PROTECTED " to /proc/self/oom_score_adj");
    close(fd);
    errno = 0;
}

/* Reset the value that the container inherits. The tenant cannot go below a value that CAP_SYS_RESOURCE has set. */
void expose_to_oom(pid_t init)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/oom_score_adj", init);
    write_file(AT_FDCWD, path, is_protected ? "0" : EXPOSED);
}

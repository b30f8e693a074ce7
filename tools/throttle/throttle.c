/*
 * sliver-throttle LOCK
 * sliver-throttle --version
 *
 * Ends the throttling of groups of cgroup v2 when its standard input ends; see keeper.h. Each line names a group's
 * directory and the `memory.high` that it is to have then:
 *
 *     /sys/fs/cgroup/machine.slice/machine-lxc\x2d1\x2dsm\x2dx.scope 9223372036854775807
 */
#define _GNU_SOURCE
#include "../keeper/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A group that has ended needs none. */
static int end(const char *group, uint64_t high)
{
    int directory = open(group, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (directory < 0)
        return errno == ENOENT;
    int file = openat(directory, "memory.high", O_WRONLY | O_TRUNC | O_NOFOLLOW | O_CLOEXEC);
    int gone = file < 0 && errno == ENOENT;
    close(directory);
    if (file < 0)
        return gone;
    char text[32];
    int length = snprintf(text, sizeof(text), "%" PRIu64, high);
    int done = write(file, text, length) == length || errno == ENODEV;
    close(file);
    return done;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        puts("sliver-throttle 1");
        return 0;
    }
    if (argc != 2) {
        fprintf(stderr, "usage: sliver-throttle LOCK\n");
        return 1;
    }
    return keep("sliver-throttle", argv[1], end);
}

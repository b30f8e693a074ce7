/*
 * sliver-throttle LOCK
 * sliver-throttle --version
 *
 * Ends the throttling of groups of cgroup v2 when its standard input ends; see keeper.h. Each line names a file of a
 * group and the number that it is to have then; the largest means no limit:
 *
 *     /sys/fs/cgroup/machine.slice/machine-lxc\x2d1\x2dsm\x2dx.scope/memory.high 9223372036854775807
 */
#define _GNU_SOURCE
#include "../keeper/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A group that has ended needs none. */
static int end(const char *path, uint64_t value)
{
    int file = open(path, O_WRONLY | O_TRUNC | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0)
        return errno == ENOENT;
    char text[32];
    int length = value >= INT64_MAX ? snprintf(text, sizeof(text), "max") : snprintf(text, sizeof(text), "%" PRIu64, value);
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

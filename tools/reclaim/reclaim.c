/*
 * sliver-reclaim [--version]
 *
 * Takes memory from groups of cgroup v1, where nothing but a limit takes it. Each line of the standard input names a
 * group's directory, the bytes to take, and the group's limit:
 *
 *     /sys/fs/cgroup/memory/machine/lxc-1-sm-x-0.libvirt-lxc 1048576 536870912
 *
 * It lowers the limit to what the group uses less those bytes, for which the kernel takes them, and sets it again at
 * once. It is a program of its own because a group must get its limit back also if the agent is killed meanwhile.
 * Prints for each line the bytes that were taken. If the kernel cannot take them, the limit was never lowered. The
 * status is 1 if a line is wrong or a group does not have its limit again.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIMIT "memory.limit_in_bytes"
#define USAGE "memory.usage_in_bytes"
#define PAGE 4096

static int failed;

static int64_t number(int directory, const char *name)
{
    char text[32];
    int file = openat(directory, name, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    ssize_t length = read(file, text, sizeof(text) - 1);
    close(file);
    if (length <= 0)
        return -1;
    text[length] = 0;
    return strtoll(text, NULL, 10);
}

static int set(int directory, int64_t limit)
{
    char text[32];
    int file = openat(directory, LIMIT, O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    int length = snprintf(text, sizeof(text), "%" PRId64, limit);
    int wrong = write(file, text, length) != length;
    close(file);
    return wrong ? -1 : 0;
}

/* The bytes that were taken. */
static int64_t take(const char *path, int64_t bytes, int64_t limit)
{
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (directory < 0)
        return 0;
    int64_t before = number(directory, USAGE), lowered = (before - bytes) / PAGE * PAGE, after = before;
    if (before > 0 && lowered > 0 && lowered < limit && set(directory, lowered) == 0)
        after = number(directory, USAGE);
    if (set(directory, limit) != 0 && number(directory, LIMIT) >= 0) {
        fprintf(stderr, "sliver-reclaim: %s does not have its limit of %" PRId64 " again\n", path, limit);
        failed = 1;
    }
    close(directory);
    return after >= 0 && after < before ? before - after : 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        puts("sliver-reclaim 1");
        return 0;
    }
    signal(SIGPIPE, SIG_IGN); /* the agent that reads the answers may have ended */
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    while ((length = getline(&line, &room, stdin)) > 0) {
        int64_t bytes, limit;
        int used = 0;
        char *space = strchr(line, ' ');
        if (line[length - 1] != '\n' || !space || sscanf(space, " %" SCNd64 " %" SCNd64 " %n", &bytes, &limit, &used) != 2 || space[used]
            || bytes <= 0 || limit <= 0) {
            fprintf(stderr, "sliver-reclaim: a line is not `DIRECTORY BYTES LIMIT`\n");
            return 1;
        }
        *space = 0;
        printf("%" PRId64 "\n", take(line, bytes, limit));
        fflush(stdout);
    }
    free(line);
    return failed;
}

/*
 * sliver-view SOURCE PID...: mounts what lxcfs shows at SOURCE over the files of /proc in the containers whose first
 * processes are named, in the place of what an lxcfs that is gone left there. Prints how many files each one got.
 *
 * Nothing of a container is executed or loaded: a child of this process enters its mount namespace and mounts.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../launcher/view.h"

static void renew(const char *source, int pid)
{
    char path[64];
    struct view view;
    int found = open_view(source, &view), namespace;

    snprintf(path, sizeof path, "/proc/%d/ns/mnt", pid);
    if ((namespace = open(path, O_RDONLY | O_CLOEXEC)) < 0 || setns(namespace, CLONE_NEWNS) < 0) {
        printf("%d gone\n", pid);
        return;
    }
    printf("%d %d of %d\n", pid, mount_view(&view), found);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: sliver-view SOURCE PID...\n");
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        pid_t child = fork();

        if (child == 0) {
            renew(argv[1], atoi(argv[i]));
            fflush(stdout);
            _exit(0);
        }
        if (child < 0 || waitpid(child, NULL, 0) < 0)
            return 1;
    }
    return 0;
}

/*
 * sliver-balloons LOCK URI
 * sliver-balloons --version
 *
 * Gives memory back to virtual machines when its standard input ends; see keeper.h. Each line names a domain and its
 * full size in KiB:
 *
 *     sm-4f2a91-0 4194304
 *
 * It is given back by `virsh` at the libvirt of URI. The status is also 1 if a domain that runs does not have its
 * memory.
 */
#define _GNU_SOURCE
#include "../keeper/keeper.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *uri;

/* Whether `virsh` has set it. Without its domain it fails as well. */
static int give_back(const char *domain, uint64_t kib)
{
    char size[32];
    snprintf(size, sizeof(size), "%" PRIu64, kib);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing is given back after the lock is gone */
        alarm(LONGEST);
        execlp("virsh", "virsh", "-q", "-c", uri, "setmem", "--domain", domain, "--size", size, "--live", (char *)NULL);
        _exit(127);
    }
    int status;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        puts("sliver-balloons 1");
        return 0;
    }
    if (argc != 3) {
        fprintf(stderr, "usage: sliver-balloons LOCK URI\n");
        return 1;
    }
    uri = argv[2];
    return keep("sliver-balloons", argv[1], give_back);
}

/*
 * sliver-balloons LOCK URI
 * sliver-balloons --version
 *
 * Gives memory back to virtual machines when its standard input ends, for instance because the agent was killed. Each
 * line of the standard input names a domain and its full size in KiB, which replaces an earlier one; 0: the domain has
 * its memory:
 *
 *     sm-4f2a91-0 4194304
 *
 * It locks the file LOCK, prints `ready`, and ends when all has been given back, by `virsh` at the libvirt of URI. It
 * ends after 30 seconds in any case, and the next agent waits for the lock until then. The status is 1 if a line is
 * wrong, the file is locked, or a domain that runs does not have its memory.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define LONGEST 30 /* seconds */
#define TRIES 3

struct machine {
    char *domain;
    uint64_t size; /* KiB; 0: nothing to give back */
};

static struct machine *machines;
static size_t count;

static int note(const char *domain, uint64_t size)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(machines[i].domain, domain) == 0) {
            machines[i].size = size;
            return 0;
        }
    if (size == 0)
        return 0;
    struct machine *more = realloc(machines, (count + 1) * sizeof(*machines));
    if (!more)
        return -1;
    machines = more;
    machines[count].size = size;
    machines[count].domain = strdup(domain);
    return machines[count++].domain ? 0 : -1;
}

/* Whether `virsh` has set it. Without its domain it fails as well. */
static int give_back(const char *uri, const struct machine *machine)
{
    char size[32];
    snprintf(size, sizeof(size), "%" PRIu64, machine->size);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing is given back after the lock is gone */
        alarm(LONGEST);
        execlp("virsh", "virsh", "-q", "-c", uri, "setmem", "--domain", machine->domain, "--size", size, "--live", (char *)NULL);
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
    signal(SIGPIPE, SIG_IGN);
    int lock = open(argv[1], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) != 0) {
        perror("sliver-balloons: lock");
        return 1;
    }
    puts("ready");
    fflush(stdout);
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    int failed = 0;
    while ((length = getline(&line, &room, stdin)) > 0) {
        uint64_t size;
        int used = 0;
        char *space = strchr(line, ' ');
        if (line[length - 1] != '\n' || !space || sscanf(space, " %" SCNu64 " %n", &size, &used) != 1 || space[used]) {
            fprintf(stderr, "sliver-balloons: a line is not `DOMAIN KIB`\n");
            failed = 1; /* a line that a killed agent did not complete: its balloon was not set */
            continue;
        }
        *space = 0;
        if (note(line, size) != 0)
            failed = 1;
    }
    alarm(LONGEST);
    for (int try = 0; try < TRIES; try++) {
        int left = 0;
        for (size_t i = 0; i < count; i++)
            if (machines[i].size && give_back(argv[2], &machines[i]))
                machines[i].size = 0;
            else if (machines[i].size)
                left = 1;
        if (!left)
            return failed;
        sleep(1);
    }
    return 1;
}

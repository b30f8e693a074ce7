/* The sliver's identity, and whether its limits on processes, terminals, memory and disk hold. */
#define _GNU_SOURCE
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1L << 20)
#define MOST 4096

static void say_status(const char *key)
{
    char line[256], name[64];
    FILE *file = fopen("/proc/self/status", "re");

    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0 && line[strlen(key)] == ':') {
            snprintf(name, sizeof name, "status.%s", key);
            line[strcspn(line, "\n")] = 0;
            say(name, "%s", line + strlen(key) + 2);
        }
    if (file)
        fclose(file);
}

int probe_status(char **arguments)
{
    long inside, outside = -1, count = -1;
    FILE *map = fopen("/proc/self/uid_map", "re");
    int fd;

    (void)arguments;
    say_status("CapBnd");
    say_status("CapEff");
    say_status("Seccomp");
    if (map && fscanf(map, "%ld %ld %ld", &inside, &outside, &count) == 3)
        say("status.first_id", "%ld", outside);
    fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    say_result("status.oom_lower", fd < 0 ? -1 : write(fd, "-500", 4));
    fd = open("/proc/self/coredump_filter", O_RDONLY | O_CLOEXEC);
    say_result("status.proc", fd);
    return 0;
}

int probe_processes(char **arguments)
{
    static pid_t children[MOST];
    long most = number(arguments[0]), count = 0;

    for (; count < most && count < MOST; count++) {
        pid_t pid = fork();

        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;)
                pause();
        }
        if (pid < 0)
            break;
        children[count] = pid;
    }
    say("processes", "%ld", count);
    for (long i = 0; i < count; i++)
        kill(children[i], SIGKILL);
    for (long i = 0; i < count; i++)
        waitpid(children[i], NULL, 0);
    return 0;
}

int probe_terminals(char **arguments)
{
    long most = number(arguments[0]), count = 0;
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    while (count < most && open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC) >= 0)
        count++;
    say("terminals", "%ld", count);
    return 0;
}

int probe_memory(char **arguments)
{
    long bytes = number(arguments[0]);
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        for (long done = 0; done < bytes; done += MIB) {
            char *page = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

            if (page == MAP_FAILED)
                _exit(1);
            memset(page, 1, MIB);
        }
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) < 0)
        say_result("memory", -1);
    else
        say("memory", "%s", WIFSIGNALED(status) ? "killed" : WEXITSTATUS(status) ? "refused" : "ok");
    return 0;
}

/* Write incompressible bytes, so that the bytes written are the bytes charged. */
static long fill(const char *path, long bytes)
{
    static unsigned char block[MIB];
    unsigned long state = 88172645463325252UL;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    long done = 0;

    while (fd >= 0 && done < bytes) {
        ssize_t written;

        for (size_t i = 0; i < sizeof block; i += sizeof state) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            memcpy(block + i, &state, sizeof state);
        }
        if ((written = write(fd, block, sizeof block)) <= 0 || fdatasync(fd) < 0)
            break;
        done += written;
    }
    if (fd >= 0)
        close(fd);
    return done;
}

/* Fill a regular file, and a subvolume of the tenant, which a limit on the root's own group would not cover. */
int probe_disk(char **arguments)
{
    static struct {
        long long fd;
        char name[4088];
    } subvolume = {0, "sliver-probe-subvolume"};
    long bytes = number(arguments[1]), made;
    int directory;

    if (chdir(arguments[0]) < 0 || (directory = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) {
        say_result("disk", -1);
        return 0;
    }
    unlink("sliver-probe-file");
    say("disk.file", "%ld", fill("sliver-probe-file", bytes));
    unlink("sliver-probe-file");
    sync();
    made = ioctl(directory, 0x5000940e, &subvolume); /* BTRFS_IOC_SUBVOL_CREATE */
    if (made < 0 && errno != EEXIST) {
        say("disk.subvolume", "%s", error_name(errno));
        return 0;
    }
    unlink("sliver-probe-subvolume/file");
    say("disk.subvolume", "%ld", fill("sliver-probe-subvolume/file", bytes));
    unlink("sliver-probe-subvolume/file");
    rmdir("sliver-probe-subvolume");
    sync();
    return 0;
}

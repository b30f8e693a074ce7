/* The information about the node that a sliver can read, and the files that it can write. */
#define _GNU_SOURCE
#include "probe.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <net/if.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysinfo.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>

#define MOST_WRITABLE 1000
#define DEPTH 32
#define BTRFS_MAGIC 0x9123683E

static const char *const hidden[] = {
    "/proc/cmdline",    "/proc/config.gz",    "/proc/interrupts",  "/proc/iomem",
    "/proc/kallsyms",   "/proc/kcore",        "/proc/keys",       "/proc/key-users",   "/proc/kmsg",
    "/proc/locks",      "/proc/modules",      "/proc/mtrr",       "/proc/pagetypeinfo", "/proc/partitions",
    "/proc/sched_debug", "/proc/schedstat",   "/proc/slabinfo",   "/proc/softirqs",    
    "/proc/timer_list", "/proc/vmallocinfo",  "/proc/zoneinfo",    "/proc/pressure/cpu",
    "/proc/pressure/memory", "/proc/pressure/io",
};
static const char *const empty[] = {"/sys/fs/cgroup", "/sys/firmware", "/sys/block", "/sys/module", "/sys/fs/btrfs",
                                    "/sys/kernel/debug", "/sys/devices/virtual/powercap", "/proc/acpi", "/proc/scsi"};

static long bytes_of(const char *path)
{
    char buffer[4096];
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ssize_t got;

    if (fd < 0)
        return -1;
    got = read(fd, buffer, sizeof buffer);
    close(fd);
    return (long)got;
}

static void say_bytes(const char *path)
{
    char name[128];
    long got = bytes_of(path);

    snprintf(name, sizeof name, "read.%s", path);
    if (got < 0)
        say(name, "%s", error_name(errno));
    else
        say(name, "%ld", got);
}

static void say_entries(const char *path)
{
    char name[128];
    DIR *directory = opendir(path);
    long count = 0;

    snprintf(name, sizeof name, "entries.%s", path);
    if (directory == NULL) {
        say(name, "%s", error_name(errno));
        return;
    }
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(directory);
    say(name, "%ld", count);
}

static int writable;

/*
 * Report files that open for writing, except below the /proc of processes and in groups that the sliver has made, where
 * all belongs to the sliver.
 */
static int visit(const char *path, const struct stat *status, int type, struct FTW *where)
{
    int fd;

    (void)where;
    if (type == FTW_D && strncmp(path, "/proc/", 6) == 0 && isdigit((unsigned char)path[6]))
        return FTW_SKIP_SUBTREE;
    if (type == FTW_D && strncmp(path, "/sys/fs/cgroup/", 15) == 0)
        return FTW_SKIP_SUBTREE;
    if (type != FTW_F || !S_ISREG(status->st_mode) || !(status->st_mode & 0222))
        return FTW_CONTINUE;
    if ((fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW)) < 0)
        return FTW_CONTINUE;
    close(fd);
    say("writable", "%s", path);
    return ++writable < MOST_WRITABLE ? FTW_CONTINUE : FTW_STOP;
}

int probe_files(char **arguments)
{
    (void)arguments;
    for (size_t i = 0; i < LENGTH(hidden); i++)
        say_bytes(hidden[i]);
    for (size_t i = 0; i < LENGTH(empty); i++)
        say_entries(empty[i]);
    nftw("/sys", visit, DEPTH, FTW_PHYS | FTW_ACTIONRETVAL);
    nftw("/proc", visit, DEPTH, FTW_PHYS | FTW_ACTIONRETVAL); /* last: it has many settings of the network */
    say("writable.count", "%d", writable);
    return 0;
}

/* Try to open device nodes. The creation of a node alone is no finding. */
int probe_devices(char **arguments)
{
    static const struct {
        const char *name;
        mode_t type;
        unsigned int major, minor;
    } devices[] = {{"loop", S_IFBLK, 7, 0},  {"disk", S_IFBLK, 254, 0}, {"scsi", S_IFBLK, 8, 0},
                   {"mem", S_IFCHR, 1, 1},   {"kmsg", S_IFCHR, 1, 11},  {"kvm", S_IFCHR, 10, 232},
                   {"fuse", S_IFCHR, 10, 229}, {"tun", S_IFCHR, 10, 200}, {"btrfs", S_IFCHR, 10, 234}};
    const char *path = "/tmp/.sliver-probe-device";

    (void)arguments;
    for (size_t i = 0; i < LENGTH(devices); i++) {
        char name[64];
        int fd = -1;

        unlink(path);
        if (mknod(path, devices[i].type | 0600, makedev(devices[i].major, devices[i].minor)) == 0)
            fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        snprintf(name, sizeof name, "device.%s", devices[i].name);
        say_result(name, fd);
        if (fd >= 0)
            close(fd);
    }
    unlink(path);
    return 0;
}

static long field_of(const char *path, const char *key)
{
    char line[512];
    FILE *file = fopen(path, "re");
    long value = -1;

    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0) {
            char *digits = strpbrk(line + strlen(key), "0123456789");

            value = digits ? strtol(digits, NULL, 10) : -1;
            break;
        }
    if (file)
        fclose(file);
    return value;
}

static long lines_with(const char *path, const char *key)
{
    char line[512];
    FILE *file = fopen(path, "re");
    long count = 0;

    while (file && fgets(line, sizeof line, file))
        count += strncmp(line, key, strlen(key)) == 0;
    if (file)
        fclose(file);
    return count;
}

static void view_mounts(void)
{
    char line[4096], source[2048], path[1024];
    FILE *file = fopen("/proc/self/mountinfo", "re");

    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%*s %*s %*s %2047s %1023s", source, path) == 2)
            say("view.mount", "%.90s %.90s", source, path);
    if (file)
        fclose(file);
}

static void view_names(void)
{
    struct utsname system;
    struct if_nameindex *links = if_nameindex();
    char comm[32] = "";
    FILE *init = fopen("/proc/1/comm", "re");
    DIR *processes = opendir("/proc");
    long count = 0;

    if (uname(&system) == 0) {
        say("view.hostname", "%s", system.nodename);
        say("view.machine", "%s", system.machine);
        say("view.kernel", "%s", system.release);
    }
    for (struct if_nameindex *one = links; one && one->if_index; one++)
        say("view.link", "%s", one->if_name);
    if (init && fgets(comm, sizeof comm, init))
        comm[strcspn(comm, "\n")] = 0;
    say("view.init", "%s", comm);
    for (struct dirent *entry; processes && (entry = readdir(processes)) != NULL;)
        count += isdigit((unsigned char)entry->d_name[0]) != 0;
    say("view.processes", "%ld", count);
    view_mounts();
    if (init)
        fclose(init);
    if (processes)
        closedir(processes);
    if_freenameindex(links);
}

int probe_view(char **arguments)
{
    struct statfs disk;
    struct sysinfo system;

    (void)arguments;
    if (statfs("/", &disk) == 0)
        say("view.df", "%llu", (unsigned long long)disk.f_blocks * (unsigned long long)disk.f_bsize);
    if (sysinfo(&system) == 0)
        say("view.sysinfo", "%llu", (unsigned long long)system.totalram * system.mem_unit);
    say("view.meminfo", "%lld", field_of("/proc/meminfo", "MemTotal:") * 1024LL);
    say("view.uptime", "%ld", field_of("/proc/uptime", ""));
    say("view.cpuinfo", "%ld", lines_with("/proc/cpuinfo", "processor"));
    say("view.stat", "%ld", lines_with("/proc/stat", "cpu") - 1);
    say("view.processors", "%ld", sysconf(_SC_NPROCESSORS_ONLN));
    view_names();
    return 0;
}

/* btrfs requests that would affect more than the sliver's own files. */
int probe_pool(char **arguments)
{
    static const struct {
        const char *name;
        unsigned long request;
    } requests[] = {{"sync", 0x9408}, {"start_sync", 0x80089418}, {"wait_sync", 0x40089416}, {"scrub", 0xc400941b},
                    {"balance", 0x5000940c}, {"quota_ctl", 0xc0109428}, {"qgroup_create", 0x4010942a}};
    struct statfs disk;
    int root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    (void)arguments;
    if (root < 0 || fstatfs(root, &disk) < 0 || disk.f_type != BTRFS_MAGIC) {
        say("pool", "absent");
        return 0;
    }
    for (size_t i = 0; i < LENGTH(requests); i++) {
        static char argument[4096];
        char name[64];

        memset(argument, 0, sizeof argument);
        snprintf(name, sizeof name, "pool.%s", requests[i].name);
        say_result(name, ioctl(root, requests[i].request, argument));
    }
    return 0;
}

int probe_lease(char **arguments)
{
    int fd = open(arguments[0], O_RDONLY | O_CLOEXEC);

    signal(SIGIO, SIG_IGN); /* the signal by which the kernel reports a process that waits for the lease */
    say_result("lease", fd < 0 ? -1 : fcntl(fd, F_SETLEASE, F_WRLCK));
    hold();
    return 0;
}

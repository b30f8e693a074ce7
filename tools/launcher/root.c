/* The mounts that libvirt_lxc needs: the sliver's idmapped root, and the sources of its masks. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher.h"

#define ROOT_MOUNT RUN_DIR "/root"
#define MASK_MOUNT RUN_DIR "/mask"
#define MASK_FILE MASK_MOUNT "/empty" /* the names in slicemgr/drivers/libvirt/launch.py */
#define MASK_DIRECTORY MASK_MOUNT "/none"
#define MASK_ZEROS MASK_MOUNT "/vmstat"

/* A user namespace with the sliver's mapping, which the mount copies. */
static int mapping(const struct launch *launch)
{
    char path[64], map[64];
    int fd;
    pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL);

    if (pid == 0)
        for (;;)
            pause();
    if (pid < 0)
        die("cannot make a user namespace");
    snprintf(map, sizeof map, "0 %ld %ld", launch->uid, launch->count);
    snprintf(path, sizeof path, "/proc/%d/uid_map", pid);
    write_file(AT_FDCWD, path, map);
    snprintf(path, sizeof path, "/proc/%d/gid_map", pid);
    write_file(AT_FDCWD, path, map);
    fd = namespace_of(pid, "user");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return fd;
}

/*
 * libvirt mounts on these without a check. The tenant owns the root: a symlink here would redirect the mounts, made
 * while the host's tree is still reachable, to a path of the tenant's choice.
 */
static void check_mount_points(const struct launch *launch, int tree)
{
    static const char *const names[] = {"proc", "sys", "dev", ".oldroot", ".slicemgr", "run", "tmp"};
    const size_t count = *launch->subtree ? LENGTH(names) : LENGTH(names) - 2; /* the last two only for systemd */
    struct stat status;

    for (size_t i = 0; i < count; i++) {
        if (fstatat(tree, names[i], &status, AT_SYMLINK_NOFOLLOW) < 0) {
            if (errno != ENOENT)
                die("cannot read /%s of the root", names[i]);
        } else if (!S_ISDIR(status.st_mode)) {
            errno = 0;
            die("/%s of the sliver's root must be a directory, or absent", names[i]);
        }
    }
}

void mount_root(const struct launch *launch)
{
    struct mount_attr attributes = {.attr_set = MOUNT_ATTR_IDMAP | MOUNT_ATTR_NODEV};
    int tree;

    if (unshare(CLONE_NEWNS) < 0 || mount("", "/", NULL, MS_SLAVE | MS_REC, NULL) < 0)
        die("cannot make a mount namespace");
    tree = (int)syscall(SYS_open_tree, AT_FDCWD, launch->root,
                        OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW);
    if (tree < 0)
        die("cannot open the root %s", launch->root);
    check_mount_points(launch, tree);
    attributes.userns_fd = (unsigned int)mapping(launch);
    if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attributes, sizeof attributes) < 0)
        die("cannot map the ids of %s", launch->root);
    close((int)attributes.userns_fd);
    if (mkdir(ROOT_MOUNT, 0755) < 0 && errno != EEXIST)
        die("cannot make " ROOT_MOUNT);
    if (syscall(SYS_move_mount, tree, "", AT_FDCWD, ROOT_MOUNT, MOVE_MOUNT_F_EMPTY_PATH) < 0)
        die("cannot mount the root on " ROOT_MOUNT);
    close(tree);
}

static FILE *mask_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    FILE *file = fd < 0 || fchmod(fd, 0444) < 0 ? NULL : fdopen(fd, "w");

    if (file == NULL)
        die("cannot make %s", path);
    return file;
}

/* The names of the node's counters, which vmstat(8) requires, with zeros as values. */
static void write_zeros(FILE *target)
{
    char line[256];
    FILE *source = fopen("/proc/vmstat", "re");

    while (source && fgets(line, sizeof line, source))
        fprintf(target, "%.*s 0\n", (int)strcspn(line, " \n"), line);
    if (source)
        fclose(source);
    errno = 0;
}

/* A file system of the sliver's own, so that slivers share neither locks nor times of its files. */
void mount_mask(void)
{
    const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
    FILE *zeros;

    if (mkdir(MASK_MOUNT, 0755) < 0 && errno != EEXIST)
        die("cannot make " MASK_MOUNT);
    if (mount("tmpfs", MASK_MOUNT, "tmpfs", flags, "size=16k,nr_inodes=4,mode=0755") < 0)
        die("cannot mount " MASK_MOUNT);
    fclose(mask_file(MASK_FILE));
    zeros = mask_file(MASK_ZEROS);
    write_zeros(zeros);
    if (fclose(zeros) != 0)
        die("cannot write " MASK_ZEROS);
    if (mkdir(MASK_DIRECTORY, 0555) < 0)
        die("cannot make " MASK_DIRECTORY);
    if (mount(NULL, MASK_MOUNT, NULL, MS_REMOUNT | MS_RDONLY | flags, NULL) < 0)
        die("cannot make " MASK_MOUNT " read-only");
}

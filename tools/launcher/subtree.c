/*
 * The cgroups that the image's systemd manages, if it is the sliver's init: a subtree of cgroup v2 that belongs to the
 * container's root, mounted on /sys/fs/cgroup as the only part of the hierarchy that the container sees.
 *
 * On a host with cgroup v2, the subtree is below libvirt's group, which keeps the limits. The kernel requires that a
 * group with controllers for its children has no processes, so libvirt_lxc moves to a group beside the subtree, whose
 * name libvirt expects there. On a host with v1 controllers, the subtree is in the v2 hierarchy without controllers:
 * systemd can track its units' processes, but not limit them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "launcher.h"

#define CGROUP_MOUNT "/sys/fs/cgroup"
#define PRIVATE (1UL << 18) /* MS_PRIVATE: <sys/mount.h> cannot be included with <linux/mount.h> */
#define DESCENDANTS "1000"  /* cgroups in one subtree */
#define DEPTH "32"

static const char *const delegated_files[] = {"cgroup.procs", "cgroup.threads", "cgroup.subtree_control"};

/* What systemd limits for units. Not io: io.prio.class would give the sliver's requests precedence over others'. */
static const char *const controllers[] = {"+cpu", "+memory", "+pids"};

/* Copied to the subtree's root, where programs inside read their limits. The group above enforces them. */
static const char *const limit_files[] = {"cpu.max", "memory.max", "pids.max"};

static int mount_cgroup2(unsigned int attributes)
{
    int tree, context = (int)syscall(SYS_fsopen, "cgroup2", FSOPEN_CLOEXEC);

    if (context < 0 || syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0 ||
        (tree = (int)syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, attributes)) < 0)
        die("cannot reach cgroup v2");
    close(context);
    return tree;
}

int open_cgroup2(void)
{
    return mount_cgroup2(0);
}

int own_group(const struct launch *launch, pid_t init)
{
    char path[PATH_MAX], directory[2 * PATH_MAX];
    int group;

    group_path(init, "", path, sizeof path);
    snprintf(directory, sizeof directory, "%s%s", launch->cgroup2, path);
    if (strlen(path) < 2 || (group = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        die("cannot open the container's cgroup '%s'", path);
    return group;
}

static int make_group(int parent, const char *name)
{
    int group;

    if (mkdirat(parent, name, 0755) < 0 && errno != EEXIST)
        die("cannot make the cgroup %s", name);
    if ((group = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)) < 0)
        die("cannot open the cgroup %s", name);
    errno = 0;
    return group;
}

/* The processes of libvirt's group: the container's init, and libvirt_lxc. */
static void empty_group(int group, pid_t init, int subtree)
{
    int emulator = make_group(group, EMULATOR_GROUP), fd = openat(group, "cgroup.procs", O_RDONLY | O_CLOEXEC);
    FILE *processes = fd < 0 ? NULL : fdopen(fd, "r");
    char text[32];
    int pid;

    if (processes == NULL)
        die("cannot read the processes of the container's cgroup");
    while (fscanf(processes, "%d", &pid) == 1) {
        snprintf(text, sizeof text, "%d", pid);
        write_file(pid == init ? subtree : emulator, "cgroup.procs", text);
    }
    fclose(processes);
    close(emulator);
    errno = 0;
}

static void copy_limits(int group, int subtree)
{
    for (size_t i = 0; i < LENGTH(limit_files); i++) {
        char text[64] = "";
        int fd = openat(group, limit_files[i], O_RDONLY | O_CLOEXEC);

        if (fd < 0 || read(fd, text, sizeof text - 1) <= 0)
            die("cannot read %s of the container's cgroup", limit_files[i]);
        close(fd);
        write_file(subtree, limit_files[i], text);
    }
}

static int make_v2(const struct launch *launch, pid_t init)
{
    int group = own_group(launch, init), subtree = make_group(group, launch->subtree);

    empty_group(group, init, subtree);
    for (size_t i = 0; i < LENGTH(controllers); i++)
        write_file(group, "cgroup.subtree_control", controllers[i]);
    copy_limits(group, subtree);
    close(group);
    return subtree;
}

static int make_v1(const struct launch *launch, pid_t init)
{
    int tree = open_cgroup2(), group = make_group(tree, SLIVERS_GROUP), subtree = make_group(group, launch->subtree);
    char text[32];

    snprintf(text, sizeof text, "%d", init);
    write_file(subtree, "cgroup.procs", text);
    close(group);
    close(tree);
    return subtree;
}

static void give_away(const struct launch *launch, int subtree)
{
    const uid_t owner = (uid_t)launch->uid;

    write_file(subtree, "cgroup.max.descendants", DESCENDANTS);
    write_file(subtree, "cgroup.max.depth", DEPTH);
    if (fchown(subtree, owner, owner) < 0)
        die("cannot give the subtree away");
    for (size_t i = 0; i < LENGTH(delegated_files); i++)
        if (fchownat(subtree, delegated_files[i], owner, owner, AT_SYMLINK_NOFOLLOW) < 0)
            die("cannot give %s away", delegated_files[i]);
}

/* The root of a mount of cgroup v2 is that of the caller's cgroup namespace, so this process joins the subtree. */
int make_subtree(const struct launch *launch, pid_t init)
{
    int subtree = *launch->cgroup2 ? make_v2(launch, init) : make_v1(launch, init);

    give_away(launch, subtree); /* first: with nsdelegate, limits of a namespace's root cannot be set inside it */
    write_file(subtree, "cgroup.procs", "0");
    if (unshare(CLONE_NEWCGROUP) < 0)
        die("cannot make a cgroup namespace");
    close(subtree);
    errno = 0;
    return mount_cgroup2(MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
}

/* Over the mask of the same path, which hides the hierarchies that libvirt mounts. */
void mount_subtree(int tree)
{
    if (syscall(SYS_move_mount, tree, "", AT_FDCWD, CGROUP_MOUNT, MOVE_MOUNT_F_EMPTY_PATH) < 0 ||
        mount(NULL, CGROUP_MOUNT, NULL, PRIVATE, NULL) < 0)
        die("cannot mount " CGROUP_MOUNT);
    close(tree);
}

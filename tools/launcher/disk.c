/*
 * The counts of the sliver's btrfs quota group, mounted read-only at DISK_TARGET: statfs(2), and so df, knows no quota
 * groups. They are files of sysfs, which the kernel computes when they are read.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "launcher.h"
#include "view.h"

#define DISK_TARGET "/.slicemgr/disk" /* a directory of images/init, which libvirt mounts in the container */

int open_disk(const struct launch *launch)
{
    struct mount_attr attributes = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV |
                                                MOUNT_ATTR_NOEXEC};
    int tree;

    if (!*launch->quota_group)
        return -1;
    tree = (int)syscall(SYS_open_tree, AT_FDCWD, launch->quota_group,
                        OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW);
    if (tree >= 0 && syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attributes, sizeof attributes) < 0)
        die("cannot make %s read-only", launch->quota_group);
    return tree;
}

void mount_disk(int tree)
{
    int target = open_target(DISK_TARGET);

    if (target < 0 || syscall(SYS_move_mount, tree, "", target, "",
                              MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
        die("cannot mount " DISK_TARGET);
    close(target);
    close(tree);
}

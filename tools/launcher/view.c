/*
 * The files of /proc and /sys that lxcfs computes from the sliver's own limits, mounted over those of the node.
 *
 * The guard uses this when a container starts, and sliver-view when lxcfs has been restarted and the slivers' files of
 * the previous daemon are dead.
 */
#define _GNU_SOURCE
#include "view.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define DETACH 2    /* MNT_DETACH, UMOUNT_NOFOLLOW: <sys/mount.h> cannot be included with <linux/mount.h> */
#define NOFOLLOW 8
#define MOST_LAYERS 4 /* dead mounts of one file, at most */

int umount2(const char *target, int flags);

static const char *const files[VIEW_FILES] = {"/proc/cpuinfo", "/proc/diskstats", "/proc/loadavg",
                                              "/proc/meminfo", "/proc/stat",      "/proc/swaps",
                                              "/proc/uptime",  "/sys/devices/system/cpu/online"};

int open_view(const char *source, struct view *view)
{
    int found = 0;

    for (int i = 0; i < VIEW_FILES; i++) {
        char path[4096];

        snprintf(path, sizeof path, "%s%s", source, files[i]);
        view->tree[i] = (int)syscall(SYS_open_tree, AT_FDCWD, path,
                                     OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW);
        found += view->tree[i] >= 0;
    }
    return found;
}

int open_target(const char *path)
{
    struct open_how how = {.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC,
                           .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};

    return (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
}

/* Unmount what a daemon that has ended left behind. A file without such a mount is not changed. */
static void remove_dead(const char *path)
{
    struct statfs status;

    for (int i = 0; i < MOST_LAYERS && statfs(path, &status) < 0 && errno == ENOTCONN; i++)
        if (umount2(path, DETACH | NOFOLLOW) < 0)
            return;
}

int mount_view(struct view *view)
{
    int mounted = 0;

    for (int i = 0; i < VIEW_FILES; i++) {
        int target;

        if (view->tree[i] < 0)
            continue;
        remove_dead(files[i]);
        target = open_target(files[i]);
        if (target >= 0 && syscall(SYS_move_mount, view->tree[i], "", target, "",
                                   MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) == 0)
            mounted++;
        if (target >= 0)
            close(target);
        close(view->tree[i]);
    }
    return mounted;
}

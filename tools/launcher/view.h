/* The files that lxcfs shows a sliver: see view.c. */
#ifndef VIEW_H
#define VIEW_H

#define VIEW_FILES 8

struct view {
    int tree[VIEW_FILES]; /* a detached mount of each file, -1 if lxcfs does not have it */
};

int open_view(const char *source, struct view *view); /* the number of files that lxcfs has below `source` */
int mount_view(struct view *view);                    /* the number of files mounted in this mount namespace */
/* What to mount on, without symlinks, because the tree of the mount namespace belongs to the tenant; -1 if absent. */
int open_target(const char *path);

#endif

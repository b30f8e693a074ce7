/* What lxcfs shows a sliver: see view.c. */
#ifndef VIEW_H
#define VIEW_H

#define VIEW_FILES 8

struct view {
    int tree[VIEW_FILES]; /* a detached mount of each file, -1 where lxcfs has none */
};

int open_view(const char *source, struct view *view); /* how many files lxcfs has below `source` */
int mount_view(struct view *view);                    /* how many were mounted in this process's mount namespace */

#endif

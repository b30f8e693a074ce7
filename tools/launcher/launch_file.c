/* Read the launch file, which slicemgr/drivers/libvirt/launch.py writes. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "launcher.h"

#define LAUNCH_DIR RUN_DIR "/launch"

const char *domain_name(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--name") == 0)
            return argv[i + 1];
    errno = 0;
    die("no --name among the arguments");
}

static void set_text(char *field, size_t size, const char *key, const char *value)
{
    errno = 0;
    if (strlen(value) >= size)
        die("%s is too long", key);
    strcpy(field, value);
}

static void set_number(long *field, const char *key, const char *value)
{
    char *end;

    errno = 0;
    *field = strtol(value, &end, 10);
    if (errno || end == value || *end || *field <= 0)
        die("%s=%s is not a positive number", key, value);
}

static void set_key(struct launch *launch, const char *key, const char *value)
{
    if (strcmp(key, "root") == 0)
        set_text(launch->root, sizeof launch->root, key, value);
    else if (strcmp(key, "hostname") == 0)
        set_text(launch->hostname, sizeof launch->hostname, key, value);
    else if (strcmp(key, "mac") == 0)
        set_text(launch->mac, sizeof launch->mac, key, value);
    else if (strcmp(key, "pids_group") == 0)
        set_text(launch->pids_group, sizeof launch->pids_group, key, value);
    else if (strcmp(key, "cgroup2") == 0)
        set_text(launch->cgroup2, sizeof launch->cgroup2, key, value);
    else if (strcmp(key, "view") == 0)
        set_text(launch->view, sizeof launch->view, key, value);
    else if (strcmp(key, "quota_group") == 0)
        set_text(launch->quota_group, sizeof launch->quota_group, key, value);
    else if (strcmp(key, "subtree") == 0)
        set_text(launch->subtree, sizeof launch->subtree, key, value);
    else if (strcmp(key, "uid") == 0)
        set_number(&launch->uid, key, value);
    else if (strcmp(key, "count") == 0)
        set_number(&launch->count, key, value);
    else if (strcmp(key, "pids") == 0)
        set_number(&launch->pids, key, value);
    else if (strcmp(key, "ptys") == 0)
        set_number(&launch->ptys, key, value);
    else if (strcmp(key, "socket_program") == 0)
        set_text(launch->socket_program, sizeof launch->socket_program, key, value);
    else if (strcmp(key, "socket_memory") == 0)
        set_number(&launch->socket_memory, key, value);
    else if (strcmp(key, "fragments") == 0)
        set_number(&launch->fragments, key, value);
    else if (strcmp(key, "compat_sockets") == 0)
        launch->compat_sockets = strcmp(value, "1") == 0;
    else if (strcmp(key, "no_subvolumes") == 0)
        launch->no_subvolumes = strcmp(value, "1") == 0;
    else {
        errno = 0;
        die("unknown key '%s' in the launch file", key);
    }
}

struct launch read_launch(const char *name)
{
    struct launch launch = {0};
    char path[PATH_MAX], line[PATH_MAX + 64];
    struct stat status;
    FILE *file;
    int fd;

    errno = 0;
    if (strchr(name, '/') || snprintf(path, sizeof path, LAUNCH_DIR "/%s", name) >= (int)sizeof path)
        die("'%s' cannot be a sliver's name", name);
    if ((fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW)) < 0 || fstat(fd, &status) < 0)
        die("cannot open %s", path);
    if (!S_ISREG(status.st_mode) || status.st_uid != 0 || (status.st_mode & 077))
        die("%s must be a file that only root can read", path);
    if ((file = fdopen(fd, "r")) == NULL)
        die("cannot read %s", path);
    while (fgets(line, sizeof line, file)) {
        char *value = strchr(line, '=');

        if (value == NULL)
            die("a line without '=' in %s", path);
        *value++ = '\0';
        value[strcspn(value, "\n")] = '\0';
        set_key(&launch, line, value);
    }
    fclose(file);
    errno = 0;
    if (!*launch.root || !*launch.hostname || !launch.uid || !launch.count || !launch.pids || !launch.ptys ||
        !*launch.pids_group == !*launch.cgroup2 || strchr(launch.subtree, '/'))
        die("%s is incomplete", path);
    return launch;
}

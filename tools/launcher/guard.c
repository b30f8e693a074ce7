/* The guard: hardens the container from inside, before the tenant's first instruction. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher.h"
#include "view.h"

#define GUARD_SECONDS 60 /* a start that takes longer fails */
#define TTY_GROUP 5      /* the group that libvirt_lxc assumes */
#define INOTIFY_INSTANCES "1024" /* per user inside; the node's fs.inotify.* limit their sum */
#define INOTIFY_WATCHES "65536"

/*
 * Set the limits in libvirt's cgroup with the container's processes, not in the systemd scope above it: systemd writes
 * its own defaults there at each daemon-reload. The container can access neither.
 */
static void limit_v2(const struct launch *launch, pid_t init)
{
    char path[PATH_MAX] = "", file[PATH_MAX + 128], line[PATH_MAX], text[32];
    FILE *membership;

    snprintf(file, sizeof file, "/proc/%d/cgroup", init);
    if ((membership = fopen(file, "re")) == NULL)
        die("cannot open %s", file);
    while (fgets(line, sizeof line, membership))
        if (strncmp(line, "0::/", 4) == 0)
            snprintf(path, sizeof path, "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
    fclose(membership);
    errno = 0;
    if (strlen(path) < 2)
        die("the container has no cgroup of its own: '%s'", path);
    for (char *part = path; part; part = strchr(part + 1, '/')) { /* enable the controller on the way down */
        int fd;

        snprintf(file, sizeof file, "%s%.*s/cgroup.subtree_control", launch->cgroup2, (int)(part - path), path);
        if ((fd = open(file, O_WRONLY | O_CLOEXEC)) >= 0) {
            if (write(fd, "+pids", 5) < 0)
                errno = 0; /* if the controller is missing, the next write fails */
            close(fd);
        }
    }
    snprintf(file, sizeof file, "%s%s/pids.max", launch->cgroup2, path);
    snprintf(text, sizeof text, "%ld", launch->pids);
    write_file(AT_FDCWD, file, text);
    snprintf(file, sizeof file, "%s%s/memory.swap.max", launch->cgroup2, path);
    if (access(file, F_OK) == 0) /* otherwise the memory limit would only move memory to swap */
        write_file(AT_FDCWD, file, "0");
    errno = 0;
}

static void limit_v1(const struct launch *launch, pid_t init)
{
    char path[PATH_MAX + 16], text[32];

    snprintf(path, sizeof path, "%s/pids.max", launch->pids_group);
    snprintf(text, sizeof text, "%ld", launch->pids);
    write_file(AT_FDCWD, path, text);
    snprintf(path, sizeof path, "%s/cgroup.procs", launch->pids_group);
    snprintf(text, sizeof text, "%d", init);
    write_file(AT_FDCWD, path, text);
}

static void enter(pid_t init, const char *kind)
{
    int fd = namespace_of(init, kind);

    if (setns(fd, 0) < 0)
        die("cannot enter the container's %s namespace", kind);
    close(fd);
}

/* Run as the host's root, while `init` (which has run nothing of the tenant yet) waits in sethostname(). */
static void harden(const struct launch *launch, pid_t init)
{
    char options[96];
    int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int user = namespace_of(init, "user"), tree;
    struct view view;
    int shown = *launch->view ? open_view(launch->view, &view) : 0; /* 0 if lxcfs does not run, which doctor reports */
    int disk = open_disk(launch);

    check_maker(launch, user);
    expose_to_oom(init);
    if (*launch->cgroup2)
        limit_v2(launch, init);
    else
        limit_v1(launch, init);
    bound_sockets(launch, init);
    tree = *launch->subtree ? make_subtree(launch, init) : -1;
    enter(init, "net");
    if (*launch->mac)
        set_link_address(launch);
    enter(init, "uts");
    if (sethostname(launch->hostname, strlen(launch->hostname)) < 0)
        die("cannot set the host name");
    enter(init, "mnt");
    snprintf(options, sizeof options, "max=%ld,ptmxmode=0666,mode=0620,gid=%ld", launch->ptys,
             launch->uid + TTY_GROUP);
    if (mount("devpts", "/dev/pts", NULL, MS_REMOUNT | MS_NOSUID, options) < 0)
        die("cannot limit the ptys");
    if (shown && mount_view(&view) != shown)
        die("cannot mount what lxcfs shows");
    if (disk >= 0)
        mount_disk(disk);
    if (tree >= 0)
        mount_subtree(tree);
    if (launch->fragments)
        close_settings(launch, proc);
    if (setns(user, CLONE_NEWUSER) < 0) /* the setting depends on the opener's user namespace */
        die("cannot enter the container's user namespace");
    write_file(proc, "sys/user/max_user_namespaces", "0");
    write_file(proc, "sys/user/max_inotify_instances", INOTIFY_INSTANCES);
    write_file(proc, "sys/user/max_inotify_watches", INOTIFY_WATCHES);
}

/* Do the container's one-time work in a child, so that this process keeps its namespaces. */
static int harden_in_child(const struct launch *launch, pid_t init)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        harden(launch, init);
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) < 0)
        die("cannot run the guard's child");
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -1;
}

/* Whether the container may continue; if not, libvirt_lxc fails with the error in `answer`. */
static int finish_start(const struct launch *launch, pid_t init, struct seccomp_notif_resp *answer)
{
    if (harden_in_child(launch, init) != 0) {
        answer->error = -EPERM;
        return 0;
    }
    if (launch->compat_sockets)
        enter_sliver(launch, init);
    return 1;
}

/*
 * Let libvirt_lxc's calls pass until sethostname(), which shows that the container is complete. Then return, or in a
 * 32-bit sliver continue with the sockets of socketcall(2).
 */
static void answer_calls(const struct launch *launch, int listener)
{
    int hostname = seccomp_syscall_resolve_name("sethostname"), complete = 0;
    struct seccomp_notif *call;
    struct seccomp_notif_resp *answer;

    if (seccomp_notify_alloc(&call, &answer) != 0)
        die("no memory");
    for (;;) {
        struct pollfd wait = {.fd = listener, .events = POLLIN};
        int ready = poll(&wait, 1, complete ? -1 : GUARD_SECONDS * 1000);

        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0 || !(wait.revents & POLLIN))
            return; /* libvirt_lxc has ended or hangs */
        memset(call, 0, sizeof *call);
        if (seccomp_notify_receive(listener, call) != 0)
            continue; /* the caller was killed in the meantime */
        memset(answer, 0, sizeof *answer);
        answer->id = call->id;
        if (complete)
            answer_socketcall(listener, call, answer);
        else if (call->data.nr != hostname || call->data.arch != seccomp_arch_native())
            answer->flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        else
            complete = finish_start(launch, (pid_t)call->pid, answer);
        seccomp_notify_respond(listener, answer);
        if (complete ? !launch->compat_sockets : answer->error != 0)
            return;
    }
}

static int receive_fd(int channel)
{
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *header;
    int fd;

    if (recvmsg(channel, &message, MSG_CMSG_CLOEXEC) <= 0 || (header = CMSG_FIRSTHDR(&message)) == NULL)
        return -1;
    memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}

void send_fd(int channel, int fd)
{
    char byte = 0, control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);

    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    if (sendmsg(channel, &message, 0) != 1)
        die("cannot reach the guard");
}

/* Fork twice, so that libvirt_lxc gets no child that it does not know. Of libvirt's files it keeps only stderr. */
int start_guard(const struct launch *launch)
{
    int pair[2], status;
    pid_t pid;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0 || (pid = fork()) < 0)
        die("cannot start the guard");
    if (pid == 0) {
        int listener;

        if ((pid = fork()) != 0)
            _exit(pid < 0);
        setsid();
        if (dup2(pair[1], STDIN_FILENO) < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0 ||
            syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, 0) < 0)
            die("cannot start the guard");
        if ((listener = receive_fd(STDIN_FILENO)) >= 0)
            answer_calls(launch, listener);
        _exit(0);
    }
    close(pair[1]);
    if (waitpid(pid, &status, 0) < 0 || status != 0)
        die("cannot start the guard");
    return pair[0];
}

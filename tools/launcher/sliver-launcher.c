/*
 * sliver-launcher: the <emulator> of every lxc sliver. libvirtd runs it in place of libvirt_lxc, with
 * libvirt_lxc's arguments; it confines itself and becomes libvirt_lxc. What libvirt-LXC lacks is done here:
 *
 *   - an idmapped mount of the sliver's root on ROOT_MOUNT, in a mount namespace that ends with the container,
 *     so the host's mount table never sees it and the pool itself can stay closed to everyone but root;
 *   - a seccomp filter, inherited by all that runs in the container;
 *   - what must be done *inside* the container before the tenant's first instruction: limits on processes and
 *     ptys, no nested user namespaces, the slice's host name. libvirt_lxc's child calls sethostname() when its
 *     namespaces are complete and just before it gives up its capabilities. The filter stops that call (seccomp
 *     user notification) until a guard process has done the work. Then the guard ends, and with it every call
 *     on `setup_calls`: only libvirt_lxc needs them, and a listener that is gone means ENOSYS for ever.
 *
 * Everything fails closed: without the launch file, or if the guard dies, the container does not start.
 * What it says on stderr is what libvirt reports. The sliver's values come from LAUNCH_DIR/NAME, written by
 * slicemgr/drivers/launch.py as key=value lines.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/mount.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Declared here because <sys/mount.h> cannot be included beside <linux/mount.h> before glibc 2.37. */
int mount(const char *source, const char *target, const char *type, unsigned long flags, const void *data);

#ifndef RUN_DIR
#define RUN_DIR "/run/slicemgr"
#endif
#define LAUNCH_DIR RUN_DIR "/launch"
#define ROOT_MOUNT RUN_DIR "/root"
#define GUARD_SECONDS 60 /* a start that takes longer is given up */
#define TTY_GROUP 5      /* as libvirt_lxc assumes */
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static const char *const controllers[] = {"/usr/lib/libvirt/libvirt_lxc", "/usr/libexec/libvirt_lxc",
                                          "/usr/lib64/libvirt/libvirt_lxc"};

/* Calls that libvirt_lxc makes while it builds the container and nobody in it needs afterwards. */
static const char *const setup_calls[] = {"sethostname", "setdomainname", "mount", "umount",
                                          "umount2",     "pivot_root",    "bpf"};

/* Calls that only the host's root, or an exploit, would want. */
static const char *const denied_calls[] = {
    "acct", "add_key", "clock_adjtime", "clock_adjtime64", "clock_settime", "clock_settime64", "create_module",
    "delete_module", "fanotify_init", "finit_module", "get_kernel_syms", "init_module", "io_uring_enter",
    "io_uring_register", "io_uring_setup", "ioperm", "iopl", "kcmp", "kexec_file_load", "kexec_load", "keyctl",
    "lookup_dcookie", "migrate_pages", "move_pages", "nfsservctl", "open_by_handle_at", "perf_event_open",
    "query_module", "quotactl", "quotactl_fd", "reboot", "request_key", "setns", "settimeofday", "stime", "swapoff",
    "swapon", "_sysctl", "sysfs", "syslog", "uselib", "userfaultfd", "ustat", "vm86", "vm86old"};

/* The newer mount calls: ENOSYS, so that programs fall back to mount(2), which libvirt_lxc may use. */
static const char *const absent_calls[] = {"open_tree", "open_tree_attr", "move_mount", "fsopen",
                                           "fsconfig",  "fsmount",        "fspick",     "mount_setattr"};

/* unix, inet, inet6, netlink, packet; any other family makes the host load a module nobody looks at. */
static const int socket_families[] = {1, 2, 10, 16, 17};
#define NO_CALL 0xffffffffU

struct launch {
    char root[PATH_MAX];      /* the sliver's files */
    char hostname[65];
    char pids_group[PATH_MAX]; /* the sliver's own directory in the v1 pids hierarchy, "" on cgroup v2 */
    char cgroup2[PATH_MAX];   /* where cgroup v2 is mounted, "" on v1 */
    long uid, count;          /* host ids uid..uid+count-1 are the sliver's 0..count-1 */
    long pids, ptys;
    int compat_sockets;       /* socketcall(2), which cannot be filtered by family: 32-bit slivers need it */
    int no_subvolumes;        /* where the disk limit would not hold for what lies in a subvolume of the tenant's */
};

static void __attribute__((noreturn, format(printf, 1, 2))) die(const char *format, ...)
{
    int error = errno;
    va_list arguments;

    fputs("sliver-launcher: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, error ? ": %s\n" : "\n", strerror(error));
    exit(EXIT_FAILURE);
}

static void write_file(int directory, const char *path, const char *text)
{
    int fd = openat(directory, path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);

    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
        die("cannot write '%s' to %s", text, path);
    close(fd);
}

static int namespace_of(pid_t pid, const char *kind)
{
    char path[64];
    int fd;

    snprintf(path, sizeof path, "/proc/%d/ns/%s", pid, kind);
    if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        die("cannot open %s", path);
    return fd;
}

/* ---- the launch file ---- */

static const char *domain_name(int argc, char **argv)
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
    else if (strcmp(key, "pids_group") == 0)
        set_text(launch->pids_group, sizeof launch->pids_group, key, value);
    else if (strcmp(key, "cgroup2") == 0)
        set_text(launch->cgroup2, sizeof launch->cgroup2, key, value);
    else if (strcmp(key, "uid") == 0)
        set_number(&launch->uid, key, value);
    else if (strcmp(key, "count") == 0)
        set_number(&launch->count, key, value);
    else if (strcmp(key, "pids") == 0)
        set_number(&launch->pids, key, value);
    else if (strcmp(key, "ptys") == 0)
        set_number(&launch->ptys, key, value);
    else if (strcmp(key, "compat_sockets") == 0)
        launch->compat_sockets = strcmp(value, "1") == 0;
    else if (strcmp(key, "no_subvolumes") == 0)
        launch->no_subvolumes = strcmp(value, "1") == 0;
    else {
        errno = 0;
        die("unknown key '%s' in the launch file", key);
    }
}

static struct launch read_launch(const char *name)
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
        !*launch.pids_group == !*launch.cgroup2)
        die("%s is incomplete", path);
    return launch;
}

/* ---- the root ---- */

/* A user namespace with the sliver's mapping; it only lends its numbers to the mount. */
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
 * libvirt mounts on these without looking. The tenant owns the root: a symlink here would lead the mounts, made
 * while the host's tree is still reachable, to a place of the tenant's choice.
 */
static void check_mount_points(int tree)
{
    static const char *const names[] = {"proc", "sys", "dev", ".oldroot", ".slicemgr"};
    struct stat status;

    for (size_t i = 0; i < LENGTH(names); i++) {
        if (fstatat(tree, names[i], &status, AT_SYMLINK_NOFOLLOW) < 0) {
            if (errno != ENOENT)
                die("cannot look at /%s of the root", names[i]);
        } else if (!S_ISDIR(status.st_mode)) {
            errno = 0;
            die("/%s of the sliver's root must be a directory, or absent", names[i]);
        }
    }
}

static void mount_root(const struct launch *launch)
{
    struct mount_attr attributes = {.attr_set = MOUNT_ATTR_IDMAP | MOUNT_ATTR_NODEV};
    int tree;

    if (unshare(CLONE_NEWNS) < 0 || mount("", "/", NULL, MS_SLAVE | MS_REC, NULL) < 0)
        die("cannot make a mount namespace");
    tree = (int)syscall(SYS_open_tree, AT_FDCWD, launch->root,
                        OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW);
    if (tree < 0)
        die("cannot open the root %s", launch->root);
    check_mount_points(tree);
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

/* ---- the guard ---- */

/*
 * In the directory of libvirt's that holds the container's processes, not in the systemd scope above it: systemd
 * writes its own defaults there again at each daemon-reload. Nobody in the container sees either.
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
    for (char *part = path; part; part = strchr(part + 1, '/')) { /* hand the controller down to it */
        int fd;

        snprintf(file, sizeof file, "%s%.*s/cgroup.subtree_control", launch->cgroup2, (int)(part - path), path);
        if ((fd = open(file, O_WRONLY | O_CLOEXEC)) >= 0) {
            if (write(fd, "+pids", 5) < 0)
                errno = 0; /* where it is missing, the next write says so */
            close(fd);
        }
    }
    snprintf(file, sizeof file, "%s%s/pids.max", launch->cgroup2, path);
    snprintf(text, sizeof text, "%ld", launch->pids);
    write_file(AT_FDCWD, file, text);
    snprintf(file, sizeof file, "%s%s/memory.swap.max", launch->cgroup2, path);
    if (access(file, F_OK) == 0) /* or the memory cap would only move memory to the swap */
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

/* Runs as the host's root, while `init` (nothing of the tenant yet) waits in sethostname(). */
static void harden(const struct launch *launch, pid_t init)
{
    char options[96];
    int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int user = namespace_of(init, "user");

    if (*launch->cgroup2)
        limit_v2(launch, init);
    else
        limit_v1(launch, init);
    enter(init, "uts");
    if (sethostname(launch->hostname, strlen(launch->hostname)) < 0)
        die("cannot set the host name");
    enter(init, "mnt");
    snprintf(options, sizeof options, "max=%ld,ptmxmode=0666,mode=0620,gid=%ld", launch->ptys,
             launch->uid + TTY_GROUP);
    if (mount("devpts", "/dev/pts", NULL, MS_REMOUNT | MS_NOSUID, options) < 0)
        die("cannot limit the ptys");
    if (setns(user, CLONE_NEWUSER) < 0) /* the setting is found through the opener's user namespace */
        die("cannot enter the container's user namespace");
    write_file(proc, "sys/user/max_user_namespaces", "0");
}

/* Does the container's one-time work in a child, which leaves this process and its view of the host as they are. */
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

/* Lets libvirt_lxc's calls pass until the one that says: the container is complete. */
static void answer_calls(const struct launch *launch, int listener)
{
    int hostname = seccomp_syscall_resolve_name("sethostname");
    struct seccomp_notif *call;
    struct seccomp_notif_resp *answer;

    if (seccomp_notify_alloc(&call, &answer) != 0)
        die("no memory");
    for (;;) {
        struct pollfd wait = {.fd = listener, .events = POLLIN};
        int ready = poll(&wait, 1, GUARD_SECONDS * 1000);
        int done;

        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0 || !(wait.revents & POLLIN))
            return; /* libvirt_lxc is gone or stuck */
        memset(call, 0, sizeof *call);
        if (seccomp_notify_receive(listener, call) != 0)
            continue; /* the caller was killed meanwhile */
        memset(answer, 0, sizeof *answer);
        answer->id = call->id;
        done = call->data.nr == hostname && call->data.arch == seccomp_arch_native();
        if (!done)
            answer->flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        else if (harden_in_child(launch, (pid_t)call->pid) != 0)
            answer->error = -EPERM;
        seccomp_notify_respond(listener, answer);
        if (done)
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

static void send_fd(int channel, int fd)
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

/* Forked twice, so that libvirt_lxc does not get a child it does not know; holds nothing of libvirt's but stderr. */
static int start_guard(const struct launch *launch)
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

/* ---- the filter ---- */

/* BTRFS_IOC_SNAP_CREATE, SUBVOL_CREATE and their second versions. */
static const uint32_t subvolume_requests[] = {0x50009401, 0x5000940e, 0x50009417, 0x50009418};

/*
 * BTRFS_IOC_SYNC, START_SYNC and WAIT_SYNC: each makes the whole pool commit, and needs no privilege. Others on the same
 * pool wait for the commit. sync(2), syncfs(2) and fsync(2) stay.
 */
static const uint32_t sync_requests[] = {0x00009408, 0x80089418, 0x40089416};

/* A call that this libseccomp or architecture does not know is no reason to fail. */
static void add_rules(scmp_filter_ctx filter, uint32_t action, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int number = seccomp_syscall_resolve_name(names[i]);

        if (number == __NR_SCMP_ERROR)
            continue;
        if ((errno = -seccomp_rule_add(filter, action, number, 0)) != 0)
            die("cannot filter %s", names[i]);
    }
}

/*
 * Refuses socket families. Written by hand because libseccomp cannot compare arguments where a 32-bit x86 program
 * may call socket(2) both by itself and through socketcall(2), whose arguments no filter sees.
 */
static void filter_sockets(const struct launch *launch)
{
    static const struct abi {
        uint32_t arch, socket, socketcall;
    } abis[] = {
        {AUDIT_ARCH_X86_64, 41, NO_CALL},
        {AUDIT_ARCH_I386, 359, 102},
        {AUDIT_ARCH_AARCH64, 198, NO_CALL},
        {AUDIT_ARCH_ARM, 281, NO_CALL},
    };
    struct sock_filter code[LENGTH(abis) * (8 + LENGTH(socket_families)) + 1];
    struct sock_fprog program = {.filter = code};
    size_t n = 0;

    for (size_t i = 0; i < LENGTH(abis); i++) {
        const uint8_t families = LENGTH(socket_families);
        uint32_t socketcall = launch->compat_sockets ? NO_CALL : abis[i].socketcall;

        code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ, abis[i].arch, 0, families + 6);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ, socketcall, families + 2, 0);
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ, abis[i].socket, 0, families + 2);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0]));
        for (uint8_t j = 0; j < families; j++)
            code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ, (uint32_t)socket_families[j],
                                                     families - j, 0);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    program.len = (unsigned short)n;
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
        die("cannot filter socket families");
}

static void deny_requests(scmp_filter_ctx filter, const uint32_t *requests, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if ((errno = -seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(ioctl), 1,
                                       SCMP_A1(SCMP_CMP_MASKED_EQ, UINT32_MAX, requests[i]))) != 0)
            die("cannot make the seccomp filter");
}

static int install_filter(const struct launch *launch)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    uint32_t native = seccomp_arch_native();
    int listener;

    errno = 0;
    if (filter == NULL || seccomp_attr_set(filter, SCMP_FLTATR_CTL_NNP, 0) != 0 ||
        seccomp_attr_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2) != 0 ||
        seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_ERRNO(ENOSYS)) != 0)
        die("cannot prepare the filter");
    if ((native == SCMP_ARCH_X86_64 && seccomp_arch_add(filter, SCMP_ARCH_X86) != 0) ||
        (native == SCMP_ARCH_AARCH64 && seccomp_arch_add(filter, SCMP_ARCH_ARM) != 0))
        die("cannot filter 32-bit programs");
    if (launch->no_subvolumes)
        deny_requests(filter, subvolume_requests, LENGTH(subvolume_requests));
    deny_requests(filter, sync_requests, LENGTH(sync_requests));
    add_rules(filter, SCMP_ACT_NOTIFY, setup_calls, LENGTH(setup_calls));
    add_rules(filter, SCMP_ACT_ERRNO(EPERM), denied_calls, LENGTH(denied_calls));
    add_rules(filter, SCMP_ACT_ERRNO(ENOSYS), absent_calls, LENGTH(absent_calls));
    if ((errno = -seccomp_load(filter)) != 0)
        die("cannot install the filter");
    if ((listener = seccomp_notify_fd(filter)) < 0)
        die("the filter has no listener");
    seccomp_release(filter);
    return listener;
}

/* libvirt_lxc needs its memory while it starts, and is then there for as long as the sliver: hundreds of them. */
static void keep_heap_small(void)
{
    setenv("MALLOC_ARENA_MAX", "1", 1);
    setenv("MALLOC_TOP_PAD_", "0", 1);
    setenv("MALLOC_TRIM_THRESHOLD_", "0", 1);
}

int main(int argc, char **argv)
{
    struct launch launch = read_launch(domain_name(argc, argv));
    int guard, listener;

    mount_root(&launch);
    guard = start_guard(&launch);
    filter_sockets(&launch);
    listener = install_filter(&launch);
    send_fd(guard, listener);
    close(listener);
    close(guard);
    keep_heap_small();
    for (size_t i = 0; i < LENGTH(controllers); i++)
        execv(controllers[i], argv);
    die("cannot find libvirt_lxc");
}

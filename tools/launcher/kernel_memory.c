/*
 * Limits for one container on kernel memory that the memory cgroup does not count:
 *
 *   - capture rings: the BPF program that slicemgr/drivers/kernel/capture_rings.py loaded is attached to the sliver's
 *     cgroup; the kernel does not run it for calls of 32-bit programs, to which the filter by numbers denies rings;
 *   - socket buffers on cgroup v1, which has a separate limit for them (v2 counts them as memory);
 *   - incomplete fragments: low thresholds, which stay so because network settings are read-only, except for those
 *     that use no memory, or only memory that is counted.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/mount.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "launcher.h"

#define ATTACHED_MAX 64

/* Files and directories below /proc/sys/net/ that remain writable. */
static const char *const open_settings[] = {
    "ipv4/conf",
    "ipv4/fib_multipath_hash_policy",
    "ipv4/icmp_echo_ignore_all",
    "ipv4/icmp_echo_ignore_broadcasts",
    "ipv4/ip_default_ttl",
    "ipv4/ip_forward",
    "ipv4/ip_local_port_range",
    "ipv4/ip_local_reserved_ports",
    "ipv4/ip_nonlocal_bind",
    "ipv4/ip_unprivileged_port_start",
    "ipv4/ping_group_range",
    "ipv4/tcp_congestion_control",
    "ipv4/tcp_ecn",
    "ipv4/tcp_fastopen",
    "ipv4/tcp_fin_timeout",
    "ipv4/tcp_keepalive_intvl",
    "ipv4/tcp_keepalive_probes",
    "ipv4/tcp_keepalive_time",
    "ipv4/tcp_moderate_rcvbuf",
    "ipv4/tcp_mtu_probing",
    "ipv4/tcp_no_metrics_save",
    "ipv4/tcp_notsent_lowat",
    "ipv4/tcp_rmem",
    "ipv4/tcp_sack",
    "ipv4/tcp_slow_start_after_idle",
    "ipv4/tcp_syncookies",
    "ipv4/tcp_timestamps",
    "ipv4/tcp_tw_reuse",
    "ipv4/tcp_window_scaling",
    "ipv4/tcp_wmem",
    "ipv6/bindv6only",
    "ipv6/conf",
    "ipv6/ip_nonlocal_bind",
};

static const char *const closed_settings[] = {"ipv4", "ipv6"}; /* libvirt makes the others read-only */

/* Low before high: the kernel rejects a low threshold above the high one. */
static const char *const fragment_settings[][2] = {
    {"ipv4/ipfrag_low_thresh", "ipv4/ipfrag_high_thresh"},
    {"ipv6/ip6frag_low_thresh", "ipv6/ip6frag_high_thresh"},
    {"netfilter/nf_conntrack_frag6_low_thresh", "netfilter/nf_conntrack_frag6_high_thresh"},
};

static long bpf(int command, union bpf_attr *attributes)
{
    return syscall(SYS_bpf, command, attributes, sizeof *attributes);
}

void group_path(pid_t pid, const char *controller, char *path, size_t size)
{
    char file[64], line[PATH_MAX + 64];
    FILE *membership;

    *path = '\0';
    snprintf(file, sizeof file, "/proc/%d/cgroup", pid);
    if ((membership = fopen(file, "re")) == NULL)
        die("cannot open %s", file);
    while (fgets(line, sizeof line, membership)) {
        char *found = strchr(line, ':');

        if (found && strncmp(found + 1, controller, strlen(controller)) == 0 && found[1 + strlen(controller)] == ':')
            snprintf(path, size, "%.*s", (int)strcspn(found + strlen(controller) + 2, "\n"),
                     found + strlen(controller) + 2);
    }
    fclose(membership);
    errno = 0;
}

/*
 * The slivers' cgroup on a host with v1 controllers, where cgroup v2 is not mounted because of libvirt: it is reached
 * by a mount that no mount table lists. One directory serves all slivers, as the program distinguishes them by their
 * network namespaces.
 */
static int slivers_group(pid_t init)
{
    char text[32];
    int group, tree = open_cgroup2();

    if (mkdirat(tree, SLIVERS_GROUP, 0755) < 0 && errno != EEXIST)
        die("cannot make the cgroup " SLIVERS_GROUP);
    if ((group = openat(tree, SLIVERS_GROUP, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)) < 0)
        die("cannot open the cgroup " SLIVERS_GROUP);
    close(tree);
    snprintf(text, sizeof text, "%d", init);
    write_file(group, "cgroup.procs", text);
    return group;
}

static int is_attached(int group, int program)
{
    uint32_t numbers[ATTACHED_MAX];
    struct bpf_prog_info info = {0};
    union bpf_attr query = {0}, about = {0};

    about.info.bpf_fd = (uint32_t)program;
    about.info.info_len = sizeof info;
    about.info.info = (uint64_t)(uintptr_t)&info;
    query.query.target_fd = (uint32_t)group;
    query.query.attach_type = BPF_CGROUP_SETSOCKOPT;
    query.query.prog_cnt = LENGTH(numbers);
    query.query.prog_ids = (uint64_t)(uintptr_t)numbers;
    if (bpf(BPF_OBJ_GET_INFO_BY_FD, &about) < 0 || bpf(BPF_PROG_QUERY, &query) < 0)
        die("cannot ask which programs the container's cgroup has");
    for (uint32_t i = 0; i < query.query.prog_cnt; i++)
        if (numbers[i] == info.id)
            return 1;
    return 0;
}

static void bound_rings(const struct launch *launch, pid_t init)
{
    union bpf_attr get = {0}, attach = {0};
    int program, group = *launch->cgroup2 ? own_group(launch, init) : slivers_group(init);

    get.pathname = (uint64_t)(uintptr_t)launch->socket_program;
    if ((program = (int)bpf(BPF_OBJ_GET, &get)) < 0)
        die("cannot open the program %s", launch->socket_program);
    attach.target_fd = (uint32_t)group;
    attach.attach_bpf_fd = (uint32_t)program;
    attach.attach_type = BPF_CGROUP_SETSOCKOPT;
    attach.attach_flags = BPF_F_ALLOW_MULTI;
    if (!is_attached(group, program) && bpf(BPF_PROG_ATTACH, &attach) < 0 && !is_attached(group, program))
        die("cannot attach the program %s", launch->socket_program); /* unless another launcher attached it */
    close(program);
    close(group);
    errno = 0;
}

static void bound_socket_buffers(const struct launch *launch, pid_t init)
{
    char path[PATH_MAX], file[PATH_MAX + 96], text[32];

    group_path(init, "memory", path, sizeof path);
    if (strlen(path) < 2)
        die("the container has no memory cgroup of its own: '%s'", path);
    snprintf(file, sizeof file, CGROUP_V1 "/memory%s/memory.kmem.tcp.limit_in_bytes", path);
    snprintf(text, sizeof text, "%ld", launch->socket_memory);
    write_file(AT_FDCWD, file, text);
}

void bound_sockets(const struct launch *launch, pid_t init)
{
    if (*launch->socket_program)
        bound_rings(launch, init);
    if (launch->socket_memory)
        bound_socket_buffers(launch, init);
}

/* Make settings read-only by mounts, which the tenant cannot change without CAP_SYS_ADMIN. */
void close_settings(const struct launch *launch, int proc)
{
    const unsigned long flags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;
    int net = openat(proc, "sys/net", O_PATH | O_DIRECTORY | O_CLOEXEC);
    char path[128], low[32], high[32];

    if (net < 0)
        die("cannot open /proc/sys/net");
    snprintf(high, sizeof high, "%ld", launch->fragments);
    snprintf(low, sizeof low, "%ld", launch->fragments / 4 * 3);
    for (size_t i = 0; i < LENGTH(closed_settings); i++) {
        snprintf(path, sizeof path, "/proc/sys/net/%s", closed_settings[i]);
        if (access(path, F_OK) == 0 && mount(path, path, NULL, MS_BIND, NULL) < 0)
            die("cannot mount %s", path);
    }
    for (size_t i = 0; i < LENGTH(fragment_settings); i++)
        if (faccessat(net, fragment_settings[i][1], F_OK, 0) == 0) {
            write_file(net, fragment_settings[i][0], low);
            write_file(net, fragment_settings[i][1], high);
        }
    for (size_t i = 0; i < LENGTH(open_settings); i++) {
        snprintf(path, sizeof path, "/proc/sys/net/%s", open_settings[i]);
        if (mount(path, path, NULL, MS_BIND, NULL) < 0 && errno != ENOENT)
            die("cannot mount %s", path);
    }
    for (size_t i = 0; i < LENGTH(closed_settings); i++) {
        snprintf(path, sizeof path, "/proc/sys/net/%s", closed_settings[i]);
        if (mount(NULL, path, NULL, flags, NULL) < 0 && errno != ENOENT)
            die("cannot make %s read-only", path);
    }
    close(net);
    errno = 0;
}

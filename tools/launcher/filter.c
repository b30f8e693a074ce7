/* The seccomp filters. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <stdint.h>
#include <sys/prctl.h>

#include "launcher.h"

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
void filter_sockets(const struct launch *launch)
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

int install_filter(const struct launch *launch)
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

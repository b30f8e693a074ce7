/* The filter by names: calls that libvirt_lxc needs and the tenant does not, and those of the host's root. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/net.h>
#include <seccomp.h>
#include <stdint.h>

#include "launcher.h"

/* Calls that libvirt_lxc makes while it builds the container, and that no program in it needs afterwards. */
static const char *const setup_calls[] = {"sethostname", "setdomainname", "mount", "umount",
                                          "umount2",     "pivot_root",    "bpf"};

/* Calls that only the host's root, or an exploit, would use. */
static const char *const denied_calls[] = {
    "acct", "add_key", "clock_adjtime", "clock_adjtime64", "clock_settime", "clock_settime64", "create_module",
    "delete_module", "fanotify_init", "finit_module", "get_kernel_syms", "init_module", "io_uring_enter",
    "io_uring_register", "io_uring_setup", "ioperm", "iopl", "kcmp", "kexec_file_load", "kexec_load", "keyctl",
    "lookup_dcookie", "migrate_pages", "move_pages", "nfsservctl", "open_by_handle_at", "perf_event_open",
    "query_module", "quotactl", "quotactl_fd", "reboot", "request_key", "setns", "settimeofday", "stime", "swapoff",
    "swapon", "_sysctl", "sysfs", "syslog", "uselib", "userfaultfd", "ustat", "vm86", "vm86old"};

/* The newer mount calls fail with ENOSYS, so that programs use mount(2) instead, which libvirt_lxc may use. */
static const char *const absent_calls[] = {"open_tree", "move_mount", "fsopen", "fsconfig",
                                           "fsmount",   "fspick",     "mount_setattr"};

/* BTRFS_IOC_SNAP_CREATE and SUBVOL_CREATE, in both versions. */
static const uint32_t subvolume_requests[] = {0x50009401, 0x5000940e, 0x50009417, 0x50009418};

/*
 * BTRFS_IOC_SYNC, START_SYNC and WAIT_SYNC: each makes the whole pool commit and needs no privilege, and other slivers
 * wait for the commit. sync(2), syncfs(2) and fsync(2) remain allowed.
 */
static const uint32_t sync_requests[] = {0x00009408, 0x80089418, 0x40089416};

/* Skip calls that the architecture lacks. Fail for calls that libseccomp lacks, which would otherwise be allowed. */
static void add_rules(scmp_filter_ctx filter, uint32_t action, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int number = seccomp_syscall_resolve_name(names[i]);

        if (number == __NR_SCMP_ERROR) {
            errno = 0;
            die("this libseccomp does not know %s: it must be 2.5.2 or newer", names[i]);
        }
        if ((errno = -seccomp_rule_add(filter, action, number, 0)) != 0)
            die("cannot filter %s", names[i]);
    }
}

static void deny_requests(scmp_filter_ctx filter, const uint32_t *requests, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if ((errno = -seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(ioctl), 1,
                                       SCMP_A1(SCMP_CMP_MASKED_EQ, UINT32_MAX, requests[i]))) != 0)
            die("cannot make the seccomp filter");
}

/* The guard handles the subcalls that create sockets; the others work on sockets whose family was checked. */
static void add_socketcall(scmp_filter_ctx filter)
{
    static const scmp_datum_t subcalls[] = {SYS_SOCKET, SYS_SOCKETPAIR};

    for (size_t i = 0; i < LENGTH(subcalls); i++)
        if ((errno = -seccomp_rule_add(filter, SCMP_ACT_NOTIFY, SCMP_SYS(socketcall), 1,
                                       SCMP_A0(SCMP_CMP_MASKED_EQ, UINT32_MAX, subcalls[i]))) != 0)
            die("cannot filter socketcall");
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
    if (launch->compat_sockets && native == SCMP_ARCH_X86_64)
        add_socketcall(filter);
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

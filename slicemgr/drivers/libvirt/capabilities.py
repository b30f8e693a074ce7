"""Which privileges root keeps inside a container: everything that is not in KEPT is dropped.

The numbers are the kernel's (linux/capability.h). Kept privileges count only against the sliver's own user
namespace: its ids, its network, its files. Left out on purpose though sometimes asked for: sys_admin (mounts, and
half of the kernel), sys_module, sys_boot, mknod (the paper's four); sys_resource (limits of its own pids cgroup
aside, it lifts quotas), sys_ptrace (own processes need none), sys_nice and ipc_lock (the host's, not the sliver's),
dac_read_search (open_by_handle_at), syslog, sys_time, sys_rawio, bpf, perfmon, checkpoint_restore.
"""

from __future__ import annotations

KEPT: dict[str, tuple[int, str]] = {
    "chown": (0, "package managers and daemons give files to their users"),
    "dac_override": (1, "root works on files of every user of the sliver"),
    "fowner": (3, "chmod, utime and ACLs on files of other users: tar, dpkg, rsync"),
    "fsetid": (4, "set-group-id directories survive a chmod by root"),
    "kill": (5, "root ends processes of other users"),
    "setgid": (6, "sshd, sudo, su and every daemon change their group"),
    "setuid": (7, "sshd, sudo, su and every daemon change their user"),
    "setpcap": (8, "daemons drop privileges from their own bounding set"),
    "net_bind_service": (10, "servers on ports below 1024; sshd is one"),
    "net_admin": (
        12,
        "addresses, routes, tunnels, tc and netfilter of the sliver's own network: what testbeds are for",
    ),
    "net_raw": (13, "ping, traceroute, tcpdump and packet sockets on the sliver's own link"),
    "sys_chroot": (18, "sshd's privilege separation and build tools chroot"),
    "audit_write": (29, "sshd and login fail without it where PAM reports to the audit log"),
    "setfcap": (31, "rpm refuses to unpack a package whose files carry capabilities (ping)"),
}


def bounding_set() -> int:
    """What `CapBnd` in /proc/PID/status of a sliver's process must be."""
    return sum(1 << number for number, _ in KEPT.values())


def excess(bounding: int) -> int:
    """The privileges in `bounding` that should have been dropped, as a mask; 0 is right."""
    return bounding & ~bounding_set()

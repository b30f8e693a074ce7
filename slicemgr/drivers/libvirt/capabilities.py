"""The capabilities that root keeps inside a container. All capabilities that are not in KEPT are dropped.

The numbers are those of linux/capability.h. A kept capability applies only within the sliver's own user namespace: its
ids, network and files. These are dropped although users sometimes request them: sys_admin (mounts and much of the
kernel), sys_module, sys_boot and mknod (the four of the paper), sys_resource (overrides quotas and limits),
sys_ptrace (not needed for a user's own processes), sys_nice and ipc_lock (they affect the host), dac_read_search
(allows open_by_handle_at), syslog, sys_time, sys_rawio, bpf, perfmon and checkpoint_restore.
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
    """The required value of `CapBnd` in /proc/PID/status of a sliver's process, as a bit mask."""
    return sum(1 << number for number, _ in KEPT.values())


def excess(bounding: int) -> int:
    """The capabilities in `bounding` that should have been dropped, as a bit mask. 0 means none."""
    return bounding & ~bounding_set()

"""Settings of the virtlogd and libvirtd of a box."""

from __future__ import annotations

import uuid
from pathlib import Path

SOCKET = "/run/libvirt/libvirt-sock"
LOG_SOCKET = "/run/libvirt/virtlogd-sock"
LIBVIRTD = ["libvirtd", "-f", "/etc/libvirt/libvirtd.conf"]
VIRTLOGD = ["virtlogd", "-f", "/etc/libvirt/virtlogd.conf"]


def libvirtd_conf(name: str) -> str:
    """libvirtd.conf: only root of the box may connect; many parallel calls; no keepalive timeout on a busy host."""
    return f"""\
unix_sock_group = "root"
unix_sock_rw_perms = "0700"
unix_sock_ro_perms = "0700"
auth_unix_ro = "none"
auth_unix_rw = "none"
listen_tls = 0
listen_tcp = 0
max_clients = 500
max_queued_clients = 500
min_workers = 10
max_workers = 40
prio_workers = 10
max_client_requests = 40
keepalive_interval = -1
host_uuid = "{uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.nodebox")}"
log_level = 3
log_outputs = "3:stderr"
"""


VIRTLOGD_CONF = """\
log_level = 3
log_outputs = "3:stderr"
max_clients = 5000
admin_max_clients = 20
max_size = 1048576
max_backups = 1
"""

QEMU_CONF = """\
security_driver = "none"
"""

LXC_CONF = """\
security_driver = "none"
"""


def write(directory: Path, name: str) -> None:
    """Write the settings into the box's /etc/libvirt, which is `directory`; other files are kept."""
    for file, text in (
        ("libvirtd.conf", libvirtd_conf(name)),
        ("virtlogd.conf", VIRTLOGD_CONF),
        ("qemu.conf", QEMU_CONF),
        ("lxc.conf", LXC_CONF),
    ):
        if not (directory / file).exists():
            (directory / file).write_text(text)

"""The launch file: the properties of a sliver that the launcher needs before it executes libvirt_lxc.

It has one `key=value` per line, is readable only by root, and lies in the runtime directory. See
tools/launcher/launch_file.c.
"""

from __future__ import annotations

import contextlib
import grp
import os
from collections.abc import Mapping
from pathlib import Path

from slicemgr import names
from slicemgr.config import PACKAGE, Config
from slicemgr.drivers.guest.proc_view import ProcView
from slicemgr.drivers.kernel import capture_rings, cgroup, subtrees
from slicemgr.drivers.libvirt.container_xml import MASKED_DIRS, MASKED_FILES
from slicemgr.drivers.libvirt.host import Acceleration, Host
from slicemgr.drivers.libvirt.processes import LXC_DIR
from slicemgr.model import IDS_PER_SLIVER, Init, Sliver

INIT_DIR = PACKAGE / "images" / "init"
RUN_DIR = Path("/run/slicemgr")  # the launcher is compiled with this path
FRAGMENTS = 256 << 10  # bytes of incomplete fragmented packets, for each of a sliver's three protocols
_NOGROUP = 65534


def host(config: Config, acceleration: Acceleration = Acceleration.EMULATION) -> Host:
    """The properties of this node that domains depend on, such as the masked files that its kernel has."""
    return Host(
        root=RUN_DIR / "root",
        empty_file=RUN_DIR / "mask" / "empty",
        empty_dir=RUN_DIR / "mask" / "none",
        vmstat=RUN_DIR / "mask" / "vmstat" if Path("/proc/vmstat").exists() else None,
        launcher=config.libvirt.launcher,
        init_dir=INIT_DIR,
        gateway=config.network.gateway,
        masked_dirs=tuple(path for path in MASKED_DIRS if Path(path).is_dir()),
        masked_files=tuple(path for path in MASKED_FILES if Path(path).exists()),
        swap_limit=cgroup.has_swap_limit(),
        pool=config.node.pool,
        images=config.images_dir,
        machine_gid=machine_gid(config),
        acceleration=acceleration,
    )


def machine_gid(config: Config) -> int:
    """The group id of QEMU; nogroup if the group libvirt.machine_group does not exist, so that it is never root's."""
    try:
        return grp.getgrnam(config.libvirt.machine_group).gr_gid
    except KeyError:
        return _NOGROUP


def write(config: Config, sliver: Sliver, *, subvolumes: bool = True, quota_group: Path | None = None) -> None:
    """Write the sliver's launch file, and on cgroup v1 create its pids group.

    subvolumes: whether the tenant may create subvolumes; False where the disk limit would not cover them. quota_group:
    the directory of the kernel with the counts of the group that limits the sliver's disk, which the sliver may read.
    """
    name = names.domain(sliver.id)
    group = cgroup.pids_group_v1(name)
    if group is not None:
        group.mkdir(parents=True, exist_ok=True)
    if sliver.init is Init.SYSTEMD:
        subtrees.remove(name)  # of an earlier start: its groups may be frozen
    text = launch_text(
        {
            "root": str(names.root_dir(config.node.pool, sliver.id)),
            "hostname": sliver.hostname,
            "mac": names.mac(sliver.id),
            "uid": sliver.uid_first,
            "count": IDS_PER_SLIVER,
            "pids": sliver.limits.pids,
            "ptys": config.limits.ptys,
            "view": str(ProcView(config.node.run_dir).mount),
            "compat_sockets": int(sliver.arch == "i686"),
            "no_subvolumes": int(not subvolumes),
            "fragments": FRAGMENTS,
            **({"pids_group": str(group)} if group else {"cgroup2": str(cgroup.MOUNT)}),
            **({"quota_group": str(quota_group)} if quota_group else {}),
            **({"subtree": subtrees.name(name)} if sliver.init is Init.SYSTEMD else {}),
            **_sockets(config, sliver),
        }
    )
    path = names.launch_file(config.node.run_dir, sliver.id)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text)


def _sockets(config: Config, sliver: Sliver) -> dict[str, str | int]:
    """The launch file's limits on the kernel memory of sockets, as far as this node supports them."""
    values: dict[str, str | int] = {}
    program = capture_rings.program(config.node.run_dir)
    if program is not None:
        values["socket_program"] = str(program)
    if cgroup.has_socket_limit():
        values["socket_memory"] = cgroup.socket_memory(sliver.limits.memory)
    return values


def launch_text(values: Mapping[str, str | int]) -> str:
    """The text of a launch file."""
    return "".join(f"{key}={value}\n" for key, value in values.items())


def remove(config: Config, sliver: str) -> None:
    """Remove the launch file, the sliver's cgroups and what libvirt leaves behind. Missing or busy ones are skipped."""
    names.launch_file(config.node.run_dir, sliver).unlink(missing_ok=True)
    name = names.domain(sliver)
    group = cgroup.pids_group_v1(name)
    subtrees.remove(name)
    directories = [LXC_DIR / f"{name}.{one}" for one in ("dev", "devpts", "fuse")]
    for directory in [*directories, *([group] if group else [])]:
        with contextlib.suppress(OSError):
            directory.rmdir()
    with contextlib.suppress(OSError):
        (LXC_DIR / f"{name}.sock").unlink()

"""What the node is and can do, for placement, `slicectl node show` and the refusal of what cannot be served."""

from __future__ import annotations

import os
from pathlib import Path

from slicemgr import __version__
from slicemgr.config import Config
from slicemgr.drivers import cgroup, traffic
from slicemgr.drivers.btrfs import Pool
from slicemgr.drivers.hypervisor import Hypervisor
from slicemgr.errors import Code, SlicemgrError
from slicemgr.model import Kind

_MADE = (Kind.LXC,)


def gather(config: Config, pool: Pool, hypervisor: Hypervisor) -> dict[str, object]:
    """Facts by name; sizes in bytes. What cannot be found out is left out."""
    facts: dict[str, object] = {
        "slicemgr": __version__,
        "kernel": os.uname().release,
        "cpus": os.cpu_count() or 1,
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "memory_available": memory_available(Path("/proc/meminfo").read_text()),
        "cgroup": cgroup.version(),
        "io_weight": cgroup.has_io_weight(),
        "net_rate": not traffic.missing(),
        "net_rate_missing": list(traffic.missing()),
        "addresses": config.network.addresses,
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    }
    space = pool.space()
    facts["disk_total"], facts["disk_free"] = space.total, space.free
    facts["quota"] = pool.quota_mode().value
    kinds = {kind.value: False for kind in Kind}
    for kind in Kind:
        try:
            facts[f"libvirt_{kind}"] = hypervisor.version(kind)
            kinds[kind.value] = kind in _MADE
        except SlicemgrError as error:  # a libvirtd that is away will be back: what is asked for meanwhile can wait
            kinds[kind.value] = kind in _MADE and error.code is Code.UNAVAILABLE
    facts["kinds"] = kinds
    facts["kinds_reason"] = {kind.value: "this version makes lxc slivers only" for kind in Kind if kind not in _MADE}
    return facts


def memory_available(meminfo: str) -> int:
    """Bytes that could be used without swapping, by /proc/meminfo."""
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0

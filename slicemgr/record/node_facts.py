"""Facts of the node, for placement, `slicectl node show` and the refusal of unsupported requests."""

from __future__ import annotations

import functools
import ipaddress
import os
import socket
from contextlib import suppress
from pathlib import Path

from slicemgr import __version__
from slicemgr.config import Config
from slicemgr.drivers.kernel import cgroup, counters, subtrees
from slicemgr.drivers.libvirt.acceleration import Found
from slicemgr.drivers.libvirt.hypervisor import Hypervisor
from slicemgr.drivers.libvirt.machine_xml import FIRMWARE, MICROVM
from slicemgr.drivers.network import traffic
from slicemgr.drivers.storage import btrfs_space
from slicemgr.drivers.storage.btrfs import Pool
from slicemgr.errors import Code, SlicemgrError
from slicemgr.ipc import clock_offset
from slicemgr.model import Init, Machine, SliverType

_MOST_DENIED = 32  # networks in the facts, which are limited


def gather(config: Config, pool: Pool, hypervisor: Hypervisor, machines: Found | None) -> dict[str, object]:
    """Facts by name; sizes in bytes. Unknown facts are left out.

    machines: how virtual machines run (kvm or emulation), None while that is unknown.
    """
    memory = counters.memory()
    facts: dict[str, object] = {
        "slicemgr": __version__,
        "kernel": os.uname().release,
        "cpus": os.cpu_count() or 1,
        "memory": memory.total,
        "memory_available": memory.available,
        "cgroup": cgroup.version(),
        "io_weight": cgroup.has_io_weight(),
        "net_rate": not traffic.missing(),
        "net_rate_missing": list(traffic.missing()),
        "spares": True,  # agents of earlier versions cannot have slivers without a slice
        "machine": os.uname().machine,
        "addresses": config.network.addresses,
        "ports_first": config.network.ports_first,
        "ports_last": config.network.ports_last,
        "denied": list(config.network.denied[:_MOST_DENIED]),
        "start_wait": {  # seconds until a sliver must send an SSH banner
            SliverType.LXC.value: config.agent.ssh_wait.total_seconds(),
            SliverType.KVM.value: config.agent.boot_wait.total_seconds(),
        },
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        **_load(),
    }
    if config.joined and config.exchange.port:
        facts["image_port"] = config.exchange.port
    if config.joined and (forwarded := is_forwarded(config.node.address)) is not None:
        facts["forwarded"] = forwarded
    if config.joined and (ahead := clock_offset.read(config.clock_file)) is not None:
        facts["clock_ahead"] = ahead
    space = pool.space()
    facts["disk_total"], facts["disk_used"], facts["disk_free"] = space.total, space.used, space.free
    with suppress(OSError):
        metadata = btrfs_space.metadata(config.node.pool)
        facts["metadata_used"], facts["metadata_free"] = metadata.used, metadata.room
    facts["filesystem"], facts["quota"] = "btrfs", pool.quota_mode().value
    types = {sliver_type.value: True for sliver_type in SliverType}
    reasons: dict[str, str] = {}
    for sliver_type in SliverType:
        try:
            facts[f"libvirt_{sliver_type}"] = hypervisor.version(sliver_type)
        except SlicemgrError as error:  # libvirtd may be restarting: requests can wait for it
            types[sliver_type.value] = error.code is Code.UNAVAILABLE
            if error.code is Code.UNAVAILABLE:
                break  # one daemon has both drivers
    if machines is None:
        types[SliverType.KVM.value] = False
        reasons[SliverType.KVM.value] = "the agent is still finding out how it can run virtual machines; try again soon"
    elif machines.acceleration is None:
        types[SliverType.KVM.value] = False
        reasons[SliverType.KVM.value] = machines.reason
    facts["acceleration"] = (machines.acceleration if machines else None) or "none"
    facts["acceleration_reason"] = machines.reason if machines else reasons[SliverType.KVM.value]
    facts["uefi"] = FIRMWARE.exists()
    facts["kinds"], facts["kinds_reason"] = types, reasons
    thin = machines is not None and machines.acceleration is not None and hypervisor.has_machine(MICROVM)
    facts["machines"] = {Machine.STANDARD.value: True, Machine.THIN.value: thin}
    facts["machines_reason"] = "" if thin else f"its libvirt or QEMU has no machine {MICROVM}"
    facts["memory_max"] = machines is not None and machines.acceleration is not None and hypervisor.has_virtio_mem()
    facts["memory_max_reason"] = "" if facts["memory_max"] else "its libvirt or QEMU has no device virtio-mem"
    lacks = subtrees.missing()
    facts["inits"], facts["inits_reason"] = {Init.MINIMAL.value: True, Init.SYSTEMD.value: not lacks}, lacks
    return facts


def _load() -> dict[str, object]:
    """The load, which experiments check, and the processor model."""
    now = counters.machine()
    return {
        "cpu_model": _cpu_model(),
        "swap_total": now.swap_total,
        "swap_free": now.swap_total - now.swap,
        "zswap": counters.zswap(),
        "load": now.load,
        "pids": now.pids,
        "pids_max": min(int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("pid_max", "threads-max")),
    }


def is_forwarded(address: str) -> bool | None:
    """Whether the address is that of a router that forwards to this host, not one of the host's own; None: a name."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return None  # resolving it could take long, and say what is true at this host only
    with socket.socket(socket.AF_INET if found.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return True
    return False


@functools.cache
def _cpu_model() -> str:
    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    return next((value.strip() for name, _, value in lines if name.strip() == "model name"), os.uname().machine)

"""Check all requirements of the node and report the remedy for what is missing. The checks change nothing.

`ok` is True, False, or None if the node works with restrictions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial

from slicemgr.agent.checks import kernel, network, programs, storage, testbed
from slicemgr.agent.checks.result import Check
from slicemgr.config import Config
from slicemgr.drivers.guest.proc_view import ProcView
from slicemgr.drivers.libvirt.acceleration import Found
from slicemgr.drivers.libvirt.hypervisor import Hypervisor
from slicemgr.drivers.network.firewall import Firewall
from slicemgr.drivers.storage.btrfs import Pool
from slicemgr.ipc import clock_offset
from slicemgr.model import SliverType


def examine(
    config: Config,
    hypervisor: Hypervisor,
    pool: Pool,
    firewall: Firewall,
    machines: Found | None,
    *,
    in_agent: bool = True,
) -> list[Check]:
    """Every check. A check comes after those that it depends on. in_agent: whether `firewall` wrote the rules here."""
    checks: list[Callable[[], Check]] = [
        programs.root,
        lambda: programs.libvirt(hypervisor, SliverType.LXC),
        lambda: programs.libvirt(hypervisor, SliverType.KVM),
        lambda: programs.acceleration(machines),
        lambda: programs.launcher(config),
        lambda: programs.proc_view(ProcView(config.node.run_dir)),
        kernel.cgroups,
        kernel.memory_of_sockets,
        lambda: kernel.memory_guarantees(config),
        kernel.memory_reclaim,
        lambda: kernel.idle_memory(config),
        lambda: kernel.capture_rings(config),
        network.fragments,
        lambda: storage.pool(pool),
        lambda: storage.quota(pool),
        lambda: storage.space(pool),
        lambda: storage.metadata(pool),
        lambda: network.rules(firewall, in_agent=in_agent),
        network.forwarding,
        *(partial(programs.program, name, remedy) for name, remedy in programs.REMEDIES.items()),
        programs.appliance,
        lambda: programs.importer(config),
        network.neighbour_table,
        kernel.ptys,
        lambda: network.connection_table(config.network, firewall),
        network.rates,
        kernel.inotify,
        *([lambda: testbed.clock(clock_offset.read(config.clock_file))] if config.joined else []),
    ]
    return [check if check.ok is not True else replace(check, remedy="") for check in (one() for one in checks)]


def report(checks: list[Check]) -> dict[str, object]:
    """The result of a `doctor` operation."""
    return {"checks": [asdict(check) for check in checks]}

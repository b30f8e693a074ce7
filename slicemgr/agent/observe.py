"""Observe the state of the host: reads libvirt, the pool and the runtime directory, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from slicemgr import names
from slicemgr.agent.plan import DomainState, Observed
from slicemgr.config import Config
from slicemgr.drivers.guest import authorized_keys
from slicemgr.drivers.libvirt.hypervisor import DomainSeen, Hypervisor
from slicemgr.drivers.network import neighbours, traffic
from slicemgr.drivers.storage import atomic_file, btrfs_files
from slicemgr.model import LIVE_LIMITS, Limits

_NOTHING = Observed()


@dataclass(frozen=True, slots=True)
class Host:
    """All resources on the host that carry slicemgr's mark, by sliver id."""

    domains: Mapping[str, DomainSeen]
    roots: frozenset[str]
    directories: frozenset[str]
    launches: frozenset[str]
    settled: Mapping[str, int]  # sliver → pid of the domain that completed its plan
    disks: Mapping[str, int]  # sliver → disk limit as applied
    shaped: frozenset[str]
    keys: Mapping[str, tuple[str, ...]]  # sliver → the ssh keys that slicemgr gave it
    pool: Path
    marks: Path  # the directory of `settled_dir`

    def sliver(self, sliver: str) -> Observed:
        """The observed state of one sliver, for `plan`."""
        observed = Observed(
            root=sliver in self.roots,
            disk=self.disks.get(sliver),
            traces=sliver in self.directories or sliver in self.launches,
            shaped=sliver in self.shaped,
            keys=self.keys.get(sliver),
            **_contents(self.pool, sliver)._asdict(),
        )
        domain = self.domains.get(sliver)
        if domain is None:
            return observed
        settled = domain.pid == self.settled.get(sliver)
        return _with_domain(sliver, observed, domain, self.marks / _mark_name(sliver, domain.pid) if settled else None)

    def slivers(self) -> set[str]:
        """Every sliver that has any resource on the host."""
        return {*self.domains, *self.directories, *self.launches, *self.shaped}


def host(config: Config, hypervisor: Hypervisor) -> Host:
    """Observe all slivers. Raises Failed if libvirt does not respond."""
    directories = in_pool(config)
    limits = {sliver: _disk_limit(config, sliver) for sliver in directories}
    keys = {sliver: _keys(config, sliver) for sliver in directories}
    marks = _listing(settled_dir(config))  # before the domains: a domain that is newer has no mark here
    return Host(
        domains=hypervisor.domains(),
        roots=frozenset(one for one in directories if has_root(config, one)),
        directories=directories,
        launches=frozenset(filter(None, map(names.sliver_of_domain, _listing(config.node.run_dir / "launch")))),
        settled=dict(filter(None, map(_parse_mark, marks))),
        disks={sliver: limit for sliver, limit in limits.items() if limit is not None},
        shaped=traffic.shaped(),
        keys={sliver: lines for sliver, lines in keys.items() if lines is not None},
        pool=config.node.pool,
        marks=settled_dir(config),
    )


def one(config: Config, hypervisor: Hypervisor, sliver: str) -> Observed:
    """Observe one sliver only: the cost does not grow with the number of slivers."""
    pool = config.node.pool
    root = has_root(config, sliver)
    traces = root or names.sliver_dir(pool, sliver).exists() or names.launch_file(config.node.run_dir, sliver).exists()
    domain = hypervisor.domain(sliver)
    shaped = traffic.is_shaped(sliver)
    if domain is None and not (traces or shaped):
        return _NOTHING
    disk, keys, contents = _disk_limit(config, sliver), _keys(config, sliver), _contents(pool, sliver)
    observed = Observed(root=root, disk=disk, traces=traces, shaped=shaped, keys=keys, **contents._asdict())
    if domain is None:
        return observed
    found = mark(config, sliver, domain.pid)
    return _with_domain(sliver, observed, domain, found if found.exists() else None)


def has_root(config: Config, sliver: str) -> bool:
    """Whether the sliver has a root, of either kind."""
    return names.root_dir(config.node.pool, sliver).is_dir() or names.disk_file(config.node.pool, sliver).exists()


def _disk_limit(config: Config, sliver: str) -> int | None:
    try:
        return int(names.limit_file(config.node.pool, sliver).read_text())
    except (FileNotFoundError, ValueError):
        return None


def _keys(config: Config, sliver: str) -> tuple[str, ...] | None:
    note = authorized_keys.read_note(config.node.pool, sliver)
    return None if note is None else note.now


def _hostname(pool: Path, sliver: str) -> str | None:
    try:
        return names.hostname_file(pool, sliver).read_text()
    except FileNotFoundError:
        return None


def snapshots(pool: Path, sliver: str) -> frozenset[str]:
    """The ids of the sliver's existing snapshots."""
    return frozenset(filter(names.is_snapshot_id, _listing(names.snapshots_dir(pool, sliver))))


class _Contents(NamedTuple):
    """The content of a sliver's directory in addition to its root."""

    epoch: int
    snapshots: frozenset[str]
    replaced: bool
    hostname: str | None


def _contents(pool: Path, sliver: str) -> _Contents:
    root = names.root_dir(pool, sliver)
    epoch = btrfs_files.epoch(root) or btrfs_files.epoch(names.disk_file(pool, sliver))
    replaced = names.unfinished_root(pool, sliver).exists()
    return _Contents(epoch, snapshots(pool, sliver), replaced, _hostname(pool, sliver))


def _with_domain(sliver: str, observed: Observed, domain: DomainSeen, settled: Path | None) -> Observed:
    """settled: the mark of this domain, if there is one."""
    return replace(
        observed,
        domain=DomainState.PAUSED if domain.paused else DomainState.RUNNING,
        generation=domain.generation,
        settled=settled is not None,
        unguarded=not neighbours.is_guarded(sliver),
        limits=None if settled is None else _limits(settled),
    )


def _limits(settled: Path) -> tuple[float, ...] | None:
    """The limits in the mark; None in one of an earlier version, which is empty."""
    with suppress(FileNotFoundError, ValueError):
        return tuple(json.loads(settled.read_text()))
    return None


def applied_memory(config: Config, sliver: str, pid: int) -> int | None:
    """The memory limit that the domain with this pid has, in bytes; None while it starts, or if it is not known."""
    limits = _limits(mark(config, sliver, pid))
    return None if limits is None else int(limits[LIVE_LIMITS.index("memory")])


def note_settled(config: Config, sliver: str, pid: int, limits: Limits) -> None:
    """Record that the domain with this pid completed its plan, and the limits that are applied to it."""
    atomic_file.write(mark(config, sliver, pid), json.dumps(limits.live))


def settled_dir(config: Config) -> Path:
    """The directory with a file `DOMAIN.PID` for each domain that completed its plan; empty after a reboot."""
    return config.node.run_dir / "settled"


def mark(config: Config, sliver: str, pid: int) -> Path:
    """The file that records that the domain with this pid completed its plan."""
    return settled_dir(config) / _mark_name(sliver, pid)


def _mark_name(sliver: str, pid: int) -> str:
    return f"{names.domain(sliver)}.{pid}"


def _parse_mark(name: str) -> tuple[str, int] | None:
    domain, _, pid = name.rpartition(".")
    sliver = names.sliver_of_domain(domain)
    return (sliver, int(pid)) if sliver and pid.isdecimal() else None


def in_pool(config: Config) -> frozenset[str]:
    """The slivers that have a directory in the pool."""
    return frozenset(name for name in _listing(config.node.pool / "slivers") if names.is_sliver_id(name))


def _listing(directory: Path) -> list[str]:
    try:
        return [entry.name for entry in directory.iterdir()]
    except FileNotFoundError:
        return []

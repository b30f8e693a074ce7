"""One look at what the slivers use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from slicemgr import names
from slicemgr.config import Config
from slicemgr.drivers import cgroup
from slicemgr.drivers.btrfs import Pool, PoolFailed, QuotaMode
from slicemgr.drivers.hypervisor import DomainSeen
from slicemgr.model import Sliver
from slicemgr.store import work


def usage(
    config: Config,
    pool: Pool,
    domains: Mapping[str, DomainSeen],
    slivers: Iterable[Sliver],
    guests: Mapping[str, int],
) -> list[work.Usage]:
    """Bytes of memory and own disk of each sliver; None for memory of one that does not run.

    One tree search for all quota groups, one file read for each running sliver. guests: memory as used inside.
    """
    charged = pool.usage()
    whole = pool.quota_mode() is not QuotaMode.FULL
    return [
        work.Usage(
            one.id,
            cgroup.memory_usage(domains[one.id].pid) if one.id in domains else None,
            _disk(charged.get(names.qgroup(one.serial)) if whole else _own(config, pool, one), one, whole),
            guests.get(one.id),
        )
        for one in slivers
    ]


def _disk(own: int | None, sliver: Sliver, whole: bool) -> int | None:
    """With what a clone began with. whole: its snapshots are counted already."""
    if own is None:
        return None
    return own + (sliver.inherited if whole else sum(one.size for one in sliver.snapshots))


def _own(config: Config, pool: Pool, sliver: Sliver) -> int | None:
    try:
        return pool.own_usage(limited(config.node.pool, sliver.id))
    except PoolFailed:  # no root yet, or no longer
        return None


def limited(pool: Path, sliver: str) -> Path:
    """The subvolume that is limited: a container's root, a machine's directory. A restore gives it another root."""
    root = names.root_dir(pool, sliver)
    return root if root.exists() else names.sliver_dir(pool, sliver)

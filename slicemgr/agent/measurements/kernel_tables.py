"""Read the use and limits of the kernel tables that all slivers share, and one sliver's share. Changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

from slicemgr.config import Config
from slicemgr.drivers import command
from slicemgr.drivers.kernel import cgroup

_SECONDS = 20.0


def read(config: Config) -> dict[str, object]:
    """Entries in use and the limit; None if the kernel does not provide it. Raises CommandFailed."""
    return {
        "terminals": config.limits.ptys,
        "cgroup": cgroup.version(),
        "connections": {
            "used": _number("/proc/sys/net/netfilter/nf_conntrack_count"),
            "limit": _number("/proc/sys/net/netfilter/nf_conntrack_max"),
            "per_sliver": config.network.connections,
        },
        "neighbours": {
            "used": len(json.loads(command.run(["ip", "-j", "neigh", "show"], timeout=_SECONDS) or b"[]")),
            "limit": _number("/proc/sys/net/ipv4/neigh/default/gc_thresh3"),
        },
        "inotify": {"limit": _number("/proc/sys/fs/inotify/max_user_instances")},
    }


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None

"""The pools of addresses and ports that a node announces. Its facts are not trusted."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slicemgr.config import NetworkConfig
from slicemgr.errors import invalid

_LONGEST_PREFIX, _SHORTEST_PREFIX = 30, 8
_FIRST_PORT, _LAST_PORT = 1024, 65535


def announced(facts: Mapping[str, Any], default: NetworkConfig) -> NetworkConfig:
    """The node's pools; a pool that it does not announce is that of `default`. Refused(INVALID)."""
    changes: dict[str, Any] = {}
    if "addresses" in facts:
        changes["addresses"] = _addresses(facts["addresses"])
    for name in ("ports_first", "ports_last"):
        if name in facts:
            changes[name] = _port(name, facts[name])
    network = replace(default, **changes)
    if network.ports_first > network.ports_last:
        raise invalid("ports_last", f"the ports {network.ports_first} to {network.ports_last} are not a range")
    return network


def _addresses(value: object) -> str:
    try:
        network = ipaddress.IPv4Network(value) if isinstance(value, str) else None
    except ValueError:
        network = None
    if network is None or not network.is_private or not _SHORTEST_PREFIX <= network.prefixlen <= _LONGEST_PREFIX:
        raise invalid("addresses", f"{str(value)[:40]!r} is not a private network", "such as 10.77.0.0/16")
    return str(network)


def _port(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not _FIRST_PORT <= value <= _LAST_PORT:
        raise invalid(name, f"{str(value)[:40]!r} is not a port", f"{_FIRST_PORT} to {_LAST_PORT}")
    return value

"""The record of a sliver: its row as JSON, which the agent keeps in the sliver's directory, where no tenant can write.

With it a sliver whose row was lost, because the database was restored from an older backup, keeps its address and its
ports, and an admin can adopt it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from slicemgr import names
from slicemgr.errors import Refused, invalid
from slicemgr.model import Boot, BootFacts, Desired, Init, Limits, Machine, PortBlock, Sliver, SliverType

_VERSION = 1
_SAME = (  # fields of the same name and form
    *("id", "serial", "tag", "slice_name", "index", "image", "arch", "address", "uid_first", "siblings", "generation"),
    *("image_format", "image_size", "user_data", "project", "origin", "inherited", "epoch", "host_key"),
)
_NUMBERS = frozenset(
    {"serial", "index", "uid_first", "siblings", "generation", "image_size", "inherited", "epoch"},
)


def to_json(sliver: Sliver) -> dict[str, Any]:
    """The record of a sliver."""
    return {
        "version": _VERSION,
        **{name: getattr(sliver, name) for name in _SAME},
        "type": sliver.type.value,
        "ports": [sliver.ports.first, sliver.ports.count],
        "limits": asdict(sliver.limits),
        "ssh_keys": list(sliver.ssh_keys),
        "boot": sliver.boot.value,
        "boot_facts": sliver.boot_facts.to_json(),
        "machine": sliver.machine.value,
        "init": sliver.init.value,
    }


def from_json(raw: object) -> Sliver:
    """The sliver of a record; its desired state is `running`. Raises Refused if the record is damaged."""
    if not isinstance(raw, Mapping) or raw.get("version") != _VERSION:
        raise _damaged("it has another version")
    try:
        same = {name: _field(raw, name) for name in _SAME}
        first, count = raw["ports"]
        keys = tuple(raw["ssh_keys"])
        sliver = Sliver(
            **same,
            type=SliverType(raw["type"]),
            desired=Desired.RUNNING,
            ports=PortBlock(first, count),
            limits=Limits(**raw["limits"]),
            ssh_keys=keys,
            boot=Boot(raw["boot"]),
            boot_facts=BootFacts(**raw["boot_facts"]),
            machine=Machine(raw.get("machine", Machine.STANDARD)),  # records of earlier versions have none
            init=Init(raw.get("init", Init.MINIMAL)),
        )
        ipaddress.IPv4Address(sliver.address)
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(f"{type(error).__name__}: {error}") from error
    if not all(isinstance(one, str) for one in keys) or not all(isinstance(one, int) for one in (first, count)):
        raise _damaged("its keys or ports have the wrong type")
    if sliver.id != names.sliver_id(sliver.tag, sliver.index) or not names.is_sliver_id(sliver.id):
        raise _damaged("its id does not match")
    if not 1 <= first <= sliver.ports.last <= 65535:
        raise _damaged("its ports are out of range")
    return sliver


def _field(raw: Mapping[str, Any], name: str) -> Any:
    value, wanted = raw[name], int if name in _NUMBERS else str
    if type(value) is not wanted:
        raise TypeError(f"{name} is not {'a number' if wanted is int else 'text'}")
    return value


def _damaged(why: str) -> Refused:
    return invalid("record", f"the record of the sliver is damaged: {why}")

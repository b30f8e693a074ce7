"""The forms of the facts of nodes that the service reads. Pure.

The facts of a host that joined are not trusted: one fact in another form would make the pages of all nodes, and every
choice of a node, end with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Form = Callable[[Any], bool]


def _flag(value: Any) -> bool:
    return type(value) is bool


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _signed(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(_text(one) for one in value)


def _table(form: Form) -> Form:
    return lambda value: isinstance(value, dict) and all(form(one) for one in value.values())


_NUMBERS = (
    *("cpus", "memory", "memory_available", "swap_total", "swap_free", "disk_total", "disk_used", "disk_free"),
    *("metadata_used", "metadata_free", "load", "pids", "pids_max", "ports_first", "ports_last"),
)
_FLAGS = ("io_weight", "net_rate", "uefi", "forwarded", "spares", "zswap", "memory_max")
_TEXTS = (
    *("slicemgr", "kernel", "machine", "cpu_model", "cgroup", "quota", "filesystem", "firewall", "boot_id"),
    *("acceleration", "acceleration_reason", "inits_reason", "machines_reason", "memory_max_reason", "addresses"),
)
FORMS: Mapping[str, Form] = {
    **dict.fromkeys(_NUMBERS, _number),
    **dict.fromkeys(_FLAGS, _flag),
    **dict.fromkeys(_TEXTS, _text),
    "clock_ahead": _signed,
    "net_rate_missing": _texts,
    "kinds": _table(_flag),
    "kinds_reason": _table(_text),
    "inits": _table(_flag),
    "machines": _table(_flag),
    "start_wait": _table(_number),
}


def known(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts without those in another form; facts that this version does not read stay."""
    return {name: value for name, value in facts.items() if name not in FORMS or FORMS[name](value)}

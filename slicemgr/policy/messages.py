"""The messages between the centre of a testbed and its nodes: JSON with a version. Pure.

A report comes from a host that may be hostile: everything in it is checked here, and only what passes reaches the rows.
Unknown fields are ignored, so that a newer node can send more.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VERSION = 1
LARGEST_BEAT = 64 << 10  # bytes
BEAT, ACKNOWLEDGEMENT = "beat", "acknowledgement"
_INCARNATION = re.compile(r"[0-9a-f]{16}")
_PROGRAM = re.compile(r"[0-9A-Za-z.+-]{1,40}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_MOST_FACTS, _LONGEST_TEXT, _DEEPEST = 64, 200, 3
_LARGEST_NUMBER = 1 << 53  # beyond it, JSON readers differ
_OLDEST = 366 * 86400.0  # seconds
CAPACITIES: Mapping[str, int] = {"cpus": 4096, "memory": 1 << 46, "disk_total": 1 << 54}  # of one node, at most


class BadMessage(ValueError):
    """A message that no node or hub of this or an earlier version sends."""


@dataclass(frozen=True, slots=True)
class Beat:
    """incarnation: of the node's link, chosen at its start. sequence: increases in it. agent_age: seconds since the
    node's agent reported, None: never. facts None: as before."""

    incarnation: str
    sequence: int
    version: str
    address: str
    agent_age: float | None
    facts: Mapping[str, Any] | None


def beat(one: Beat) -> str:
    body = {
        "v": VERSION,
        "kind": BEAT,
        "incarnation": one.incarnation,
        "sequence": one.sequence,
        "version": one.version,
        "address": one.address,
        "agent_age": one.agent_age,
        "facts": one.facts,
    }
    return json.dumps(body)


def acknowledgement(incarnation: str, sequence: int) -> str:
    body = {"v": VERSION, "kind": ACKNOWLEDGEMENT, "incarnation": incarnation, "sequence": sequence}
    return json.dumps(body)


def parse_beat(body: bytes | str) -> Beat:
    """BadMessage for anything that is not a plausible beat."""
    raw = _parse(body, BEAT)
    return Beat(
        _matching(raw, "incarnation", _INCARNATION),
        _integer(raw, "sequence"),
        _matching(raw, "version", _PROGRAM),
        _address(raw.get("address")),
        _age(raw.get("agent_age")),
        None if raw.get("facts") is None else _facts(raw["facts"]),
    )


def parse_acknowledgement(body: bytes | str) -> tuple[str, int]:
    """The incarnation and the sequence number. BadMessage for another order."""
    raw = _parse(body, ACKNOWLEDGEMENT)
    return _matching(raw, "incarnation", _INCARNATION), _integer(raw, "sequence")


def _parse(body: bytes | str, kind: str) -> dict[str, Any]:
    if len(body) > LARGEST_BEAT:
        raise BadMessage(f"{len(body)} bytes are too many")
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadMessage("no JSON") from error
    if not isinstance(raw, dict) or raw.get("v") != VERSION or raw.get("kind") != kind:
        raise BadMessage(f"not a {kind} of version {VERSION}")
    return raw


def _matching(raw: Mapping[str, Any], name: str, pattern: re.Pattern[str]) -> str:
    value = raw.get(name)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise BadMessage(f"{name} is not valid")
    return value


def _integer(raw: Mapping[str, Any], name: str) -> int:
    value = raw.get(name)
    if type(value) is not int or not 0 <= value <= _LARGEST_NUMBER:
        raise BadMessage(f"{name} is not valid")
    return value


def _address(value: object) -> str:
    """An IP address or a host name; "": the node has none to show."""
    if value == "":
        return ""
    if isinstance(value, str):
        try:
            return str(ipaddress.ip_address(value))
        except ValueError:
            if _HOST.fullmatch(value):
                return value
    raise BadMessage("address is not valid")


def _age(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise BadMessage("agent_age is not valid")
    return min(float(value), _OLDEST)


def _facts(value: object) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > _MOST_FACTS:
        raise BadMessage("facts are not valid")
    found = {str(_plain(name, 0)): _plain(one, 1) for name, one in value.items()}
    for name, most in CAPACITIES.items():
        number = found.get(name)
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int | float) or number < 0:
            raise BadMessage(f"{name} is not valid")
        found[name] = min(number, most)
    return found


def _plain(value: object, depth: int) -> Any:
    """A JSON value of bounded size, without control characters. BadMessage."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        if not math.isfinite(value) or abs(value) > 1 << 60:
            raise BadMessage("a number is not valid")
        return value
    if isinstance(value, str):
        if len(value) > _LONGEST_TEXT or not value.isprintable():
            raise BadMessage("a text is not valid")
        return value
    if depth >= _DEEPEST or not isinstance(value, dict | list) or len(value) > _MOST_FACTS:
        raise BadMessage("facts are not valid")
    if isinstance(value, list):
        return [_plain(one, depth + 1) for one in value]
    return {str(_plain(name, _DEEPEST)): _plain(one, depth + 1) for name, one in value.items()}

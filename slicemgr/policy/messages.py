"""The messages between the centre of a testbed and its nodes: JSON with a version. Pure.

A report comes from a host that may be hostile: everything in it is checked here, and only what passes reaches the rows.
Unknown fields are ignored, so that a newer node can send more.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from slicemgr.model import Dial, DialPurpose
from slicemgr.policy import fact_forms, image_blocks
from slicemgr.policy.image_blocks import BASE, Peer, Shared
from slicemgr.policy.mirror import Change

VERSION = 1
LARGEST_BEAT = 64 << 10  # bytes
LARGEST_UPDATES = 1 << 20  # bytes of a report with updates
LARGEST_ROWS = 64 << 20  # bytes of the rows of a node, not compressed
_BEGIN = 32  # bytes of a message that have its version and kind
BEAT, ACKNOWLEDGEMENT = "beat", "acknowledgement"
UPDATES, APPLIED, ROWS, DIAL, PEERS = "updates", "applied", "rows", "dial", "peers"
TAKE_INVENTORY, INVENTORY = "take-inventory", "inventory"
_REVISION = re.compile(r"([0-9a-f]{64})?")
_COMPRESSION = 1  # of zlib; rows are mostly alike
_COMPRESSED = b"\x78"  # the first byte
_MOST_UPDATES = 1000
MOST_SLIVERS = 2000  # in an inventory
_INCARNATION = re.compile(r"[0-9a-f]{16}")
_SECRET = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[!-~]{0,200}")  # of a user or a sliver
_PROGRAM = re.compile(r"[0-9A-Za-z.+-]{1,40}")
_SHA256, _IDENTITY = re.compile(r"[0-9a-f]{64}"), re.compile(r"[a-z0-9-]{1,64}")
_FORMAT = re.compile(r"qcow2|raw|base")
_MOST_IMAGES, _MOST_PEERS = 8, 256
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_MOST_FACTS, _LONGEST_TEXT, _DEEPEST = 64, 200, 3
_MOST_DIGITS = 20
_LARGEST_NUMBER = 1 << 53  # beyond it, JSON readers differ
_OLDEST = 366 * 86400.0  # seconds
CAPACITIES: Mapping[str, int] = {"cpus": 4096, "memory": 1 << 46, "disk_total": 1 << 54}  # of one node, at most


class BadMessage(ValueError):
    """A message that no node or hub of this or an earlier version sends."""


@dataclass(frozen=True, slots=True)
class Beat:
    """incarnation: of the node's link, chosen at its start. sequence: increases in it. agent_age: seconds since the
    node's agent reported, None: never. facts None: as before. mirror: the incarnation of the node's database, 0: it has
    none. revision: of the rows in it, "": not known. received: the number of the last message about rows."""

    incarnation: str
    sequence: int
    version: str
    address: str
    agent_age: float | None
    facts: Mapping[str, Any] | None
    mirror: int = 0
    revision: str = ""
    received: int = 0


@dataclass(frozen=True, slots=True)
class Updates:
    """What the agent of a node saw and did, in order. updates: number, kind and content of each.

    after: the last number that the centre has acknowledged.
    """

    mirror: int
    after: int
    updates: tuple[tuple[int, str, Mapping[str, Any]], ...]


@dataclass(frozen=True, slots=True)
class Inventory:
    """The slivers that a node has, for the review after a restore of the centre: see `link.inventory`."""

    slivers: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """The centre has the updates of an incarnation of a mirror up to a number.

    again: node and centre do not agree about what was sent, because the database of one was restored: the mirror is to
    become a new incarnation and to report everything.
    """

    mirror: int
    sequence: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class Rows:
    """A change of the mirror from the revision `before` to `after`. number: names the message."""

    number: int
    before: str
    after: str
    change: Change


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
        "mirror": one.mirror,
        "revision": one.revision,
        "received": one.received,
    }
    return json.dumps(body)


def updates(one: Updates) -> str:
    body = {"v": VERSION, "kind": UPDATES, "mirror": one.mirror, "after": one.after, "updates": one.updates}
    return json.dumps(body)


def applied(one: Applied) -> str:
    body = {"v": VERSION, "kind": APPLIED, "mirror": one.mirror, "sequence": one.sequence, "again": one.again}
    return json.dumps(body)


def rows(one: Rows) -> bytes:
    """Compressed, because it may be all rows of a node."""
    change = one.change
    body = {
        "v": VERSION,
        "kind": ROWS,
        "number": one.number,
        "before": one.before,
        "after": one.after,
        "whole": change.whole,
        "upsert": change.upsert,
        "delete": change.delete,
    }
    return zlib.compress(json.dumps(body).encode(), _COMPRESSION)


def dial(one: Dial) -> str:
    body = {"v": VERSION, "kind": DIAL, "secret": one.secret, "purpose": one.purpose}
    return json.dumps({**body, "user": one.user, "sliver": one.sliver})


def take_inventory() -> str:
    """The order to report an inventory."""
    return json.dumps({"v": VERSION, "kind": TAKE_INVENTORY})


def inventory(one: Inventory) -> str:
    return json.dumps({"v": VERSION, "kind": INVENTORY, "slivers": one.slivers})


def acknowledgement(incarnation: str, sequence: int, now: float) -> str:
    """now: by the clock of the centre, in seconds since 1970."""
    body = {"v": VERSION, "kind": ACKNOWLEDGEMENT, "incarnation": incarnation, "sequence": sequence, "now": now}
    return json.dumps(body)


def peers(images: Sequence[Shared]) -> str:
    """The images that a node exchanges with others, each with the nodes that have it or fetch it."""
    content = [
        {
            "sha256": one.sha256,
            "format": one.format,
            "size": one.size,
            "nodes": [[peer.identity, peer.address, peer.port, peer.complete] for peer in one.peers],
            **({"image": one.image} if one.image else {}),
        }
        for one in images
    ]
    return json.dumps({"v": VERSION, "kind": PEERS, "images": content})


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
        _integer(raw, "mirror", 0),  # nodes of an earlier version have no mirror
        _matching(raw, "revision", _REVISION, ""),
        _integer(raw, "received", 0),
    )


def parse_updates(body: bytes | str) -> Updates:
    """BadMessage for anything that is not a report with updates. What they contain is for the hub to check."""
    raw = _parse(body, UPDATES, LARGEST_UPDATES)
    found = raw.get("updates")
    if not isinstance(found, list) or not 0 < len(found) <= _MOST_UPDATES:
        raise BadMessage("updates are not valid")
    parsed = tuple(_update(one) for one in found)
    if any(one[0] >= later[0] for one, later in pairwise(parsed)):
        raise BadMessage("updates are not in order")
    return Updates(_integer(raw, "mirror"), _integer(raw, "after"), parsed)


def parse_inventory(body: bytes | str) -> Inventory:
    """BadMessage for anything that is not an inventory. What it contains is for the hub to check."""
    found = _parse(body, INVENTORY, LARGEST_UPDATES).get("slivers")
    if not isinstance(found, list) or len(found) > MOST_SLIVERS or not all(isinstance(one, dict) for one in found):
        raise BadMessage("slivers are not valid")
    return Inventory(tuple(found))


def _update(value: object) -> tuple[int, str, Mapping[str, Any]]:
    match value:
        case [int() as number, str() as name, dict() as content] if (
            type(number) is int and 0 < number <= _LARGEST_NUMBER
        ):
            return number, name, content
    raise BadMessage("an update is not valid")


def parse_applied(body: bytes | str) -> Applied:
    """BadMessage for another order."""
    raw = _parse(body, APPLIED)
    return Applied(_integer(raw, "mirror"), _integer(raw, "sequence"), raw.get("again") is True)


def parse_rows(body: bytes) -> Rows:
    """BadMessage for another order. It is from the centre, which the node trusts."""
    try:
        text = zlib.decompressobj().decompress(body, LARGEST_ROWS)
    except zlib.error as error:
        raise BadMessage("not compressed") from error
    raw = _parse(text, ROWS, LARGEST_ROWS)
    try:
        delete = {table: [tuple(key) for key in keys] for table, keys in raw["delete"].items()}
        change = Change(dict(raw["upsert"]), delete, bool(raw["whole"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadMessage("rows are not valid") from error
    before, after = _matching(raw, "before", _REVISION), _matching(raw, "after", _REVISION)
    return Rows(_integer(raw, "number"), before, after, change)


def parse_dial(body: bytes | str) -> Dial:
    """BadMessage for another order, and for a purpose that this version does not know."""
    raw = _parse(body, DIAL)
    try:
        purpose = DialPurpose(str(raw.get("purpose")))
    except ValueError as error:
        raise BadMessage("purpose is not valid") from error
    user, sliver = (_matching(raw, name, _NAME, "") for name in ("user", "sliver"))
    return Dial(_matching(raw, "secret", _SECRET), purpose, user, sliver)


def parse_peers(body: bytes | str) -> list[Shared]:
    """BadMessage for another order. Addresses are those that nodes announced."""
    raw = _parse(body, PEERS)
    images = raw.get("images")
    if not isinstance(images, list) or len(images) > _MOST_IMAGES or not all(isinstance(one, dict) for one in images):
        raise BadMessage("images are not valid")
    return [_shared(one) for one in images]


def _shared(raw: Mapping[str, Any]) -> Shared:
    size, nodes = _integer(raw, "size"), raw.get("nodes")
    if not isinstance(nodes, list) or len(nodes) > _MOST_PEERS or image_blocks.count(size) > image_blocks.MOST:
        raise BadMessage("an image is not valid")
    format, image = _matching(raw, "format", _FORMAT), _matching(raw, "image", _SHA256) if "image" in raw else ""
    if (format == BASE) != bool(image):
        raise BadMessage("an image is not valid")
    return Shared(_matching(raw, "sha256", _SHA256), format, size, tuple(_peer(one) for one in nodes), image)


def _peer(value: object) -> Peer:
    match value:
        case [str() as identity, str() as address, int() as port, bool() as complete] if (
            _IDENTITY.fullmatch(identity) and type(port) is int and 1024 <= port <= 65535 and address
        ):
            return Peer(identity, _address(address), port, complete)
    raise BadMessage("a node is not valid")


def kind(body: bytes | str) -> str:
    """The kind of a message, "" if it has none; nothing of it is checked."""
    if body[:1] == _COMPRESSED:
        return ROWS
    try:
        raw = _json(body) if len(body) <= LARGEST_UPDATES else None
    except (ValueError, RecursionError):
        return ""
    return str(raw.get("kind", "")) if isinstance(raw, dict) else ""


def seems_a_beat(body: bytes | str) -> bool:
    """Whether a message begins as a beat does; it is not parsed."""
    begin = body[:_BEGIN] if isinstance(body, bytes) else body[:_BEGIN].encode()
    return f'"{BEAT}"'.encode() in begin


def parse_acknowledgement(body: bytes | str) -> tuple[str, int, float | None]:
    """The incarnation, the sequence number, and the time of the centre's clock, None from an earlier version.

    BadMessage for another order.
    """
    raw = _parse(body, ACKNOWLEDGEMENT)
    now = raw.get("now")
    if now is not None and (type(now) not in (int, float) or not 0 <= now <= _LARGEST_NUMBER):
        raise BadMessage("now is not valid")
    return _matching(raw, "incarnation", _INCARNATION), _integer(raw, "sequence"), now


def _json(body: bytes | str) -> Any:
    """A number too large for floating point is infinite: then its field is refused, as others that are not finite."""
    return json.loads(body, parse_int=_number)


def _number(literal: str) -> float:
    return int(literal) if len(literal) <= _MOST_DIGITS else math.inf


def _parse(body: bytes | str, kind: str, largest: int = LARGEST_BEAT) -> dict[str, Any]:
    if len(body) > largest:
        raise BadMessage(f"{len(body)} bytes are too many")
    try:
        raw = _json(body)
    except (ValueError, RecursionError) as error:
        raise BadMessage("no JSON") from error
    if not isinstance(raw, dict) or raw.get("v") != VERSION or raw.get("kind") != kind:
        raise BadMessage(f"not a {kind} of version {VERSION}")
    return raw


def _matching(raw: Mapping[str, Any], name: str, pattern: re.Pattern[str], default: object = None) -> str:
    value = raw.get(name, default)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise BadMessage(f"{name} is not valid")
    return value


def _integer(raw: Mapping[str, Any], name: str, default: object = None) -> int:
    value = raw.get(name, default)
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
    return fact_forms.known(found)


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

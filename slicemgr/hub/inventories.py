"""The hold after a restore of the centre: ask the nodes that joined what they run, and store how the rows differ.

A node is asked for its inventory only during a hold. Nothing on it changes meanwhile: it gets no rows. What it reports
becomes its report for the review, as that of an agent beside the database.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr import names, sliver_record
from slicemgr.errors import Refused
from slicemgr.hub import updates
from slicemgr.hub.dials import Publish
from slicemgr.model import Desired, Limits, Sliver
from slicemgr.policy import messages
from slicemgr.policy.messages import Inventory
from slicemgr.service.restores import review
from slicemgr.service.slices import specs, user_data
from slicemgr.store import Store, incarnation, pending, rows
from slicemgr.store import tables as t
from slicemgr.store.updates import HostSeen, UnclaimedSliver

log = logging.getLogger(__name__)

_LOOK = 2.0  # seconds between two looks whether there is a hold
_EVERY = 20.0  # seconds between two inventories of a node
_STATES = ("running", "paused", "stopped")
_FORMATS = ("qcow2", "raw")
_ORIGIN = re.compile(r"([a-z0-9-]{1,20}/[a-z0-9]{1,20})?")
_PROJECT = re.compile(r"[a-z0-9-]{1,64}")
_MOST_SNAPSHOTS, _MOST_KEYS, _LONGEST_KEY = 1000, 200, 16 << 10
_LARGEST_COUNT = 1 << 31
_NEW_NUMBERS = 1_000_000  # serial numbers that can have been used since the backup


class Inventories:
    """publish: sends an order to a node. clock: seconds."""

    def __init__(self, store: Store, publish: Publish, clock: Callable[[], float]) -> None:
        self._store, self._publish, self._clock = store, publish, clock
        self._looked_at = -_LOOK
        self._heard: set[str] = set()
        self._asked_at: dict[str, float] = {}

    def heard(self, identity: str) -> None:
        """The node is connected."""
        self._heard.add(identity)

    def forget(self, identity: str) -> None:
        self._heard.discard(identity)
        self._asked_at.pop(identity, None)

    def step(self) -> None:
        """During a hold, ask the nodes that were heard since the last step."""
        now = self._clock()
        if not self._heard or now - self._looked_at < _LOOK:
            return
        self._looked_at = now
        heard, self._heard = self._heard, set()
        with self._store.read() as c:
            if incarnation.held(c) is None:
                self._asked_at.clear()
                return
        for identity in sorted(heard):
            if now - self._asked_at.get(identity, -_EVERY) >= _EVERY:
                self._asked_at[identity] = now
                self._publish(identity, messages.take_inventory(), brief=True)


@dataclass(frozen=True, slots=True)
class _Has:
    """A sliver that a node has. columns: those that a review may bring up to date. record: None if it is not valid."""

    sliver: str
    state: str
    columns: Mapping[str, Any]
    snapshots: tuple[str, ...]
    record: Sliver | None

    @property
    def tag(self) -> str:
        return self.sliver.rpartition("-")[0]


@dataclass(frozen=True, slots=True)
class _Known:
    """What the rows have of the slices in an inventory. nodes: of slivers. snapshots: the slice of each. last: the
    highest serial number."""

    nodes: Mapping[str, str]
    slices: Collection[str]
    snapshots: Mapping[str, str]
    last: int


def compared(c: Connection, node: str, found: Inventory) -> HostSeen:
    """How a node differs from the rows; what is not valid in its inventory is dropped, with a line in the log."""
    has = {one.sliver: one for one in map(_has, found.slivers) if one is not None}
    if len(has) < len(found.slivers):
        log.warning("%d slivers in the inventory of node %s are dropped", len(found.slivers) - len(has), node)
    own = {row.sliver.id: row.sliver for row in pending.slivers(c, node)}
    known = _known(c, has.values())
    unclaimed: list[UnclaimedSliver] = []
    changed: dict[str, dict[str, Any]] = {}
    for id, one in has.items():
        snapshots = [each for each in one.snapshots if known.snapshots.get(each, one.tag) == one.tag]
        if id in own:
            if not own[id].spare and (columns := _newer(own[id], one, snapshots)):
                changed[id] = columns
        elif id in known.nodes:
            changed[f"{id} of node {known.nodes[id]}"] = {review.ALSO_ON: node}
        else:
            unclaimed.append(UnclaimedSliver(id, one.state, _record(one, known), tuple(snapshots)))
    lost = [id for id in sorted(own.keys() - has.keys()) if own[id].desired is not Desired.ABSENT]
    return HostSeen(node, tuple(unclaimed), tuple(lost), changed=changed)


def _known(c: Connection, has: Collection[_Has]) -> _Known:
    s, l, n = t.slivers.c, t.slices.c, t.snapshots.c
    tags = {one.tag for one in has}
    snapshots = {each for one in has for each in one.snapshots}
    return _Known(
        {row.id: row.node for row in c.execute(sa.select(s.id, s.node).where(s.slice.in_(tags)))},
        set(c.scalars(sa.select(l.id).where(l.id.in_(tags)))),
        {row.id: row.slice for row in c.execute(sa.select(n.id, n.slice).where(n.id.in_(snapshots)))},
        rows.last_number(c, t.slivers) or 0,
    )


def _newer(row: Sliver, has: _Has, snapshots: Sequence[str]) -> dict[str, Any]:
    """The columns of a row that differ from the node's. A disk limit never shrinks, and an end is not undone."""
    mine = {"generation": row.generation, "epoch": row.epoch, "desired": row.desired.value}
    found = {name: has.columns[name] for name, value in mine.items() if has.columns[name] != value}
    if row.desired is Desired.ABSENT:
        found.pop("desired", None)
    if "epoch" in found:
        found |= {name: has.columns[name] for name in ("origin", "inherited")}
    if has.columns["disk"] > row.limits.disk:
        found["disk"] = has.columns["disk"]
    if new := sorted(set(snapshots) - {one.id for one in row.snapshots}):
        found["snapshots"] = new
    return found


def _record(has: _Has, known: _Known) -> dict[str, Any] | None:
    """None if an admin must not adopt it: its slice has rows, and belongs to other nodes."""
    record = has.record
    if record is None or record.tag in known.slices or not 0 < record.serial <= known.last + _NEW_NUMBERS:
        return None
    return sliver_record.to_json(record)


def _has(raw: Mapping[str, Any]) -> _Has | None:
    """None for anything that is not a sliver."""
    try:
        if not names.is_sliver_id(raw["sliver"]) or raw["state"] not in _STATES:
            return None
        columns = {
            "desired": Desired(raw["desired"]).value,
            "generation": _number(raw["generation"], _LARGEST_COUNT),
            "epoch": _number(raw["epoch"], _LARGEST_COUNT),
            "origin": _text(raw["origin"], _ORIGIN),
            "inherited": _number(raw["inherited"], updates.MOST_BYTES),
            "disk": _number(raw["disk"], specs.MOST_BYTES),
        }
        if columns["desired"] == Desired.ABSENT or len(raw["snapshots"]) > _MOST_SNAPSHOTS:
            return None
        snapshots = tuple(sorted({one for one in raw["snapshots"] if names.is_snapshot_id(one)}))
        return _Has(raw["sliver"], raw["state"], columns, snapshots, _valid_record(raw["sliver"], raw.get("record")))
    except (KeyError, TypeError, ValueError):
        return None


def _valid_record(sliver: str, raw: object) -> Sliver | None:
    try:
        record = sliver_record.from_json(raw)
        if record.id != sliver:
            return None
        _check(record)
    except (Refused, TypeError, ValueError):
        return None
    return record


def _check(record: Sliver) -> None:
    """Of each field of a record whether a row may have it. Raises Refused, TypeError or ValueError."""
    specs.slice_name(record.slice_name)
    _text(record.project, _PROJECT)
    if record.user_data:
        user_data.check(record.user_data)
    for text, pattern in (
        (record.image, updates.SHA256),
        (record.arch, updates.ARCH),
        (record.host_key, updates.HOST_KEY),
        (record.origin, _ORIGIN),
    ):
        _text(text, pattern)
    if record.image_format not in _FORMATS or not 0 <= record.index < record.siblings <= 1000:
        raise ValueError
    for number in (record.uid_first, record.generation, record.epoch):
        _number(number, _LARGEST_COUNT)
    for number in (record.image_size, record.inherited):
        _number(number, updates.MOST_BYTES)
    if len(record.ssh_keys) > _MOST_KEYS:
        raise ValueError
    for key in record.ssh_keys:
        if len(key) > _LONGEST_KEY or not key.isprintable():
            raise ValueError
    updates.boot(record.boot_facts.to_json())
    for field in fields(Limits):
        _limit(getattr(record.limits, field.name), optional=field.default is None)


def _limit(value: object, *, optional: bool) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= updates.MOST_BYTES:
        raise ValueError


def _number(value: object, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError
    return value


def _text(value: object, pattern: re.Pattern[str]) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError
    return value

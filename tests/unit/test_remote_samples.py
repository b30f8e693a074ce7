"""Samples of other hosts: what of their answers is used, and the series of a slice on several nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bare_service import ADMIN
from centre_and_node import LOCAL, NODE, World
from test_samples import part, whole

from slicemgr.agent import questions
from slicemgr.policy import node_answers
from slicemgr.policy.node_answers import BadAnswer
from slicemgr.service.views import remote_samples, samples
from slicemgr.service.views.remote_samples import Asked, Found
from slicemgr.service.views.samples import TimeRange
from slicemgr.store import samples as rows
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow
from slicemgr.web import remote_samples as asking
from slicemgr.web.remote_samples import RemoteSamples

SINCE, UNTIL = 999_990, 1_003_590
SPAN = TimeRange(SINCE, UNTIL, 0)


class Sampled:
    """A slice with a sliver on each of two hosts, measured every 30 seconds on each, at other times."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.service.create("exp", count=2)
        s = t.slivers
        with world.centre.write() as c:
            c.execute(s.update().where(s.c.idx == 1).values(node=NODE))
            self.slice = str(c.scalar(t.slices.select().with_only_columns(t.slices.c.id)))
            self.here, self.far = c.scalars(s.select().with_only_columns(s.c.serial).order_by(s.c.idx))
        world.settle()
        self.measure(world.centre, "node1", self.here, 0, cpu=15.0)
        self.measure(world.node, LOCAL, self.far, 3, cpu=60.0)

    def measure(self, store: Any, node: str, serial: int, late: int, cpu: float) -> None:
        with store.write() as c:
            for at in range(SINCE + 30 + late, SINCE + 301, 30):
                sample = {**whole(at), "node": node}, [{**part(at, serial, cpu=cpu, charged=1), "node": node}]
                rows.write(c, sample[0], sample[1], {serial: "default"})

    def asked(self, *, total: bool = False) -> list[Asked]:
        with self.world.centre.read() as c:
            return remote_samples.of_slice(c, self.slice, SPAN.span, total=total)

    def answer(self, asked: Asked) -> bytes:
        """As the agent of the node gives it."""
        with self.world.node.read() as c:
            tables = questions.answer(c, LOCAL, json.loads(json.dumps(asked.question)))
        return json.dumps({"tables": tables}).encode()

    def series(self, found: dict[str, Found | None], *, total: bool = False) -> dict[str, Any]:
        with self.world.centre.read() as c:
            return samples.of_slice(c, self.world.service.config, self.slice, SPAN, ("cpu",), total=total, others=found)


@pytest.fixture
def sampled(tmp_path: Path) -> Iterator[Sampled]:
    with World(tmp_path) as world:
        yield Sampled(world)


def test_a_slice_on_two_hosts(sampled: Sampled) -> None:
    """The samples have common times, and their sum is that of both."""
    [asked] = sampled.asked()
    assert asked.node == NODE and asked.slivers == frozenset({sampled.far})
    found = RemoteSamples(lambda node, question: sampled.answer(asked)).ask([asked])
    answer = sampled.series(dict(found))
    assert answer["at"] == list(range(SINCE + 30, SINCE + 301, 30)) and answer["missing"] == []
    here, far = answer["slivers"]
    assert here["series"]["cpu"] == [0.5] * 10 and far["series"]["cpu"] == [None] + [2.0] * 9
    assert far["totals"]["cpu_seconds"] == 540.0
    [asked] = sampled.asked(total=True)
    found = RemoteSamples(lambda node, question: sampled.answer(asked)).ask([asked])
    answer = sampled.series(dict(found), total=True)
    assert answer["slivers"][0]["series"]["cpu"] == [0.5] + [2.5] * 9
    assert answer["slivers"][0]["totals"]["cpu_seconds"] == 690.0
    assert sampled.series({NODE: None})["missing"] == [NODE]


def test_the_last_samples_are_kept_for_a_moment(sampled: Sampled) -> None:
    count = 0

    def ask(node: str, question: bytes) -> bytes:
        nonlocal count
        count += 1
        return sampled.answer(asked)

    with sampled.world.centre.read() as c:
        [asked] = remote_samples.newest(c, None, SINCE, UNTIL)
        assert remote_samples.newest(c, ["other"], SINCE, UNTIL) == []
    remote = RemoteSamples(ask)
    for _ in range(3):
        found = remote.ask([asked])[NODE]
        assert found is not None and [row.cpu for row in found.slivers] == [60.0] and len(found.node) == 1
    assert count == 1
    with sampled.world.centre.read() as c:
        config = sampled.world.service.config
        moment = utcnow().fromtimestamp(SINCE + 305, utcnow().tzinfo)
        top = samples.top(c, config, ADMIN, moment, others={NODE: found})
    assert [(one["node"], one["cpu"]) for one in top["slivers"]] == [("node1", 0.5), (NODE, 2.0)]
    assert [one["node"] for one in top["nodes"]] == ["node1", NODE]


GOOD: dict[str, Any] = {
    "columns": ["at", "sliver", "seconds", "cpu", "charged"],
    "rows": [[SINCE + 1, 7, 10, 1.5, None]],
}


def _with(column: str, value: object) -> dict[str, Any]:
    place = GOOD["columns"].index(column)
    row = [*GOOD["rows"][0]]
    row[place] = value
    return {**GOOD, "rows": [row]}


def read(table: object, slivers: frozenset[int] = frozenset({7})) -> Found:
    question = {"kind": "slivers", "since": SINCE, "until": UNTIL}
    return remote_samples.checked({"slivers": table}, Asked(NODE, question, slivers))


@pytest.mark.parametrize(
    "table",
    [
        None,
        [],
        {"columns": []},
        {**GOOD, "rows": [[1]]},
        {**GOOD, "rows": [{}]},
        {**GOOD, "columns": ["at"] * 101},
        _with("at", SINCE),
        _with("at", UNTIL + 1),
        _with("at", "soon"),
        _with("at", True),
        _with("sliver", 8),
        _with("sliver", None),
        _with("sliver", []),
        _with("cpu", -1),
        _with("cpu", float("nan")),
        _with("cpu", float("inf")),
        _with("cpu", 10**400),
        _with("cpu", "<script>"),
        _with("cpu", None),
        _with("cpu", True),
        _with("charged", 1.5),
        _with("charged", 1 << 60),
    ],
)
def test_what_no_node_answers(table: object) -> None:
    """About another node's slivers, of another time, or no possible number."""
    [row] = read({**GOOD, "columns": [*GOOD["columns"], "later"], "rows": [[*GOOD["rows"][0], "x"]]}).slivers
    assert (row.cpu, row.charged, row.disk, row.net_in) == (1.5, None, None, 0)
    with pytest.raises(BadAnswer):
        read(table)


def test_an_answer_has_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for body in (b"", b"[]", b"{}", b'{"tables": []}', b"[" * 100_000, b"\xff"):
        with pytest.raises(BadAnswer):
            node_answers.tables(body)
    many = {**GOOD, "rows": GOOD["rows"] * 3}
    assert len(read(many).slivers) == 3
    monkeypatch.setattr(node_answers, "MOST_ROWS", 2)
    monkeypatch.setattr(node_answers, "LARGEST", 20)
    with pytest.raises(BadAnswer):
        read(many)
    with pytest.raises(BadAnswer):
        node_answers.tables(b'{"tables": {}}' + b" " * 10)


def test_a_node_that_answers_wrongly_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not asked again at once, so that it does not hold the threads that ask."""
    asked = Asked(NODE, {"kind": "slivers", "since": SINCE, "until": UNTIL}, frozenset({8}))
    body, count = json.dumps({"tables": {"slivers": GOOD}}).encode(), 0

    def ask(node: str, question: bytes) -> bytes:
        nonlocal count
        count += 1
        return body

    remote = RemoteSamples(ask)
    assert [remote.ask([asked]) for _ in range(3)] == [{NODE: None}] * 3 and count == 1
    monkeypatch.setattr(asking, "_PAUSE", 0.0)
    assert remote.ask([asked]) == {NODE: None} and count == 2

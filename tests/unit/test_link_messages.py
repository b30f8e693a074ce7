"""The messages of nodes: what a hostile one may put into them, and the hub's rows after reports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import ADMIN, FACTS, Service
from hypothesis import given
from hypothesis import strategies as st

from slicemgr.errors import Refused
from slicemgr.hub import reports
from slicemgr.hub.reports import Report
from slicemgr.policy import messages
from slicemgr.policy.messages import CAPACITIES, BadMessage, Beat
from slicemgr.service.nodes import membership
from slicemgr.service.views import nodes as node_views
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

SEEN = {"cpus": 8, "kinds": {"lxc": True}, "kernel": "6.1"}
BEAT = Beat("0123456789abcdef", 1, "1.2.3", "192.0.2.7", 3.0, SEEN, mirror=2)
HUGE = 10**400  # no number of floating point


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(messages.beat(BEAT)), **fields})


def test_what_is_sent_arrives() -> None:
    assert messages.parse_beat(messages.beat(BEAT)) == BEAT
    assert messages.parse_beat(changed(later="field")) == BEAT, "of a newer node"
    sent = messages.acknowledgement(BEAT.incarnation, 7, 1700000000.5)
    assert messages.parse_acknowledgement(sent) == (BEAT.incarnation, 7, 1700000000.5)


@pytest.mark.parametrize(
    "fields",
    [
        {"v": 2},
        {"kind": "acknowledgement"},
        {"incarnation": "../../etc"},
        {"sequence": -1},
        {"sequence": True},
        {"sequence": 1e300},
        {"version": "<script>"},
        {"address": "192.0.2.7; reboot"},
        {"address": "a" * 300},
        {"address": None},
        {"agent_age": -1},
        {"agent_age": float("nan")},
        {"agent_age": float("inf")},
        {"facts": []},
        {"facts": {"x": "\x1b[2J"}},
        {"facts": {"x" * 300: 1}},
        {"facts": {"x": "y" * 300}},
        {"facts": {"x": [[[["deep"]]]]}},
        {"facts": {str(one): one for one in range(100)}},
        {"facts": {"cpus": "many"}},
        {"facts": {"memory": -1}},
        {"facts": {"x": 1 << 70}},
        *[{name: huge} for name in ("agent_age", "sequence", "v") for huge in (HUGE, -HUGE)],
        *[{"facts": {name: huge}} for name in ("x", "memory", "clock_ahead") for huge in (HUGE, float("-inf"))],
    ],
)
def test_what_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadMessage):
        messages.parse_beat(changed(**fields))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 60000, b" " * 70000])
def test_what_is_no_message(body: bytes) -> None:
    with pytest.raises(BadMessage):
        messages.parse_beat(body)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists))
def test_anything_is_parsed_or_refused(value: object) -> None:
    for name in ("facts", "address", "agent_age", "sequence", "v"):
        try:
            messages.parse_beat(changed(**{name: value}))
        except BadMessage:
            continue


HARMFUL = {
    "kinds": [],
    "kinds_reason": {"lxc": 5},
    "inits": "systemd",
    "net_rate_missing": [1],
    "metadata_used": "much",
    "load": "x",
    "start_wait": {"lxc": "long"},
    "ports_first": [1],
}


def test_facts_in_another_form_are_dropped(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise no user of the testbed can create a slice or read its pages."""

    def trouble(facts: dict[str, Any]) -> list[str]:
        found = []
        with service.store.write() as c:
            row = {"facts": facts, "state": "active", "address": "192.0.2.9", "agent_seen_at": utcnow()}
            c.execute(t.nodes.update().where(t.nodes.c.name == "one").values(row))
        browser = service.app.test_client()
        browser.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {service.token()}"
        wanted = service.request(dry_run=True)
        for path in ("/metrics", "/api/v1/nodes", "/api/v1/slices"):
            try:
                answer = browser.post(path, json=wanted) if path.endswith("slices") else browser.get(path)
            except Exception as error:  # noqa: BLE001
                found.append(f"{path}: {error!r}")
                continue
            if answer.status_code >= 500 and answer.status_code != 503:
                found.append(f"{path}: {answer.status_code}")
        return found

    member(service, "one")
    found = messages.parse_beat(changed(facts={**SEEN, **HARMFUL})).facts
    assert found == {"cpus": 8, "kernel": "6.1"}
    assert not trouble(dict(found))
    assert trouble({**SEEN, **HARMFUL}), "the control"


def test_impossible_capacities_are_cut() -> None:
    found = messages.parse_beat(changed(facts=dict.fromkeys(CAPACITIES, 1 << 59)))
    assert found.facts == dict(CAPACITIES)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path) as made:
        yield made


def member(service: Service, name: str, expires: timedelta = timedelta(days=90)) -> str:
    """Insert a node with a certificate. Returns its identity."""
    with service.store.write() as c:
        identity = f"node-{name}"
        c.execute(t.nodes.insert().values(name=name, identity=identity, state="joined", address="", facts={}))
        row = {"serial": name, "identity": identity, "certificate": "", "issued_at": utcnow()}
        c.execute(t.certificates.insert().values(**row, expires_at=utcnow() + expires))
    return identity


def node(service: Service, name: str) -> dict[str, Any]:
    with service.store.read() as c:
        return node_views.nodes(c, service.config.network, name)[0]


def beat(sequence: int, **fields: Any) -> Beat:
    return messages.parse_beat(changed(sequence=sequence, **fields))


def test_a_report_changes_the_row_of_its_sender(service: Service) -> None:
    one, _ = member(service, "one"), member(service, "two")
    before = node(service, "two"), node(service, "node1")
    reports.apply(service.store, [Report(one, beat(1))])
    found = node(service, "one")
    assert (found["state"], found["address"], found["version"]) == ("active", "192.0.2.7", "1.2.3")
    assert found["facts"]["cpus"] == 8 and found["agent_seen_at"] and found["beat_at"]
    assert (node(service, "two"), node(service, "node1")) == before


def test_what_was_applied_has_no_effect_again(service: Service) -> None:
    one = member(service, "one")
    reports.apply(service.store, [Report(one, beat(5, address="192.0.2.5"))])
    for late in (beat(5, address="192.0.2.1"), beat(4, address="192.0.2.1")):
        reports.apply(service.store, [Report(one, late)])
        assert node(service, "one")["address"] == "192.0.2.5"
    reports.apply(service.store, [Report(one, beat(6, address="192.0.2.6"))])
    assert node(service, "one")["address"] == "192.0.2.6"
    reports.apply(service.store, [Report(one, beat(1, incarnation="f" * 16, address="192.0.2.7"))])
    assert node(service, "one")["address"] == "192.0.2.7", "its link has started again"


def test_of_several_beats_at_once_the_newest_and_the_last_facts_count(service: Service) -> None:
    one, two = member(service, "one"), member(service, "two")
    batch = [
        Report(one, beat(1, facts={**FACTS, "cpus": 1})),
        Report(two, beat(1)),
        Report(one, beat(3, address="192.0.2.3", facts={**FACTS, "cpus": 3})),
        Report(one, beat(4, address="", facts=None)),
        Report(one, beat(2, address="192.0.2.2", facts={**FACTS, "cpus": 2})),
    ]
    reports.apply(service.store, batch)
    found = node(service, "one")
    assert (found["state"], found["address"], found["facts"]["cpus"]) == ("active", "192.0.2.3", 3)
    assert node(service, "two")["beat_at"] and service.count("links") == 2
    with service.store.read() as c:
        assert c.scalar(sa.select(t.links.c.sequence).where(t.links.c.identity == one)) == 4
        assert c.scalar(sa.select(sa.func.count()).where(t.events.c.action == "node active")) == 2


def test_the_number_of_statements_does_not_grow_with_the_number_of_nodes(service: Service) -> None:
    def statements(count: int, sequence: int) -> int:
        found = 0

        def note(*_: Any) -> None:
            nonlocal found
            found += 1

        sa.event.listen(service.store.engine, "before_cursor_execute", note)
        reports.apply(service.store, [Report(one, beat(sequence)) for one in members[:count]])
        sa.event.remove(service.store.engine, "before_cursor_execute", note)
        return found

    members = [member(service, f"n{number}") for number in range(20)]
    statements(20, 1)
    assert statements(2, 2) == statements(20, 3)


def test_who_is_no_member_changes_nothing(service: Service) -> None:
    one = member(service, "one")
    with service.store.write() as c:
        c.execute(t.nodes.delete().where(t.nodes.c.name == "one"))
    before = service.dump()
    reports.apply(service.store, [Report(one, beat(1)), Report("node-unknown", beat(1)), Report("hub", beat(1))])
    assert service.dump() == before


def test_members(service: Service) -> None:
    one, revoked, _ = member(service, "one"), member(service, "two"), member(service, "old", timedelta(0))
    assert reports.members(service.store) == {one, revoked}
    with service.store.write() as c:
        membership.revoke(c, revoked, utcnow())
    assert reports.members(service.store) == {one}


def test_a_node_without_a_mirror_gets_no_slivers(service: Service) -> None:
    one = member(service, "a-first")
    reports.apply(service.store, [Report(one, beat(1, mirror=0))])
    service.create()
    with service.store.read() as c:
        assert set(c.scalars(sa.select(t.slivers.c.node))) == {"node1"}
    with pytest.raises(Refused, match="a-first"):
        service.create("two", node="a-first")
    membership.remove(service.store, "a-first", ADMIN)
    reports.apply(service.store, [Report(member(service, "a-second"), beat(1, facts=FACTS))])
    service.create("two", node="a-second")  # the control: with a mirror it gets slivers
    with service.store.read() as c:
        assert set(c.scalars(sa.select(t.slivers.c.node))) == {"node1", "a-second"}

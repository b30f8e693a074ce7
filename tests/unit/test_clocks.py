"""Clocks of nodes that are wrong: how far is measured, shown and corrected."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from centre_and_node import NODE, World, move

from slicemgr.agent.checks import testbed
from slicemgr.certificates import requests
from slicemgr.certificates.authority import Authority
from slicemgr.hub.updates import accepted
from slicemgr.ipc import clock_offset
from slicemgr.link import centre
from slicemgr.link import exchange as link
from slicemgr.policy import messages
from slicemgr.policy.messages import BadMessage
from slicemgr.store import pending
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

HOUR = 3600.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as made:
        yield made


@pytest.mark.parametrize("wrong", [HOUR, -HOUR, 0.0])
def test_the_link_measures_the_clock_of_its_host(world: World, monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    monkeypatch.setattr(link, "utcnow", lambda: utcnow() + timedelta(seconds=wrong))
    world.settle()
    assert clock_offset.read(world.config.clock_file) == pytest.approx(wrong, abs=1)


def test_a_late_answer_says_nothing_about_the_clock(world: World) -> None:
    world.to_hub += list(world.link.due())
    world.deliver_to_hub()
    world.now += 60
    world.deliver_to_node()
    assert clock_offset.read(world.config.clock_file) is None
    assert clock_offset.between(100.0, 3700.0, 4.0) == -3598.0
    assert [clock_offset.rounded(one) for one in (0.4, -1.9, 3600.4)] == [0.0, 0.0, 3600.0]


def test_what_was_measured_is_valid_for_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run" / "clock"
    assert clock_offset.read(file) is None
    clock_offset.write(file, -HOUR)
    assert clock_offset.read(file) == -HOUR
    _, _, content = file.read_text().partition("\n")
    file.write_text(f"1.0\n{content}")
    assert clock_offset.read(file) is None
    file.write_text("much\nlater")
    assert clock_offset.read(file) is None


@pytest.mark.parametrize("now", [True, -1, "late", float("nan"), 1e300, [1]])
def test_what_is_no_time_of_the_centre(now: Any) -> None:
    answer = messages.acknowledgement("0" * 16, 1, now)
    with pytest.raises(BadMessage):
        messages.parse_acknowledgement(answer)


def test_the_centre_of_an_earlier_version_sends_no_time(world: World) -> None:
    earlier = b'{"v": 1, "kind": "acknowledgement", "incarnation": "%s", "sequence": 1}'
    assert messages.parse_acknowledgement(earlier % (b"0" * 16)) == ("0" * 16, 1, None)


@pytest.mark.parametrize("wrong", [HOUR, -HOUR])
def test_times_that_a_node_reports_are_corrected(world: World, wrong: float) -> None:
    world.service.create("exp")
    move(world.centre, "exp")
    world.settle()
    operation = world.scalar(world.centre, sa.select(t.operations.c.id))
    by_its_clock = (utcnow() + timedelta(seconds=wrong) - timedelta(minutes=5)).isoformat()
    body = {"operation": operation, "at": by_its_clock}

    def reported() -> float:
        with world.centre.read() as c:
            (update,) = accepted(c, NODE, [("operation-started", body)])
        assert isinstance(update, pending.OperationStarted) and update.at is not None
        return (utcnow() - update.at).total_seconds()

    assert reported() == pytest.approx(max(0, 300 - wrong), abs=30), "the control: the centre does not know the clock"
    with world.centre.write() as c:
        c.execute(t.nodes.update().where(t.nodes.c.name == NODE).values(facts={"clock_ahead": wrong}))
    assert reported() == pytest.approx(300, abs=30)


def test_a_clock_that_cannot_be_is_corrected_by_a_day_at_most(world: World) -> None:
    world.service.create("exp")
    move(world.centre, "exp")
    operation = world.scalar(world.centre, sa.select(t.operations.c.id))
    with world.centre.write() as c:
        c.execute(t.nodes.update().where(t.nodes.c.name == NODE).values(facts={"clock_ahead": 1e17}))
        (update,) = accepted(c, NODE, [("operation-started", {"operation": operation, "at": utcnow().isoformat()})])
    assert isinstance(update, pending.OperationStarted) and update.at is not None
    assert utcnow() - update.at < timedelta(days=1, minutes=1)


def test_doctor_shows_a_clock_that_is_wrong() -> None:
    assert testbed.clock(0.0).ok is True
    late = testbed.clock(-HOUR)
    assert (late.ok, late.detail) == (None, "3600 s behind the centre's") and "time service" in late.remedy
    assert testbed.clock(None).ok is None


@pytest.mark.parametrize(("days", "named"), [(3, True), (-400, True), (0, False)])
def test_an_error_about_a_certificate_names_the_clock(tmp_path: Path, days: int, named: bool) -> None:
    """A handshake in memory, with a certificate of another time."""
    now = datetime.now(UTC)
    authority, key = Authority.create(tmp_path / "authority", now), requests.new_key()
    issued = authority.server(["testbed.example"], key.public_key(), now + timedelta(days=days))
    for file, content in (("key", requests.key_pem(key)), ("certificate", issued.certificate.encode())):
        (tmp_path / file).write_bytes(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(up, down, server_side=True)
    name = "testbed.example" if named else "other.example"
    client = centre.trust(authority.certificate).wrap_bio(down, up, server_hostname=name)
    with pytest.raises(ssl.SSLCertVerificationError) as failure:
        for _ in range(4):
            for side in (client, server):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    hint = centre.clock_hint(failure.value)
    assert hint.startswith(f"the clock of this host says {utcnow():%Y-%m-%d}") if named else not hint

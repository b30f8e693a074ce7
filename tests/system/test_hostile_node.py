"""A hostile node against the broker, the hub and the service of a testbed, beside an honest one.

Everything in `attempts` is refused or without effect, while the honest node is served. The control tries the same with
all rights at the broker, a hub without its checks (`open_hub`), and a service without them: there each one succeeds.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attempts
import open_hub
import pytest
import sqlalchemy as sa
from attempts import Attempt
from bare_service import FACTS, Service, config_in, databases_on
from broker_server import Broker
from hostile_node import EVERYTHING, NODE, VICTIM, Hostile
from postgres_server import Server
from test_hub import WAIT, Centre, announce

import slicemgr.store
from slicemgr.certificates import requests
from slicemgr.config import Config
from slicemgr.hub import broker_files, signer
from slicemgr.model import Phase
from slicemgr.policy import broker as policy
from slicemgr.service.nodes import image_files, joining, renewal
from slicemgr.store import observations, outbox, pending

pytestmark = pytest.mark.long


class World(SimpleNamespace):
    centre: Centre
    honest: Config
    settings: Path
    hostile: Hostile


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, postgres: Server) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("testbed")
    with databases_on(postgres), Service(folder / "service") as service:
        authority = signer.prepare(service.store, service.config.authority_dir)
        with Broker(authority) as broker:
            broker_files.write_client(authority, service.config.hub_dir, policy.HUB, broker.password)
            centre = Centre(folder, service, broker)
            honest, own = config_in(folder / VICTIM), config_in(folder / NODE)
            mine, other = centre.join(own, NODE), centre.join(honest, VICTIM)
            announce(honest)
            hostile = Hostile(service, broker, own, mine, other)
            yield World(centre=centre, honest=honest, settings=centre.write_settings(VICTIM, honest), hostile=hostile)


def tried(h: Hostile, attempt: Attempt) -> bool:
    """Whether it succeeded."""
    h.memory.clear()
    try:
        attempt.act(h)
    except attempts.EXPECTED:
        return False
    return attempt.succeeded(h)


class Watch:
    """Counts the reports of the honest node that the hub stores meanwhile. longest: seconds between two of them."""

    def __init__(self, centre: Centre) -> None:
        self.count, self.longest = 0, 0.0
        self._centre, self._stop = centre, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        last, at = None, time.monotonic()
        while not self._stop.wait(0.2):
            found = self._centre.node(VICTIM)["beat_at"]
            if found != last:
                self.longest = max(self.longest, time.monotonic() - at)
                last, at, self.count = found, time.monotonic(), self.count + 1


def test_nothing_succeeds(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    h, centre = world.hostile, world.centre
    with contextlib.ExitStack() as stack:
        stack.enter_context(centre.running("hub", centre.settings))
        centre.eventually(lambda: {h.mine, h.other} <= centre.users(), "both may connect")
        stack.enter_context(centre.running("link", world.settings))
        centre.eventually(lambda: centre.node(VICTIM)["state"] == "active", "the honest node reports")
        h.report(h.beat(facts=FACTS))
        with Watch(centre) as watch:
            began = time.monotonic()
            every = (*attempts.AT_THE_BROKER, *attempts.AT_THE_SERVICE, *attempts.IN_REPORTS)
            assert [one.what for one in every if tried(h, one)] == []
            for act in attempts.HARMFUL_MESSAGES.values():
                act(h)
                h.settle()
            took = time.monotonic() - began
            before = watch.count
            centre.eventually(lambda: watch.count > before + 1, "the reports of the honest node go on")
        sliver, _ = h.slice(VICTIM)
        reported(world, sliver)
        centre.eventually(lambda: centre.sliver(sliver)[0] == "running", "its updates arrive")
    log = (centre.folder / "link.log").read_text()
    assert "no connection to the centre" not in log, "each of its reports was acknowledged in time"
    with capsys.disabled():
        count = len(every) + len(attempts.HARMFUL_MESSAGES)
        print(
            f"\n{count} attempts in {took:.0f} s; {watch.count} reports of the honest node, {watch.longest:.1f} s apart"
        )


def reported(world: World, sliver: str) -> None:
    """What the agent of the honest node sees."""
    update = pending.SliverSeen(sliver, Phase.RUNNING)
    with slicemgr.store.open(world.honest) as mirror, mirror.write() as c:
        observations.record(c, [update], world.honest.node.name)
        outbox.add(c, [update])


@contextlib.contextmanager
def unprotected(centre: Centre) -> Iterator[subprocess.Popen[bytes]]:
    """A hub without its checks."""
    words = [sys.executable, open_hub.__file__, VICTIM, "--config", str(centre.settings), "hub"]
    with (centre.folder / "open.log").open("ab") as log, centre.broker.inside():
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=WAIT)
        finally:
            process.kill()
            process.wait()


def test_at_the_broker_with_all_rights(world: World) -> None:
    h, refused = world.hostile, []
    for one in attempts.AT_THE_BROKER:
        h.restore(EVERYTHING)
        if not tried(h, one):
            refused.append(one.what)
    h.restore()
    assert refused == []


def test_reports_to_a_hub_without_checks(world: World) -> None:
    h = world.hostile
    h.restore()
    with unprotected(world.centre):
        h.report(h.beat(facts=FACTS))
        assert [one.what for one in attempts.IN_REPORTS if not tried(h, one)] == [], world.centre.log()


@pytest.mark.parametrize("what", attempts.HARMFUL_MESSAGES)
def test_a_message_that_stops_a_hub_without_checks(world: World, what: str) -> None:
    """It ends, or starts again for ever, because the broker delivers the message again."""
    h = world.hostile
    h.restore()
    with unprotected(world.centre) as process:
        h.settle()
        log = world.centre.folder / "open.log"
        before = log.read_text().count("starts again")
        attempts.HARMFUL_MESSAGES[what](h)

        def stopped() -> bool:
            return process.poll() is not None or log.read_text().count("starts again") > before + 2

        h.eventually(stopped, "it stops")
    h.empty(policy.reports(h.mine))


class _Equal:
    """The key of everybody."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def test_a_service_without_checks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fresh(c: Any, token: str) -> Any:
        return SimpleNamespace(**{**row(c, token)._mapping, "request": ""})

    row = joining._row
    found = []
    for one in attempts.AT_THE_SERVICE:
        with monkeypatch.context() as patch:
            patch.setattr(joining, "_row", fresh)
            patch.setattr(image_files, "_signed", lambda *_: True)
            patch.setattr(image_files, "needs", lambda *_: sa.true())
            patch.setattr(requests, "check_renewal", lambda *_: None)
            patch.setattr(renewal, "requests", Unchecked())
            if not tried(world.hostile, one):
                found.append(one.what)
    assert found == []


class Unchecked:
    """The module `requests` for a service that does not compare keys."""

    def public_key(self, request: object) -> _Equal:
        return _Equal()

    def load(self, certificate: str) -> Any:
        return SimpleNamespace(public_key=_Equal)

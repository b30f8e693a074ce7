"""The tokens of consoles: for running slivers, for users with the right, single-use and short-lived."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from bare_service import ADMIN, FACTS, Service

from slicemgr.errors import Code, Refused
from slicemgr.model import Role
from slicemgr.policy.access import Principal
from slicemgr.service.slices import consoles as service
from slicemgr.service.slices import slices
from slicemgr.store import console_tickets, pending
from slicemgr.store.updates import utcnow

pytestmark = pytest.mark.usefixtures("each_store")

LATER = timedelta(seconds=31)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path) as running:
        running.create(count=2)
        yield running


def refusal(made: Service, name: str, index: int, by: Principal = ADMIN) -> Code:
    before = made.dump()
    with pytest.raises(Refused) as caught:
        service.ask(made.store, name, index, by)
    assert made.dump() == before
    return caught.value.code


def test_a_token_is_good_once_and_for_its_sliver(made: Service) -> None:
    token = service.ask(made.store, "exp", 1, ADMIN)
    assert token not in str(made.dump())
    taken = console_tickets.take(made.store, token, utcnow())
    assert taken == console_tickets.Ticket("admin", made.rows()[1].sliver.id)
    assert console_tickets.take(made.store, token, utcnow()) is None
    event = made.dump()["events"][-1]
    assert (event.user, event.action, event.slice, event.detail) == ("admin", "console", "exp", "sliver 1")


def test_a_token_remembers_what_it_was_asked_with(made: Service) -> None:
    by = Principal("admin", True, credential="c1")
    token = service.ask(made.store, "exp", 0, by)
    assert console_tickets.take(made.store, token, utcnow()) == console_tickets.Ticket(
        "admin", made.rows()[0].sliver.id, "c1"
    )


def test_only_a_machine_has_a_screen(tmp_path: Path) -> None:
    with Service(tmp_path, {**FACTS, "kinds": {"lxc": True, "kvm": True}}) as made:
        for sliver_type in ("lxc", "kvm"):
            made.create(sliver_type, type=sliver_type)
        with pytest.raises(Refused) as caught:
            service.ask(made.store, "lxc", 0, ADMIN, screen=True)
        assert (caught.value.code, caught.value.field) == (Code.INVALID, "screen")
        taken = console_tickets.take(made.store, service.ask(made.store, "kvm", 0, ADMIN, screen=True), utcnow())
        assert taken is not None and taken.screen
        assert made.dump()["events"][-1].action == "screen"


def test_a_token_is_good_for_half_a_minute(made: Service) -> None:
    early, late = (service.ask(made.store, "exp", 0, ADMIN) for _ in range(2))
    assert (
        console_tickets.take(made.store, early, utcnow() + console_tickets.LIFETIME - timedelta(seconds=5)) is not None
    )
    assert console_tickets.take(made.store, late, utcnow() + LATER) is None
    assert made.count("consoles") == 0


def test_what_nobody_used_is_forgotten(made: Service) -> None:
    sliver = made.rows()[0].sliver.id
    with made.store.write() as c:
        console_tickets.give(c, console_tickets.Ticket("admin", sliver), utcnow() - LATER)
    assert made.count("consoles") == 1
    service.ask(made.store, "exp", 0, ADMIN)
    assert made.count("consoles") == 1


@pytest.mark.parametrize("token", ["", "x" * 43, "\N{SNOWMAN}"])
def test_what_nobody_gave_opens_nothing(made: Service, token: str) -> None:
    service.ask(made.store, "exp", 0, ADMIN)
    assert console_tickets.take(made.store, token, utcnow()) is None
    assert made.count("consoles") == 1


def test_no_console_without_a_running_sliver(made: Service) -> None:
    assert refusal(made, "nope", 0) is Code.NOT_FOUND
    assert refusal(made, "exp", 2) is Code.NOT_FOUND
    for action in ("pause", "stop", "delete"):
        slices.act(made.store, made.config, "exp", action, ADMIN)
        assert refusal(made, "exp", 0) is Code.CONFLICT


def test_not_for_everybody(made: Service) -> None:
    """A user without a project sees no slice; a member changes only the own ones."""
    assert refusal(made, "exp", 0, Principal("eve", False)) is Code.NOT_FOUND
    assert refusal(made, "exp", 0, Principal("eve", False, {"default": Role.MEMBER})) is Code.DENIED
    assert service.ask(made.store, "exp", 0, Principal("admin", False, {"default": Role.MEMBER}))


def test_a_sliver_that_goes_takes_its_tokens_along(made: Service) -> None:
    service.ask(made.store, "exp", 0, ADMIN)
    made.record(pending.SliverGone(made.rows()[0].sliver.id))
    assert made.count("consoles") == 0

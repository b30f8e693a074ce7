"""An open console lasts as long as its user may open one: the next check notices each revoked right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import ADMIN, Service

from slicemgr.agent.consoles import ended_by
from slicemgr.errors import Code, Refused
from slicemgr.model import Role, Scope
from slicemgr.policy import access
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import authentication, sessions, tokens, users
from slicemgr.service.projects import members
from slicemgr.service.slices import consoles as service
from slicemgr.service.slices import slices
from slicemgr.store import console_rights, console_tickets, pending
from slicemgr.store import tables as t
from slicemgr.store.console_tickets import Ticket
from slicemgr.store.updates import utcnow

pytestmark = pytest.mark.usefixtures("each_store")

BOB, DAVE = "bob", "dave"


class House:
    """bob owns a slice of project lab, dave is its pi; each has a session and a token."""

    def __init__(self, made: Service) -> None:
        self.service, self.store, now = made, made.store, utcnow()
        with made.store.write() as c:
            c.execute(t.projects.insert().values(name="lab", created_at=now))
            for user, role in ((BOB, "member"), (DAVE, "pi")):
                c.execute(t.users.insert().values(name=user, admin=False, created_at=now))
                c.execute(t.members.insert().values(project="lab", user=user, role=role, created_at=now))
        body = made.request("exp", project="lab")
        slices.create(made.store, made.config, slices.Draft(body), Principal(BOB, False, {"lab": Role.MEMBER}))
        self.by = {user: self.principal(user) for user in (BOB, DAVE)}
        wanted = tokens.Wanted("script", Scope.WRITE, timedelta(hours=1))
        self.token = tokens.create(made.store, wanted, self.by[BOB])[1]
        self.session = sessions.start(made.store, made.config, self.by[BOB], "browser").id

    def principal(self, user: str, credential: str = "") -> Principal:
        with self.store.read() as c:
            return Principal(user, False, authentication.roles_of(c, user), credential=credential)

    def ticket(self, user: str, credential: str) -> Ticket:
        token = service.ask(self.store, "exp", 0, self.principal(user, credential))
        taken = console_tickets.take(self.store, token, utcnow())
        assert taken is not None
        return taken

    def objection(self, ticket: Ticket, later: timedelta = timedelta(0)) -> Refused | None:
        with self.store.read() as c:
            return ended_by(console_rights.read(c, [ticket]), ticket, utcnow() + later, "exp/0")

    def write(self, statement: Any) -> None:
        with self.store.write() as c:
            c.execute(statement)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with Service(tmp_path) as made:
        yield House(made)


def _gone(house: House) -> None:
    house.service.record(pending.SliverGone(house.service.rows()[0].sliver.id))


LOSSES: dict[str, tuple[Callable[[House], object], Code]] = {
    "token revoked": (lambda h: tokens.revoke(h.store, h.token, h.by[BOB]), Code.UNAUTHENTICATED),
    "disabled": (lambda h: users.change(h.store, BOB, {"enabled": False}, ADMIN), Code.UNAUTHENTICATED),
    "left": (lambda h: members.remove_member(h.store, h.service.config, "lab", BOB, ADMIN), Code.NOT_FOUND),
    "given to another": (lambda h: h.write(t.slices.update().values(owner=DAVE)), Code.DENIED),
    "read-only": (lambda h: h.write(t.tokens.update().values(scope="read")), Code.DENIED),
    "deleted": (lambda h: slices.act(h.store, h.service.config, "exp", "delete", ADMIN, project="lab"), Code.CONFLICT),
    "gone": (_gone, Code.CONFLICT),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_lost_ends_it(house: House, loss: str) -> None:
    take_away, code = LOSSES[loss]
    ticket = house.ticket(BOB, house.token)
    assert house.objection(ticket) is None
    take_away(house)
    why = house.objection(ticket)
    assert why is not None and why.code is code


def test_a_session_s_end_is_the_console_s(house: House) -> None:
    ticket = house.ticket(BOB, house.session)
    assert house.objection(ticket) is None
    late = house.objection(ticket, house.service.config.people.session + timedelta(seconds=1))
    assert late is not None and late.code is Code.UNAUTHENTICATED
    sessions.revoke(house.store, house.session, house.by[BOB])
    why = house.objection(ticket)
    assert why is not None and why.code is Code.UNAUTHENTICATED


def test_a_pi_who_is_one_no_more_loses_the_consoles_of_others(house: House) -> None:
    session = sessions.start(house.store, house.service.config, house.by[DAVE], "browser").id
    ticket = house.ticket(DAVE, session)
    assert house.objection(ticket) is None
    house.write(t.members.update().where(t.members.c.user == DAVE).values(role="member"))
    why = house.objection(ticket)
    assert why is not None and why.code is Code.DENIED


def test_the_end_of_another_s_credential_or_of_another_one_changes_nothing(house: House) -> None:
    ticket = house.ticket(BOB, house.token)
    sessions.revoke(house.store, house.session, house.by[BOB])
    members.remove_member(house.store, house.service.config, "lab", DAVE, ADMIN)
    assert house.objection(ticket) is None


@pytest.mark.parametrize("gone", [True, False])
def test_the_console_of_a_deleted_sliver_ends_with_its_name(house: House, gone: bool) -> None:
    """Its row may be deleted before the console is checked."""
    ticket = house.ticket(BOB, house.token)
    if gone:
        house.write(t.slivers.delete())
    else:
        house.write(t.slivers.update().values(desired="absent"))
    why = house.objection(ticket)
    assert why is not None and why.message == "exp/0 has stopped"


@pytest.mark.parametrize("credential", ["", "0" * 16])
def test_no_credential_is_none_that_lasts(house: House, credential: str) -> None:
    assert house.objection(house.ticket(BOB, credential)) is not None
    foreign = sessions.start(house.store, house.service.config, house.by[DAVE], "browser").id
    assert house.objection(house.ticket(BOB, foreign)) is not None


def test_without_the_rule_who_left_would_stay(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr(access, "change_slice", lambda *_: None)
    ticket = house.ticket(BOB, house.token)
    members.remove_member(house.store, house.service.config, "lab", BOB, ADMIN)
    assert house.objection(ticket) is None


def test_the_queries_do_not_grow_with_the_consoles(house: House) -> None:
    counts = []
    ticket = house.ticket(BOB, house.token)
    for many in (0, 50):
        asked: list[str] = []

        def note(*arguments: Any, asked: list[str] = asked) -> None:
            asked.append(arguments[2])

        with house.store.read() as c:
            sa.event.listen(c, "before_cursor_execute", note)
            console_rights.read(c, [ticket, *(Ticket(f"u{n}", f"s{n}", f"c{n}") for n in range(many))])
        counts.append(len(asked))
    assert counts[0] == counts[1]

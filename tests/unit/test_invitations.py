"""Membership by invitation: it needs the user's consent, reveals no accounts, and does not change defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import PATIENT
from browsers import Browser
from tenants import ALICE, BOB, CAROL, DAVE, ROOT, Tenants, ask

from slicemgr.config import MailConfig, PeopleConfig
from slicemgr.errors import Code, Refused
from slicemgr.model import Role, Scope
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import authentication, users
from slicemgr.service.leases import leases
from slicemgr.service.nodes import retention
from slicemgr.service.outbound import mail
from slicemgr.service.projects import invitations, members, projects
from slicemgr.service.views import invitations as invitation_views
from slicemgr.store import schema
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

API = "/api/v1"
ERIN = Principal("erin", False)
GHOST = "nobody-at-all"


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[Tenants]:
    with Tenants(tmp_path, store=PATIENT) as made:
        yield made


def refused(code: Code, call: Any, *args: Any, **named: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        call(*args, **named)
    assert caught.value.code is code, caught.value
    return caught.value


def invite(tenants: Tenants, whom: str, by: Principal = ALICE, project: str = "lab", role: str = "member") -> str:
    return invitations.create(tenants.store, tenants.config, project, whom, role, by)


def accept(tenants: Tenants, id: str, by: Principal = ERIN) -> str:
    return invitations.accept(tenants.store, tenants.config, id, by)


def roles(tenants: Tenants, user: str) -> dict[str, Role]:
    with tenants.store.read() as c:
        return authentication.roles_of(c, user)


def waiting(tenants: Tenants, by: Principal) -> list[str]:
    with tenants.store.read() as c:
        return [one["project"] for one in invitation_views.of_user(c, by)]


def as_user(tenants: Tenants, name: str) -> Principal:
    """The principal of a request of this account, with its present rights."""
    with tenants.store.read() as c:
        row = c.execute(sa.select(t.users.c.admin, t.users.c.default_project).where(t.users.c.name == name)).one()
        return Principal(name, row.admin, authentication.roles_of(c, name), default_project=row.default_project)


def change_user(tenants: Tenants, name: str, **values: Any) -> None:
    with tenants.store.write() as c:
        c.execute(t.users.update().where(t.users.c.name == name).values(values))


# existing and missing accounts


@contextmanager
def statements(tenants: Tenants) -> Iterator[list[str]]:
    """The SQL that runs meanwhile, without its parameters."""
    found: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        found.append(statement)

    sa.event.listen(tenants.store.engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        sa.event.remove(tenants.store.engine, "before_cursor_execute", note)


def answers(tenants: Tenants, whom: str) -> list[Any]:
    """The answers to alice when she invites a user in each way, lists and withdraws the invitation; and the SQL."""
    client, found = tenants.client("alice"), []
    for _ in range(2):  # the first notes the token's last use, the second finds the rows of the token
        client.get(f"{API}/me")
    asked: tuple[tuple[str, str, Any], ...] = (
        ("POST", "/projects/lab/invitations", {"invitee": whom}),
        ("GET", "/projects/lab/invitations", None),
        ("DELETE", f"/projects/lab/members/{whom}", None),
        ("PUT", f"/projects/lab/members/{whom}", {"role": "member"}),
        ("PUT", f"/projects/lab/members/{whom}", {"role": "pi"}),
        ("GET", "/projects/lab", None),
        ("GET", "/events?limit=3", None),
        ("GET", f"/users/{whom}", None),
        ("DELETE", f"/projects/lab/members/{whom}", None),
    )
    for method, path, json in asked:
        with statements(tenants) as run:
            answer = client.open(API + path, method=method, json=json)
        text = re.sub(r'"\d{4}-[^"]*Z"|"[0-9a-f]{16}"|"id":\d+|"next":"[^"]*"', "X", answer.text).replace(whom, "WHOM")
        found.append((method, path.replace(whom, "WHOM"), answer.status_code, text, run))
    return found


NAMES = ("erin", "frank", "root", "carol", GHOST)  # an account, a disabled one, an admin, another PI, no account


def test_who_exists_and_who_does_not_answer_alike(tenants: Tenants) -> None:
    """Status, body, the list, and the queries that determine the duration are equal."""
    first, *others = (answers(tenants, name) for name in NAMES)
    assert [one[2] for one in first] == [201, 200, 200, 200, 403, 200, 200, 404, 200]
    for name, found in zip(NAMES[1:], others, strict=True):
        assert found == first, name


def test_mail_addresses_answer_alike(tenants: Tenants) -> None:
    """Addresses of an account, of a member of the project, and of no account."""
    for name in ("erin", "bob"):
        change_user(tenants, name, email=f"{name}@example.org", email_confirmed=True)
    first, *others = (answers(tenants, f"{name}@example.org") for name in ("erin", "bob", GHOST))
    assert [one[2] for one in first] == [201, 200, 200, 200, 403, 200, 200, 404, 200]
    assert all(found == first for found in others)


def test_a_pi_who_may_look_accounts_up_is_noticed(tenants: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: with the former handling of a PI's request, existing and missing accounts differ."""

    def insert(c: Any, config: Any, project: str, whom: str, role: Role, by: Principal) -> str:
        members.put(c, project, whom, role, by)
        return ""

    monkeypatch.setattr(invitations, "insert", insert)
    client = tenants.client("alice")
    statuses = [client.put(f"{API}/projects/lab/members/{one}", json={}).status_code for one in ("erin", GHOST)]
    assert statuses == [200, 422] and roles(tenants, "erin") == {"lab": "member"}


def test_a_declined_invitation_looks_like_one_nobody_has_seen(tenants: Tenants) -> None:
    client = tenants.client("alice")
    ids = [invite(tenants, "erin"), invite(tenants, GHOST)]
    before = client.get(f"{API}/projects/lab").get_json()
    events = client.get(f"{API}/events").get_json()
    invitations.decline(tenants.store, ids[0], ERIN)
    assert client.get(f"{API}/projects/lab").get_json() == before
    assert client.get(f"{API}/events").get_json() == events
    assert waiting(tenants, ERIN) == []
    assert invite(tenants, "erin") == ids[0], "asking again is no new question"
    assert waiting(tenants, ERIN) == []
    refused(Code.NOT_FOUND, accept, tenants, ids[0])


# nothing without consent


def test_an_account_is_in_when_it_accepts_and_not_before(tenants: Tenants) -> None:
    id_ = invite(tenants, "ERIN ")
    assert roles(tenants, "erin") == {} and waiting(tenants, ERIN) == ["lab"]
    assert lands(tenants, "erin", "early") == 403
    refused(Code.NOT_FOUND, accept, tenants, id_, CAROL)
    refused(Code.DENIED, accept, tenants, id_, replace(ERIN, scope=Scope.READ))
    assert accept(tenants, id_) == "lab"
    assert roles(tenants, "erin") == {"lab": Role.MEMBER} and waiting(tenants, ERIN) == []
    assert tenants.events()[-1] == ("erin", "member join", "erin member")
    assert lands(tenants, "erin", "first") == "lab"
    refused(Code.NOT_FOUND, accept, tenants, id_)


def test_an_admin_puts_people_in_directly_and_a_pi_does_not(tenants: Tenants) -> None:
    members.set_member(tenants.store, tenants.config, "lab", "erin", "member", ALICE)
    assert roles(tenants, "erin") == {}
    members.set_member(tenants.store, tenants.config, "lab", "erin", "member", ROOT)
    assert roles(tenants, "erin") == {"lab": Role.MEMBER} and waiting(tenants, ERIN) == []
    args = (tenants.store, tenants.config, "lab", GHOST, "member", ROOT)
    assert refused(Code.INVALID, members.set_member, *args).field == "user"


def test_two_at_once_join_once(tenants: Tenants) -> None:
    id_ = invite(tenants, "erin")

    def try_it(_: int) -> bool:
        try:
            return bool(accept(tenants, id_))
        except Refused as error:
            assert error.code is Code.NOT_FOUND
            return False

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(try_it, range(4))) == 1


@pytest.mark.parametrize(
    ("whom", "role", "by", "code"),
    [
        ("erin", "pi", ALICE, Code.DENIED),
        ("erin", "member", BOB, Code.DENIED),
        ("erin", "member", CAROL, Code.NOT_FOUND),
        ("erin", "boss", ALICE, Code.INVALID),
        ("", "member", ALICE, Code.INVALID),
        (7, "member", ALICE, Code.INVALID),
        ("two words", "member", ALICE, Code.INVALID),
        ("a@b@c", "member", ALICE, Code.INVALID),
        ("bob", "member", ALICE, Code.CONFLICT),
    ],
)
def test_invitations_that_cannot_be(tenants: Tenants, whom: Any, role: str, by: Principal, code: Code) -> None:
    before = tenants.dump()
    refused(code, invitations.create, tenants.store, tenants.config, "lab", whom, role, by)
    assert tenants.dump() == before


def test_there_are_only_so_many(tenants: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invitations, "_MOST", 3)
    invite(tenants, "one"), invite(tenants, "two")
    assert "withdraw one" in refused(Code.CONFLICT, invite, tenants, "three").hint
    assert invite(tenants, "one"), "which is there already"


def test_an_invitation_ends(tmp_path: Path) -> None:
    settings = PeopleConfig(project_invitation=timedelta(seconds=0))
    with Tenants(tmp_path, people=settings) as tenants:
        before = len(tenants.client("alice").get(f"{API}/projects/lab/invitations").get_json()["invitations"])
        id_ = invite(tenants, "erin")
        assert waiting(tenants, ERIN) == []
        refused(Code.NOT_FOUND, accept, tenants, id_)
        refused(Code.NOT_FOUND, invitations.withdraw, tenants.store, "lab", id_, ALICE)
        shown = tenants.client("alice").get(f"{API}/projects/lab/invitations").get_json()["invitations"]
        assert len(shown) == before
        leases.expire(tenants.store, tenants.config)  # the first reading of the clock
        retention.forget(tenants.store, tenants.config)
        assert id_ not in str(tenants.dump()["project_invitations"])


@pytest.mark.parametrize("how", ["left", "disabled", "pi by one who is no admin any more"])
def test_who_may_invite_no_more_has_invited_nobody(tenants: Tenants, how: str) -> None:
    id_ = invite(tenants, "erin", ROOT if "pi" in how else ALICE, role="pi" if "pi" in how else "member")
    if how == "left":
        members.remove_member(tenants.store, tenants.config, "lab", "alice", ROOT)
    elif how == "disabled":
        users.change(tenants.store, "alice", {"enabled": False}, ROOT)
    else:
        change_user(tenants, "root", admin=False)
    refused(Code.CONFLICT, accept, tenants, id_)
    assert roles(tenants, "erin") == {}


def test_withdrawn_is_withdrawn(tenants: Tenants) -> None:
    id_, pi = invite(tenants, "erin"), invite(tenants, "carol", ROOT, role="pi")
    refused(Code.NOT_FOUND, invitations.withdraw, tenants.store, "hollow", id_, ALICE)
    refused(Code.DENIED, invitations.withdraw, tenants.store, "lab", id_, BOB)
    refused(Code.DENIED, invitations.withdraw, tenants.store, "lab", pi, ALICE)
    invitations.withdraw(tenants.store, "lab", id_, ALICE)
    refused(Code.NOT_FOUND, accept, tenants, id_)
    projects.create(tenants.store, tenants.config, {"name": "short"}, ROOT)
    gone = invite(tenants, "erin", ROOT, "short")
    projects.delete(tenants.store, "short", ROOT)
    refused(Code.NOT_FOUND, accept, tenants, gone)


# mail addresses


def test_an_address_leads_to_whom_somebody_else_confirmed(tenants: Tenants) -> None:
    """An address set by its user proves nothing: an impostor with that address is not the invited user."""
    invite(tenants, "Erin@Example.org")
    users.change(tenants.store, "carol", {"email": "erin@example.org"}, CAROL)
    assert waiting(tenants, CAROL) == []
    users.change(tenants.store, "erin", {"email": "ERIN@example.org"}, ROOT)
    assert waiting(tenants, ERIN) == ["lab"]
    users.change(tenants.store, "erin", {"email": "ERIN@example.org", "full_name": "Erin"}, ERIN)
    assert waiting(tenants, ERIN) == ["lab"], "saved as it was"
    users.change(tenants.store, "erin", {"email": "other@example.org"}, ERIN)
    users.change(tenants.store, "erin", {"email": "erin@example.org"}, ERIN)
    assert waiting(tenants, ERIN) == []


def test_an_address_that_the_admin_or_the_issuer_gave_is_confirmed(tenants: Tenants) -> None:
    users.invite(tenants.store, tenants.config, {"name": "grace", "email": "Grace@example.org"}, ROOT)
    invite(tenants, "grace@example.org")
    assert waiting(tenants, Principal("grace", False)) == ["lab"]
    invite(tenants, "e@uni.example")
    row = {"issuer": "https://x", "subject": "1", "user": "erin", "email": "E@uni.example", "created_at": utcnow()}
    with tenants.store.write() as c:
        c.execute(t.identities.insert().values(row))
    assert waiting(tenants, ERIN) == ["lab"]


# where slices go


def lands(tenants: Tenants, user: str, name: str) -> Any:
    """The project of a slice that names none; or the status of the refusal."""
    with tenants.store.write() as c:
        token = authentication.new_id() * 2
        row = {
            "hash": authentication.digest(token),
            "user": user,
            "label": "x",
            "id": authentication.new_id(),
            "created_at": utcnow(),
        }
        c.execute(t.tokens.insert().values(row))
    headers = {"Authorization": f"Bearer {token}"}
    answer = tenants.app.test_client().post(f"{API}/slices", json=tenants.request(name), headers=headers)
    return answer.get_json(force=True)["slice"]["project"] if answer.status_code == 202 else answer.status_code


def test_what_a_create_means_is_not_changed_by_others(tenants: Tenants) -> None:
    store, config = tenants.store, tenants.config
    projects.change(store, "rival", {"quota": {"slices": None}}, ROOT)
    assert lands(tenants, "carol", "a") == "rival"
    id_ = invite(tenants, "carol")
    assert lands(tenants, "carol", "b") == "rival"
    members.set_member(store, config, "hollow", "carol", "member", ROOT)
    assert lands(tenants, "carol", "c") == "rival", "not by an admin either"
    accept(tenants, id_, as_user(tenants, "carol"))
    assert lands(tenants, "carol", "d") == "rival"
    members.remove_member(store, config, "rival", "carol", ROOT)
    assert lands(tenants, "carol", "e") == 422, "not in another project because the default one was lost"
    users.change(store, "carol", {"default_project": "lab"}, as_user(tenants, "carol"))
    assert lands(tenants, "carol", "f") == "lab"


def test_without_a_default_others_would_change_it(tenants: Tenants) -> None:
    """The control: with a rule by the number of projects, a second membership makes creation fail."""
    change_user(tenants, "carol", default_project="")
    assert lands(tenants, "carol", "a") == "rival"
    with tenants.store.write() as c:
        c.execute(t.members.insert().values(project="lab", user="carol", role="member", created_at=utcnow()))
    assert lands(tenants, "carol", "b") == 422


@pytest.mark.parametrize("how", ["removed", "project deleted"])
def test_who_had_no_default_gets_none_by_a_loss(tenants: Tenants, how: str) -> None:
    """bob has two projects and names one; after the deletion of one, the other does not become the default."""
    change_user(tenants, "bob", default_project="")
    assert lands(tenants, "bob", "a") == 422
    if how == "removed":
        members.remove_member(tenants.store, tenants.config, "hollow", "bob", ALICE)
    else:
        projects.delete(tenants.store, "hollow", ROOT)
    assert lands(tenants, "bob", "b") == 422


def test_who_leaves_goes_on_in_the_one_that_is_left(tenants: Tenants) -> None:
    bob = as_user(tenants, "bob")
    assert bob.default_project == "lab"
    members.remove_member(tenants.store, tenants.config, "lab", "bob", bob)
    assert lands(tenants, "bob", "a") == "hollow"


def test_a_name_means_the_default_projects_slice(tenants: Tenants) -> None:
    """A slice of another user with the same name in a second project does not make the first one unreachable."""
    ask(tenants, DAVE, "exp", project="hollow")
    client = tenants.client("bob")
    assert client.get(f"{API}/slices/exp").get_json()["project"] == "lab"
    change_user(tenants, "bob", default_project="")
    assert client.get(f"{API}/slices/exp").status_code == 409, "the control: without a default it does"


@pytest.mark.parametrize(
    ("value", "by", "code"),
    [("rival", BOB, Code.INVALID), (7, BOB, Code.INVALID), ("lab", ROOT, Code.DENIED), ("lab", ALICE, Code.DENIED)],
)
def test_defaults_that_cannot_be(tenants: Tenants, value: Any, by: Principal, code: Code) -> None:
    before = tenants.dump()
    refused(code, users.change, tenants.store, "bob", {"default_project": value}, by)
    assert tenants.dump() == before


# an upgrade


def test_memberships_stay_and_get_their_defaults(tenants: Tenants) -> None:
    """From the previous schema: the only project becomes the default, users of two choose; addresses from events."""
    users.invite(tenants.store, tenants.config, {"name": "grace", "email": "grace@example.org"}, ROOT)
    users.invite(tenants.store, tenants.config, {"name": "heidi", "email": "heidi@example.org"}, ROOT)
    users.change(tenants.store, "heidi", {"email": "grace@example.org"}, Principal("heidi", False))
    change_user(tenants, "carol", email="carol@example.org")
    before = tenants.dump()
    schema.downgrade(tenants.config.store_url, "0014")
    schema.upgrade(tenants.config.store_url)
    after = tenants.dump()
    for name in ("members", "projects", "slices", "slivers", "ssh_keys", "tokens", "sessions", "requests", "events"):
        assert after[name] == before[name] and before[name], name
    found = {row.name: (row.default_project, row.email_confirmed) for row in after["users"]}
    assert found["carol"] == ("rival", False), "nobody knows who gave this address"
    assert found["bob"][0] == found["dave"][0] == found["erin"][0] == ""
    assert found["grace"][1] is True and found["heidi"][1] is False
    assert lands(tenants, "carol", "a") == "rival" and lands(tenants, "bob", "b") == 422


# letters


def letters(tenants: Tenants) -> list[tuple[str, str]]:
    return [(row.user, row.body) for row in tenants.dump()["mails"]]


def test_the_invited_account_gets_one_letter(tmp_path: Path) -> None:
    settings = MailConfig(server="mail.example", sender="testbed@example.org")
    with Tenants(tmp_path, mail=settings) as tenants:
        users.change(tenants.store, "erin", {"email": "erin@example.org"}, ROOT)
        users.change(tenants.store, "carol", {"email": "erin@example.org"}, CAROL)
        invitations.notify(tenants.store, tenants.config)
        for whom in ("erin@example.org", GHOST, "ghost@example.org"):
            invite(tenants, whom)
        assert letters(tenants) == [], "not while somebody waits for the answer"
        assert invitations.notify(tenants.store, tenants.config) == 3
        ((user, body),) = letters(tenants)
        assert user == "erin" and "slicectl project accept lab" in body
        assert tenants.dump()["mails"][0].recipient == "erin@example.org"
        assert invitations.notify(tenants.store, tenants.config) == 0
        members.remove_member(tenants.store, tenants.config, "lab", "erin@example.org", ALICE)
        invite(tenants, "erin")
        invitations.notify(tenants.store, tenants.config)
        assert len(letters(tenants)) == 1, "one a day from a project, however often it asks"


def test_without_a_mail_server_nobody_is_written_to(tenants: Tenants) -> None:
    invite(tenants, "erin")
    assert invitations.notify(tenants.store, tenants.config) == 0 and letters(tenants) == []


def test_a_failed_letter_names_no_address(tmp_path: Path) -> None:
    """A reminder's failure is an event of the project, and the server's answer repeats the address."""
    with Tenants(tmp_path, mail=MailConfig(server="mail.example", sender="testbed@example.org")) as tenants:
        change_user(tenants, "bob", email="Bob@secret.example")
        with tenants.store.write() as c:
            mail.queue(c, tenants.config, "k", mail.About("bob", "exp", "lab"), "exp: stopped", "text", utcnow())
        row = tenants.dump()["mails"][0]
        with tenants.store.write() as c:
            mail._fail(c, row, "the server answered 550 <bob@SECRET.example>: unknown", utcnow())
        text = tenants.client("dave").get(f"{API}/events").text
        assert "550 <the address>: unknown" in text and "secret.example" not in text.lower()


# pages


def test_the_invited_see_it_and_answer_without_javascript(tenants: Tenants) -> None:
    bob = Browser(tenants, "bob")
    for path in ("/slices", "/projects", "/account"):
        page = bob.get(path).text
        assert "Invitations for you" in page and f"/invitations/{tenants.found['invited']}/accept" in page
        assert "Invitations for you" not in Browser(tenants, "dave").get(path).text
    answer = bob.post(f"/invitations/{tenants.found['invited']}/accept")
    assert answer.headers["Location"] == "/projects/default" and "default" in roles(tenants, "bob")
    assert "Invitations for you" not in bob.get("/slices").text


def test_a_pi_invites_and_withdraws_on_the_page(tenants: Tenants) -> None:
    alice = Browser(tenants, "alice")
    for whom in ("erin", GHOST):
        assert alice.post("/projects/lab/members", {"user": whom}).status_code == 303
        assert f"{whom} was invited" in alice.get("/projects/lab").text
    assert roles(tenants, "erin") == {}
    page = alice.get("/projects/lab").text
    (target,) = re.findall(rf"/projects/lab/invitations/{tenants.found['invitation']}/withdraw", page)
    assert (
        alice.post(target).status_code == 303
        and "gwen" not in alice.get("/projects/lab").text.split("Recent events")[0]
    )
    for one in ("dave", "bob"):
        assert GHOST not in Browser(tenants, one).get("/projects/lab").text.split("Recent events")[0]
    wrong = alice.post("/projects/lab/members", {"user": "two words"})
    assert wrong.status_code == 422 and 'id="error-user"' in wrong.text


def test_a_lost_default_is_chosen_anew_on_the_page(tenants: Tenants) -> None:
    """The form of a new slice names no project by itself, and the account page offers the choice."""
    bob = Browser(tenants, "bob")
    assert '<option value="lab" selected>' in bob.get("/new").text
    members.remove_member(tenants.store, tenants.config, "lab", "bob", ALICE)
    assert '<option value="" selected>select a project</option>' in bob.get("/new").text
    assert bob.post("/account/person", {"default_project": "hollow"}).status_code == 303
    assert as_user(tenants, "bob").default_project == "hollow"

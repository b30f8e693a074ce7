"""Deleted accounts: what goes with them, what keeps their name, and that nobody gets the name again."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from browsers import Browser
from tenants import ALICE, BOB, ROOT, Tenants

from slicemgr.errors import Code, Refused
from slicemgr.service.accounts import deletion, openid, users
from slicemgr.service.outbound.openid_issuer import Proven
from slicemgr.service.projects import members
from slicemgr.service.slices import slices
from slicemgr.store import pending
from slicemgr.store import tables as t

API = "/api/v1"
OF_A_USER = ("sessions", "tokens", "ssh_keys", "members", "requests", "identities", "invitations", "answers")


def refused(tenants: Tenants, name: str, by: object = ROOT) -> Refused:
    before = tenants.content()
    with pytest.raises(Refused) as error:
        deletion.delete(tenants.store, tenants.config, name, by)  # type: ignore[arg-type]
    assert tenants.content() == before
    return error.value


def drop_slice(tenants: Tenants) -> None:
    slices.act(tenants.store, tenants.config, "exp", "delete", BOB, project="lab")
    tenants.record(*(pending.SliverGone(row.sliver.id) for row in tenants.rows()))


def test_an_account_goes_with_everything_but_its_events(tenants: Tenants) -> None:
    drop_slice(tenants)
    events = [one for one in tenants.events() if one[0] == "bob"]
    client = tenants.client("bob")
    assert client.get(f"{API}/me").status_code == 200 and events
    assert tenants.client("root").delete(f"{API}/users/bob").get_json() == {"deleted": "bob"}
    assert client.get(f"{API}/me").status_code == 401
    with tenants.store.read() as c:
        for name in OF_A_USER:
            table = t.metadata.tables[name]
            assert c.scalar(sa.select(sa.func.count()).where(table.c.user == "bob")) == 0, name
        invited = t.project_invitations.c.invitee
        assert c.scalar(sa.select(sa.func.count()).where(invited == "bob")) == 0
    assert [one for one in tenants.events() if one[0] == "bob"] == events
    assert tenants.events()[-1] == ("root", "user delete", "bob")


def test_its_keys_leave_the_slices_of_others(tenants: Tenants) -> None:
    drop_slice(tenants)
    with tenants.store.read() as c:
        line = c.scalar(sa.select(t.ssh_keys.c.line).where(t.ssh_keys.c.user == "bob"))
    body = {**tenants.request("shared"), "project": "lab", "ssh_keys": [line]}
    slices.create(tenants.store, tenants.config, slices.Draft(body), ALICE)
    deletion.delete(tenants.store, tenants.config, "bob", ROOT)
    with tenants.store.read() as c:
        assert c.scalar(sa.select(t.slices.c.ssh_keys).where(t.slices.c.name == "shared")) == []


def test_who_owns_slices_stays(tenants: Tenants) -> None:
    error = refused(tenants, "bob")
    assert (error.code, error.message) == (Code.CONFLICT, "bob owns slices: lab/exp")
    assert "slicectl user disable bob" in error.hint


def test_the_only_pi_of_a_project_with_slices_stays(tenants: Tenants) -> None:
    assert "alice is the only PI of project lab" in refused(tenants, "alice").message
    members.set_member(tenants.store, tenants.config, "lab", "dave", "pi", ROOT)
    deletion.delete(tenants.store, tenants.config, "alice", ROOT)


def test_the_built_in_and_the_own_account_stay(tenants: Tenants) -> None:
    assert refused(tenants, "admin").code is Code.CONFLICT
    assert "your own account" in refused(tenants, "root").message
    assert refused(tenants, "nobody").code is Code.NOT_FOUND


def test_only_admins_delete(tenants: Tenants) -> None:
    assert refused(tenants, "dave", ALICE).code is Code.DENIED
    assert refused(tenants, "erin", BOB).code is Code.NOT_FOUND


def test_nobody_gets_the_name_again(tenants: Tenants) -> None:
    """Neither by an invitation nor by OpenID Connect; the name of an account that never existed is the control."""
    deletion.delete(tenants.store, tenants.config, "erin", ROOT)
    with pytest.raises(Refused, match="an account called erin was deleted") as error:
        users.invite(tenants.store, tenants.config, {"name": "erin"}, ROOT)
    assert (error.value.code, error.value.field) == (Code.CONFLICT, "name")
    assert users.invite(tenants.store, tenants.config, {"name": "eri"}, ROOT).user == "eri"
    with tenants.store.read() as c:
        assert openid._name(c, proven("erin")) == "erin-2"
        assert openid._name(c, proven("ernie")) == "ernie"


def proven(name: str) -> Proven:
    return Proven("https://login.example", "1", f"{name}@example.org", name, name.title(), admin=False)


def test_the_page_asks_and_deletes(tenants: Tenants) -> None:
    root = Browser(tenants, "root")
    asked = root.post("/people/erin/delete")
    assert asked.status_code == 200 and "Delete erin?" in asked.text
    assert tenants.events()[-1][1] != "user delete"
    assert root.post("/people/erin/delete", {"confirmed": "yes"}).status_code == 303
    assert tenants.events()[-1] == ("root", "user delete", "erin")
    assert root.get("/people/erin").status_code == 404
    assert Browser(tenants, "alice").post("/people/dave/delete", {"confirmed": "yes"}).status_code == 403

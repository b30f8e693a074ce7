"""Invitations to projects over both databases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from bare_service import ADMIN, Service

from slicemgr.config import MailConfig
from slicemgr.errors import Code, Refused
from slicemgr.model import Role
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import authentication, users
from slicemgr.service.projects import invitations, members, projects
from slicemgr.service.views import invitations as invitation_views

pytestmark = pytest.mark.usefixtures("each_store")
PI, GUEST = Principal("pi", False, {"lab": Role.PI}), Principal("guest", False)


def test_from_the_invitation_to_the_end_of_a_membership(tmp_path: Path) -> None:
    """By name and by address, one mail, concurrent acceptance, a default project, and its loss."""
    settings = MailConfig(server="mail.example", sender="testbed@example.org")
    with Service(tmp_path, mail=settings) as service:
        store, config = service.store, service.config
        for name in ("pi", "guest"):
            users.invite(store, config, {"name": name, "email": f"{name.title()}@example.org"}, ADMIN)
        for name in ("lab", "rival"):
            projects.create(store, config, {"name": name, "pi": "pi"}, ADMIN)
        with ThreadPoolExecutor(4) as pool:
            wanted = ["guest@example.org", "guest", "guest@example.org", "nobody@example.org"]
            ids = list(pool.map(lambda one: invitations.create(store, config, "lab", one, "member", PI), wanted))
        assert ids[0] == ids[2] and len(set(ids)) == 3
        assert invitations.notify(store, config) == 3
        assert [row.user for row in service.dump()["mails"]] == ["guest"]
        with store.read() as c:
            assert {one["id"] for one in invitation_views.of_user(c, GUEST)} == {ids[0], ids[1]}
            assert len(invitation_views.of_project(c, "lab", PI)) == 3

        def accept(_: int) -> str:
            try:
                return invitations.accept(store, config, ids[0], GUEST)
            except Refused as error:
                return error.code.wire

        with ThreadPoolExecutor(4) as pool:
            assert sorted(pool.map(accept, range(4))) == ["lab", *[Code.NOT_FOUND.wire] * 3]
        members.set_member(store, config, "rival", "guest", "member", ADMIN)
        with store.read() as c:
            assert authentication.roles_of(c, "guest") == {"lab": "member", "rival": "member"}
            assert invitation_views.of_user(c, GUEST) == [], "the second way is not open any more"
            (default,) = [row.default_project for row in service.dump()["users"] if row.name == "guest"]
            assert default == "lab"
        members.remove_member(store, config, "rival", "guest", replace(GUEST, roles={"rival": Role.MEMBER}))
        members.remove_member(store, config, "lab", "nobody@example.org", PI)
        projects.delete(store, "lab", ADMIN)
        assert service.dump()["project_invitations"] == []

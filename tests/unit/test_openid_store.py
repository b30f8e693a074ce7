"""Accounts by OpenID Connect over both databases."""

from __future__ import annotations

from pathlib import Path

import pytest
from bare_service import ADMIN, Service

from slicemgr.config import WebConfig
from slicemgr.config_oidc import OidcConfig
from slicemgr.errors import Refused
from slicemgr.service.accounts import openid, users
from slicemgr.service.outbound.openid_issuer import Proven
from slicemgr.service.views import people

pytestmark = pytest.mark.usefixtures("both_stores")
ISSUER = "https://login.example.org"


def proven(subject: str, email: str, *, admin: bool = False) -> Proven:
    return Proven(ISSUER, subject, email, "jane", "Jane Doe", admin)


def test_who_comes(tmp_path: Path) -> None:
    """Invited users, users of a domain, a temporary admin, and unknown users."""
    oidc = OidcConfig(ISSUER, "testbed", domains=("example.org",))
    with Service(tmp_path, oidc=oidc, web=WebConfig(url="https://testbed.example")) as service:
        store, config = service.store, service.config
        users.invite(store, config, {"name": "joe", "email": "Joe@elsewhere.example"}, ADMIN)
        came = [
            openid.enter(store, config, proven(subject, email, admin=admin), "192.0.2.7", "Firefox").user
            for subject, email, admin in (
                ("1", "joe@elsewhere.example", False),
                ("2", "jane@example.org", True),
                ("2", "jane@example.org", True),
                ("3", "other@example.org", False),
            )
        ]
        assert came == ["joe", "jane", "jane", "jane-2"]
        for one in (proven("4", "jane@example.org"), proven("4", "ann@elsewhere.example"), proven("4", "")):
            with pytest.raises(Refused):
                openid.enter(store, config, one, "192.0.2.7", "Firefox")
        with store.read() as c:
            known = {one["name"]: (one["origin"], one["openid"], one["admin"]) for one in people.users(c, ADMIN)}
        assert known == {
            "admin": ("local", None, True),
            "joe": ("local", "joe@elsewhere.example", False),
            "jane": ("openid", "jane@example.org", True),
            "jane-2": ("openid", "other@example.org", False),
        }
        openid.enter(store, config, proven("2", "jane@example.org"), "192.0.2.7", "Firefox")
        with store.read() as c:
            assert people.users(c, ADMIN, "jane")[0]["admin"] is False

"""A browser over the test client of Flask: cookies, forms with their CSRF token, and redirects."""

from __future__ import annotations

import re
import secrets
from io import BytesIO
from typing import Any, Self

from flask import Flask, session
from flask.testing import FlaskClient
from flask_wtf.csrf import generate_csrf
from tenants import Tenants
from werkzeug.test import TestResponse

from slicemgr.policy.access import Principal
from slicemgr.service.accounts import sessions

_PROOF = re.compile(r'name="csrf_token" value="([^"]+)"')
_ONCE = re.compile(r'name="once" value="([^"]+)"')


class Browser:
    """who: the tenant who is signed in; None: without a sign-in."""

    def __init__(self, tenants: Tenants, who: str | None = None) -> None:
        self.app: Flask = tenants.app
        self.client: FlaskClient = tenants.app.test_client()
        if who is not None:
            by: Principal = tenants.principal(who)
            self.show(sessions.start(tenants.store, tenants.config, by, "Firefox").secret)

    def show(self, secret: str) -> Self:
        """Set the secret of a session in the cookie."""
        with self.client.session_transaction() as cookie:
            cookie["session"] = secret
        return self

    def get(self, path: str, **more: Any) -> TestResponse:
        return self.client.get(path, buffered=True, **more)

    def part(self, path: str) -> TestResponse:
        """A request as htmx sends it."""
        return self.client.get(path, headers={"HX-Request": "true"})

    def proof(self) -> str:
        """The CSRF token in the forms of this browser."""
        for path in ("/slices", "/sign-in"):
            if found := _PROOF.search(self.get(path).text):
                return found[1]
        raise AssertionError("no form has a proof")

    def _made_proof(self) -> str:
        """Such a token without a page: showing one takes longer than most requests."""
        with self.client.session_transaction() as cookie:
            secret = cookie.setdefault("csrf_token", secrets.token_hex(20))
        with self.app.test_request_context():
            session["csrf_token"] = secret
            made: str = generate_csrf()
        return made

    def post(self, path: str, fields: dict[str, Any] | None = None, *, proof: bool = True, **more: Any) -> TestResponse:
        data = {**({"csrf_token": self._made_proof()} if proof else {}), **(fields or {})}
        data = {name: (BytesIO(one), "disk") if isinstance(one, bytes) else one for name, one in data.items()}
        return self.client.post(path, data=data, **more)

    def once(self, path: str) -> str:
        """The one-time key of the form on a page."""
        found = _ONCE.search(self.get(path).text)
        assert found, f"{path} has no form"
        return found[1]

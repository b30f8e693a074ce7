"""A small OpenID Connect issuer on the loopback interface, which follows the standard unless a test changes it."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

import requests
from flask import Flask, Response, jsonify, redirect, request
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey
from werkzeug.serving import make_server

CLIENT, SECRET = "testbed", "the client's secret"
KEY, FORGED = (RSAKey.generate_key(2048, {"kid": "1", "use": "sig"}) for _ in range(2))


class Provider:
    """Signs in each client as `person`. A value None in `claims` or `metadata` is omitted.

    `key` signs, `published` is the public key set. unsigned: use the algorithm `none`.
    """

    def __init__(self) -> None:
        self.person: dict[str, Any] = {
            "sub": "248289761001",
            "email": "jane.doe@example.org",
            "email_verified": True,
            "preferred_username": "Jane.Döe",
            "name": "Jane Doe",
        }
        self.claims: dict[str, Any] = {}
        self.metadata: dict[str, Any] = {}
        self.answer: dict[str, str] = {}
        self.userinfo: dict[str, Any] = {}
        self.key: RSAKey | OctKey = KEY
        self.published: RSAKey | OctKey = KEY
        self.algorithm = "RS256"
        self.unsigned = self.forgetful = self.slow = False
        self.asked: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}
        self.app = Flask("provider")
        for path, view in (
            ("/.well-known/openid-configuration", self._about),
            ("/jwks", lambda: jsonify({"keys": [self.published.as_dict(private=isinstance(self.published, OctKey))]})),
            ("/authorize", self._authorize),
            ("/userinfo", self._userinfo),
        ):
            self.app.add_url_rule(path, path, view)
        self.app.add_url_rule("/token", "token", self._token, methods=["POST"])
        self.app.before_request(self._note)
        self._server = make_server("127.0.0.1", 0, self.app, threaded=True)
        self.issuer = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the issuer."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def visit(self, address: str) -> str:
        """Follow a redirect as a browser does. Returns the target of the answer without scheme and host."""
        with requests.get(address, allow_redirects=False, timeout=10) as answer:
            assert answer.status_code == 302, answer.text
            target = answer.headers["Location"]
        return "/" + target.split("/", 3)[3]

    def _note(self) -> None:
        self.asked.append(request.path)
        if self.slow and request.path == "/token":
            time.sleep(3)

    def _about(self) -> Response:
        about = {
            "issuer": self.issuer,
            **{f"{name}_endpoint": f"{self.issuer}/{path}" for name, path in _ENDPOINTS.items()},
            "jwks_uri": f"{self.issuer}/jwks",
            "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
        }
        return jsonify({name: value for name, value in {**about, **self.metadata}.items() if value is not None})

    def _authorize(self) -> Response:
        asked = request.args.to_dict()
        assert asked["client_id"] == CLIENT and asked["response_type"] == "code" and asked["nonce"]
        assert "openid" in asked["scope"].split() and asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(8)
        self._codes[code] = asked
        answer = {"code": code, "state": asked["state"], **self.answer}
        target: Response = redirect(f"{asked['redirect_uri']}?{urlencode(answer)}")  # type: ignore[assignment]
        return target

    def _token(self) -> tuple[Response, int]:
        form, given = request.form, request.authorization
        asked = self._codes.get(form["code"])
        if not self.forgetful:
            self._codes.pop(form["code"], None)
        if given is None or (given.username, given.password) != (CLIENT, SECRET):
            return jsonify({"error": "invalid_client"}), 401
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=")
        if asked is None or asked["code_challenge"] != challenge.decode():
            return jsonify({"error": "invalid_grant"}), 400
        if form["redirect_uri"] != asked["redirect_uri"] or form["grant_type"] != "authorization_code":
            return jsonify({"error": "invalid_grant"}), 400
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": asked["nonce"]}
        said = {name: one for name, one in {**claims, **self.person, **self.claims}.items() if one is not None}
        return jsonify({"access_token": "opens", "token_type": "Bearer", "id_token": self._signed(said)}), 200

    def _signed(self, claims: dict[str, Any]) -> str:
        if not self.unsigned:
            return jwt.encode({"alg": self.algorithm, "kid": str(self.key.kid)}, claims, self.key)
        parts = (json.dumps(one).encode() for one in ({"alg": "none"}, claims))
        return ".".join(base64.urlsafe_b64encode(one).rstrip(b"=").decode() for one in parts) + "."

    def _userinfo(self) -> Response:
        assert request.headers["Authorization"] == "Bearer opens"
        return jsonify({**self.person, **self.userinfo})


_ENDPOINTS = {"authorization": "authorize", "token": "token", "userinfo": "userinfo"}

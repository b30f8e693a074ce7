"""The client of an OpenID Connect issuer: its metadata, the exchange of a code, and the verified identity."""

from __future__ import annotations

import logging
import re
import secrets
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from authlib.integrations.base_client import OAuthError
from authlib.integrations.requests_client import OAuth2Session
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry
from requests import RequestException, Response

from slicemgr.config_oidc import OidcConfig, secure
from slicemgr.errors import Code, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

# Asymmetric signatures only: a secret that both sides know proves nothing, and `none` even less.
ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
_LEEWAY = 60  # seconds of tolerated clock difference
_KEPT = 3600.0  # seconds for which the issuer's metadata and keys are cached
_AT_ONCE = 8  # waiting requests at most: each holds a thread
_LARGEST = 1 << 20  # bytes of an answer
_EMAIL = re.compile(r"[!-~]{1,64}@[A-Za-z0-9.-]{1,189}")


@dataclass(frozen=True, slots=True)
class Flight:
    """The state of a sign-in at the issuer; the answer must match it."""

    state: str
    nonce: str
    verifier: str

    @classmethod
    def begin(cls) -> Flight:
        return cls(*(secrets.token_urlsafe(32) for _ in range(3)))


@dataclass(frozen=True, slots=True)
class Proven:
    """A verified identity. email: "" unless the issuer reports it as verified."""

    issuer: str
    subject: str
    email: str
    name: str  # the preferred name of an account
    full_name: str
    admin: bool


class _Session(OAuth2Session):  # type: ignore[misc, unused-ignore]
    """Follows no redirects, and limits the time and the size of an answer."""

    def __init__(self, settings: OidcConfig, method: str | None = None) -> None:
        self._limit = settings.timeout.total_seconds()
        super().__init__(
            settings.client_id,
            _secret(settings) or None,
            token_endpoint_auth_method=method,
            scope=" ".join(settings.scopes),
            code_challenge_method="S256",
        )
        paths = ssl.get_default_verify_paths()
        self.verify = settings.ca_file or paths.cafile or paths.capath or True

    def request(self, method: str, url: str, withhold_token: bool = False, auth: Any = None, **more: Any) -> Response:
        if not secure(url):
            raise RequestException(f"{url} is not https")
        until = time.monotonic() + self._limit
        more |= {"timeout": self._limit, "allow_redirects": False, "stream": True}
        response: Response = super().request(method, url, withhold_token=withhold_token, auth=auth, **more)
        content = bytearray()
        with response:
            for chunk in response.iter_content(65536):
                content += chunk
                if len(content) > _LARGEST or time.monotonic() > until:
                    raise RequestException(f"{url} answers too much or too slowly")
        response._content = bytes(content)
        return response


def _secret(settings: OidcConfig) -> str:
    if not settings.client_secret_file:
        return ""
    return Path(settings.client_secret_file).read_text().strip()


class Issuer:
    """Thread-safe; created once for each web process."""

    def __init__(self, settings: OidcConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self._clock = clock
        self._room = threading.BoundedSemaphore(_AT_ONCE)
        self._known: Mapping[str, Any] = {}
        self._keys: Mapping[str, Any] = {}
        self._until = 0.0

    def address(self, flight: Flight, back: str) -> str:
        """The URL at the issuer to send the browser to. back: the URL of the callback. Refused(UNAVAILABLE)."""
        with self._asking():
            endpoint = self._endpoint("authorization_endpoint")
            if not secure(endpoint):
                raise self._away(f"{endpoint} is not https")
            with _Session(self.settings) as session:
                url, _ = session.create_authorization_url(
                    endpoint, flight.state, flight.verifier, nonce=flight.nonce, redirect_uri=back
                )
                return str(url)

    def prove(self, flight: Flight, back: str, answer: Mapping[str, str]) -> Proven:
        """The identity from `answer`, the query of the callback. Refused(UNAUTHENTICATED, DENIED, UNAVAILABLE)."""
        with self._asking():
            self._check_answer(answer)
            token = self._exchange(flight, back, answer.get("code", ""))
            claims = self._claims(token, flight.nonce)
            if not claims.get("email") and self._metadata().get("userinfo_endpoint"):
                claims = {**self._userinfo(token, claims["sub"]), **claims}
            return self._proven(claims)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Log the details of an error, and raise it with a short message."""
        if not self._room.acquire(blocking=False):
            raise Refused(Code.UNAVAILABLE, "too many sign-ins are in progress", hint="try again")
        try:
            yield
        except OSError as error:  # requests' own errors are some of these
            raise self._away(str(error)) from error
        except OAuthError as error:
            raise self._doubt(f"it refused the code: {error.error} {error.description or ''}") from error
        except JoseError as error:
            raise self._doubt(f"{error.error}: {error.description}") from error
        except (ValueError, TypeError, KeyError) as error:
            raise self._doubt(f"its response is invalid: {error!r}") from error
        finally:
            self._room.release()

    def _away(self, why: str) -> Refused:
        log.warning("%s returned an invalid response: %s", self.settings.issuer, why)
        hint = "try again later; the log of the service contains the reason"
        return Refused(
            Code.UNAVAILABLE, f"{self.settings.name} cannot be reached, or is not configured correctly", hint=hint
        )

    def _doubt(self, why: str) -> Refused:
        log.warning("%s did not prove the identity of a user: %s", self.settings.issuer, why)
        hint = "sign in again; if the error persists, the log of the service contains the reason"
        return Refused(Code.UNAUTHENTICATED, f"{self.settings.name} did not prove your identity", hint=hint)

    def _metadata(self) -> Mapping[str, Any]:
        if self._known and self._clock() < self._until:
            return self._known
        found = self._json(self.settings.issuer.rstrip("/") + "/.well-known/openid-configuration")
        if (calls_itself := found.get("issuer")) != self.settings.issuer:
            raise self._away(f"its issuer is {calls_itself!r}, and oidc.issuer must be exactly the same")
        self._known, self._keys, self._until = found, {}, self._clock() + _KEPT
        return found

    def _endpoint(self, name: str) -> str:
        found = self._metadata().get(name)
        if not isinstance(found, str):
            raise self._away(f"it does not provide {name}")
        return found

    def _json(self, url: str, **more: Any) -> dict[str, Any]:
        with _Session(self.settings) as session:
            response = session.request("GET", url, withhold_token=True, **more)
        found = response.json() if response.status_code == 200 else None
        if not isinstance(found, dict):
            raise self._away(f"{url} answered {response.status_code} {response.headers.get('Content-Type', '')}")
        return found

    def _check_answer(self, answer: Mapping[str, str]) -> None:
        """Refuse an answer of another issuer (RFC 9207)."""
        claimed = answer.get("iss")
        if claimed is None and self._metadata().get("authorization_response_iss_parameter_supported") is True:
            raise self._doubt("the response does not name its issuer")
        if claimed is not None and claimed != self.settings.issuer:
            raise self._doubt(f"the response names the issuer {claimed!r}")
        if error := answer.get("error"):
            if error == "access_denied":
                raise Refused(
                    Code.DENIED, f"{self.settings.name} refused the sign-in, or you cancelled it", hint="try again"
                )
            raise self._doubt(f"it returned {error!r}: {answer.get('error_description', '')!r}")
        if not answer.get("code"):
            raise self._doubt("it sent no code")

    def _exchange(self, flight: Flight, back: str, code: str) -> Mapping[str, Any]:
        offered = self._metadata().get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        post = "client_secret_basic" not in offered and "client_secret_post" in offered
        method = "none" if not self.settings.client_secret_file else "client_secret_post" if post else None
        with _Session(self.settings, method) as session:
            found: Mapping[str, Any] = session.fetch_token(
                self._endpoint("token_endpoint"),
                code=code,
                code_verifier=flight.verifier,
                redirect_uri=back,
                grant_type="authorization_code",
            )
        return found

    def _claims(self, token: Mapping[str, Any], nonce: str) -> dict[str, Any]:
        """The claims of the ID token, after verifying its signature, issuer, audience, time and nonce."""
        offered = self._metadata().get("id_token_signing_alg_values_supported") or ["RS256"]
        registry = JWSRegistry(algorithms=[one for one in ALGORITHMS if one in offered], strict_check_header=False)
        try:
            read = jwt.decode(token["id_token"], KeySet.import_key_set(self._key_set()), registry=registry)
        except InvalidKeyIdError:  # the issuer changed its keys
            read = jwt.decode(token["id_token"], KeySet.import_key_set(self._key_set(fresh=True)), registry=registry)
        known = {"client_id": self.settings.client_id, "access_token": token.get("access_token")}
        claims = CodeIDToken(read.claims, read.header, expected(self.settings, nonce), known)
        claims.validate(leeway=_LEEWAY)
        return dict(claims)

    def _key_set(self, *, fresh: bool = False) -> Any:
        if fresh or not self._keys:
            self._keys = self._json(self._endpoint("jwks_uri"))
        return self._keys

    def _userinfo(self, token: Mapping[str, Any], subject: str) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {token['access_token']}"}
        found = self._json(self._endpoint("userinfo_endpoint"), headers=headers)
        if found.get("sub") != subject:
            raise self._doubt("userinfo belongs to another user")
        return found

    def _proven(self, claims: Mapping[str, Any]) -> Proven:
        def text(name: str) -> str:
            value = claims.get(name)
            return value if isinstance(value, str) and value.isprintable() and len(value) <= 254 else ""

        subject, email = claims["sub"], text("email")
        if not isinstance(subject, str) or not 0 < len(subject) <= 255:
            raise self._doubt("it does not name the user")
        word = claims.get("email_verified")  # some issuers send it as text
        verified = (word is True or word == "true") and _EMAIL.fullmatch(email)
        claimed = claims.get(self.settings.admin_claim) if self.settings.admin_claim else None
        values = claimed if isinstance(claimed, list) else [claimed]
        return Proven(
            self.settings.issuer,
            subject,
            email if verified else "",
            text(self.settings.claim),
            text("name"),
            any(one in values for one in self.settings.admin_values),
        )


def expected(settings: OidcConfig, nonce: str) -> dict[str, Any]:
    """The required claims of an ID token and their values."""
    return {
        "iss": {"essential": True, "value": settings.issuer},
        "aud": {"essential": True, "value": settings.client_id},
        "nonce": {"essential": True, "value": nonce},
        "sub": {"essential": True},
        "exp": {"essential": True},
        "iat": {"essential": True},
    }

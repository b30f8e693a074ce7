"""Tokens with which a node fetches one disk image from the service, valid for minutes.

The node signs them with the key of its certificate, so the service stores none of them, and they end with the
certificate. Form: IDENTITY.SHA256.EXPIRES.SIGNATURE, where EXPIRES is in seconds since 1970.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography.hazmat.primitives.asymmetric import ec

from slicemgr.certificates import signatures
from slicemgr.errors import Code, Refused

LIFETIME = timedelta(minutes=5)
SCHEME = "Node"  # of the header Authorization
_FORM = re.compile(r"([a-z0-9-]{1,64})\.([0-9a-f]{64})\.([0-9]{1,11})\.([A-Za-z0-9_-]{80,120})", re.ASCII)
_PURPOSE = b"slicemgr: fetch a disk image\n"  # so that a signature for anything else is none for this


@dataclass(frozen=True, slots=True)
class Token:
    """A token whose signature is not checked yet."""

    identity: str
    sha256: str
    expires_at: datetime
    signature: bytes


def sign(key: ec.EllipticCurvePrivateKey, identity: str, sha256: str, now: datetime) -> str:
    """A token for one image. now: by the clock of the service."""
    expires = int((now + LIFETIME).timestamp())
    signature = signatures.sign(key, _signed(identity, sha256, expires))
    return f"{identity}.{sha256}.{expires}.{signatures.encode(signature)}"


def parse(text: str) -> Token:
    """Refused(DENIED) for anything that is not a token."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise void()
    return Token(found[1], found[2], datetime.fromtimestamp(int(found[3]), UTC), signatures.decode(found[4]))


def is_current(token: Token, now: datetime) -> bool:
    """Whether it has not expired. One that is valid for longer than `LIFETIME` is of a wrong clock."""
    return now < token.expires_at <= now + LIFETIME


def is_signed(token: Token, certificate: str) -> bool:
    """Whether the holder of the certificate (PEM) signed it."""
    content = _signed(token.identity, token.sha256, int(token.expires_at.timestamp()))
    return signatures.is_signed(certificate, content, token.signature)


def void() -> Refused:
    hint = "a node signs one for each image that its slivers need"
    return Refused(Code.DENIED, "this token is not valid for this image", hint=hint, field="Authorization")


def _signed(identity: str, sha256: str, expires: int) -> bytes:
    return _PURPOSE + f"{identity}\n{sha256}\n{expires}".encode()

"""Tokens with which a node opens the one connection to the service that an order asked it for.

The node signs the secret of the order with the key of its certificate: neither the secret nor the key alone is enough.
The service accepts a secret once and for seconds, so a token has no time. Form: IDENTITY.SECRET.SIGNATURE.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric import ec

from slicemgr.certificates import signatures
from slicemgr.errors import Code, Refused

SECRET = re.compile(r"[0-9a-f]{64}", re.ASCII)
_FORM = re.compile(r"([a-z0-9-]{1,64})\.([0-9a-f]{64})\.([A-Za-z0-9_-]{80,120})", re.ASCII)
_PURPOSE = b"slicemgr: open a connection to the service\n"  # so that a signature for anything else is none for this


@dataclass(frozen=True, slots=True)
class Token:
    """A token whose signature is not checked yet."""

    identity: str
    secret: str
    signature: bytes


def new_secret() -> str:
    return secrets.token_hex(32)


def sign(key: ec.EllipticCurvePrivateKey, identity: str, secret: str) -> str:
    signature = signatures.sign(key, _signed(identity, secret))
    return f"{identity}.{secret}.{signatures.encode(signature)}"


def parse(text: str) -> Token:
    """Refused(DENIED) for anything that is not a token."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise void()
    return Token(found[1], found[2], signatures.decode(found[3]))


def is_signed(token: Token, certificate: str) -> bool:
    """Whether the holder of the certificate (PEM) signed it."""
    return signatures.is_signed(certificate, _signed(token.identity, token.secret), token.signature)


def void() -> Refused:
    hint = "a node signs one for each connection that the service asks it for"
    return Refused(Code.DENIED, "this token is not valid for a connection of a node", hint=hint)


def _signed(identity: str, secret: str) -> bytes:
    return _PURPOSE + f"{identity}\n{secret}".encode()

"""Signatures of a node with the key of its certificate. What is signed begins with its purpose."""

from __future__ import annotations

import base64

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from slicemgr.certificates import requests

_ALGORITHM = ec.ECDSA(hashes.SHA256())


def sign(key: ec.EllipticCurvePrivateKey, content: bytes) -> bytes:
    return key.sign(content, _ALGORITHM)


def is_signed(certificate: str, content: bytes, signature: bytes) -> bool:
    """Whether the holder of the certificate (PEM) signed the content."""
    key = requests.load(certificate).public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        key.verify(signature, content, _ALGORITHM)
    except InvalidSignature:
        return False
    return True


def encode(signature: bytes) -> str:
    return base64.urlsafe_b64encode(signature).decode().rstrip("=")


def decode(text: str) -> bytes:
    """text: letters, digits, - and _."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))

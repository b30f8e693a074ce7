"""The ssh keys of an experiment's slices."""

from __future__ import annotations


def any_key() -> str:
    """The public line of a key whose private half is discarded: slices need a key, and no user logs in."""
    return new_key()[0]


def new_key() -> tuple[str, bytes]:
    """The line of the public key, and the private key in the format of OpenSSH."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    private = Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return public, private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())

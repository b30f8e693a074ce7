"""The SSH keys of a request: each line is a public key."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from itertools import chain

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from slicemgr.errors import Refused, invalid

FIELD = "ssh_keys"
MOST_KEYS = 64
LEAST_RSA_BITS = 2048
TYPES = (
    "ssh-ed25519",
    "ssh-rsa",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
)
_LONGEST_LINE = 16384
_PRIVATE = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----|PuTTY-User-Key-File|openssh-key-v1")


def parse(texts: Sequence[str]) -> tuple[str, ...]:
    """The keys in the given texts, each the content of a file: one key a line; blank lines and comments are ignored.

    Refused if a text is a private key (which the error does not repeat), has no key, or has an invalid line.
    """
    if any(_PRIVATE.search(text) for text in texts):
        raise invalid(FIELD, "this is a private key", "keep it secret, and give the corresponding .pub file")
    keys: dict[str, None] = {}
    for text in texts:
        lines = [line.strip() for line in text.splitlines()]
        wanted = [line for line in lines if line and not line.startswith("#")]
        if not wanted:
            raise invalid(FIELD, "it contains no key", "give a file with a line like `ssh-ed25519 AAAA… me@host`")
        keys.update((_key(line), None) for line in wanted)
    if not keys:
        raise invalid(FIELD, "at least one key is needed to log in", "give the .pub file of your key")
    if len(keys) > MOST_KEYS:
        raise invalid(FIELD, f"{len(keys)} keys exceed the limit", f"give at most {MOST_KEYS}")
    return tuple(keys)


def without_comment(line: str) -> str:
    """Type and key of a line, which identify the key."""
    return " ".join(line.split()[:2])


def without_comments(lines: Iterable[str]) -> set[str]:
    return {without_comment(line) for line in lines}


def union(*lists: Iterable[str]) -> list[str]:
    """All lines, each key once."""
    found: dict[str, str] = {}
    for line in chain(*lists):
        found.setdefault(without_comment(line), line)
    return list(found.values())


def _key(line: str) -> str:
    """A line in the format of authorized_keys."""
    kind, _, rest = line.partition(" ")
    body, _, comment = rest.strip().partition(" ")
    if kind == "ssh-dss":
        raise invalid(FIELD, "DSA keys are no longer accepted", "create one with `ssh-keygen -t ed25519`")
    if kind not in TYPES:
        raise _not_a_key(line)
    if len(line) > _LONGEST_LINE:
        raise invalid(FIELD, "a line is too long to be a public key")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            key = load_ssh_public_key(f"{kind} {body}".encode())
    except (ValueError, UnsupportedAlgorithm, Warning) as error:
        raise invalid(
            FIELD, f"a line starts with {kind} but does not contain a valid key", "check that the key is complete"
        ) from error
    if isinstance(key, RSAPublicKey) and key.key_size < LEAST_RSA_BITS:
        hint = f"use at least {LEAST_RSA_BITS} bits, or `ssh-keygen -t ed25519`"
        raise invalid(FIELD, f"an RSA key of {key.key_size} bits is too short", hint)
    comment = comment.strip()
    return f"{kind} {body} {comment}" if comment.isprintable() and comment else f"{kind} {body}"


def _not_a_key(line: str) -> Refused:
    if any(f" {kind} " in f" {line}" for kind in TYPES):
        return invalid(FIELD, "options before a key are not accepted", "give only the key, as in the .pub file")
    return invalid(FIELD, "a line is not an SSH public key", "a key starts with ssh-ed25519, ssh-rsa or ecdsa-…")

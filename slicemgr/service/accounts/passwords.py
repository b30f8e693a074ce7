"""Password hashes (argon2id), with a bound on concurrent computations because each needs memory."""

from __future__ import annotations

import functools
import secrets
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager

from argon2 import PasswordHasher, Type
from argon2.exceptions import InvalidHashError, VerificationError

from slicemgr.errors import Code, Refused, invalid

LEAST, MOST = 12, 1024  # characters
_PATIENCE = 10.0  # seconds to wait for a free computation
_WAITING = 7  # waiting requests for each running computation: each holds a thread


class Passwords:
    """Create and verify hashes, `at_once` at a time; a few requests wait, others are refused. Thread-safe.

    The parameters are argon2-cffi's defaults (RFC 9106, low memory): 64 MiB each.
    """

    def __init__(self, at_once: int) -> None:
        self._hasher = PasswordHasher(type=Type.ID)
        self._turns = threading.BoundedSemaphore(at_once)
        self._room = threading.BoundedSemaphore(at_once * (1 + _WAITING))

    def hash(self, password: str, user: str) -> str:
        """The hash of a new password. Refused(INVALID) if the password is not acceptable."""
        check(password, user)
        with self._turn():
            return self._hasher.hash(_plain(password))

    def matches(self, hashed: str, password: str) -> bool:
        """Whether the password is right.

        hashed "": no account or no password; takes the same time and is always False.
        """
        text = _plain(password) if len(password) <= MOST else ""
        with self._turn():
            try:
                return self._hasher.verify(hashed or self._nobodys, text) and hashed != ""
            except (VerificationError, InvalidHashError):
                return False

    def stale(self, hashed: str) -> bool:
        """Whether the hash was made with other parameters than the current ones."""
        return self._hasher.check_needs_rehash(hashed)

    @functools.cached_property
    def _nobodys(self) -> str:
        return self._hasher.hash(secrets.token_hex())

    @contextmanager
    def _turn(self) -> Iterator[None]:
        busy = Refused(Code.UNAVAILABLE, "too many sign-ins are in progress", hint="try again")
        if not self._room.acquire(blocking=False):
            raise busy
        try:
            if not self._turns.acquire(timeout=_PATIENCE):
                raise busy
            try:
                yield
            finally:
                self._turns.release()
        finally:
            self._room.release()


def check(password: str, user: str) -> None:
    """Refused(INVALID) if the password is too short, too long, or contains the user's name."""
    if len(password) < LEAST:
        raise invalid(
            "password",
            f"{len(password)} characters are too short",
            f"use at least {LEAST} characters, such as several words",
        )
    if len(password) > MOST:
        raise invalid("password", f"{len(password)} characters are too many", f"at most {MOST}")
    if len(set(password)) < 5:
        raise invalid("password", "repeats itself", f"use at least {LEAST} characters that are hard to guess")
    if user in password.lower() and len(password) - len(user) < LEAST:
        raise invalid("password", "is too similar to your name", "use a password that is hard to guess")


def _plain(password: str) -> str:
    """The same characters, whatever Unicode composition the keyboard produces."""
    return unicodedata.normalize("NFKC", password)

"""Who knows the password of an account, and how often one may try."""

from __future__ import annotations

import ipaddress
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from datetime import timedelta
from math import ceil

import sqlalchemy as sa

from slicemgr.config import Config, PeopleConfig
from slicemgr.errors import Code, Refused
from slicemgr.policy.access import Principal
from slicemgr.service import operations, passwords_off, people
from slicemgr.service.passwords import Passwords
from slicemgr.store import Store
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

_PER_ADDRESS = 3  # times as many failures as an account: people share addresses
_MOST_KEYS = 50_000  # accounts and addresses remembered; the longest unused are forgotten first
_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")


class TooMany(Refused):
    """retry_after: seconds."""

    def __init__(self, what: str, retry_after: float) -> None:
        self.retry_after = max(1, ceil(retry_after))
        message = f"too many failures to sign in {what}"
        super().__init__(Code.TOO_MANY, message, hint=f"try again in {self.retry_after} s")


class Attempts:
    """Counts failures by account and by address. Thread-safe; kept in memory, for the one web process there is.

    An attempt counts as a failure until `forgive` is called: many at once get no further than one by one.
    """

    def __init__(self, most: int, within: timedelta, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._within = within.total_seconds()
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def begin(self, user: str, address: str) -> None:
        """Raises TooMany, which then counts as no further failure."""
        now = self._clock()
        with self._lock:
            keys = self._keys(user, address)
            for key, most, what in keys:
                failures = self._recent(key, now)
                if len(failures) >= most:
                    raise TooMany(what, failures[0] + self._within - now)
            for key, _, _ in keys:
                self._failures[key].append(now)

    def forgive(self, user: str, address: str) -> None:
        """It was right: the account starts anew, the address gets its attempt back and keeps what else it failed."""
        with self._lock:
            account, place = (key for key, _, _ in self._keys(user, address))
            self._failures.pop(account, None)
            if failures := self._failures.get(place):
                failures.pop()

    def _keys(self, user: str, address: str) -> tuple[tuple[str, int, str], ...]:
        return (
            (f"u:{user}", self._most, "to this account"),
            (f"a:{network(address)}", self._most * _PER_ADDRESS, "from your address"),
        )

    def _recent(self, key: str, now: float) -> deque[float]:
        failures = self._failures.setdefault(key, deque())
        self._failures.move_to_end(key)
        while failures and failures[0] <= now - self._within:
            failures.popleft()
        while len(self._failures) > _MOST_KEYS:
            self._failures.popitem(last=False)
        return failures


def network(address: str) -> str:
    """What one person is likely to hold: an IPv4 address, a /64 of IPv6."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        mapped = found.ipv4_mapped
        return str(mapped) if mapped else str(ipaddress.IPv6Network((found, 64), strict=False))
    return str(found)


class Door:
    """What signing in needs beside the store: made once for each web process."""

    def __init__(self, config: Config) -> None:
        settings: PeopleConfig = config.people
        self.passwords = Passwords(settings.hashing)
        self.attempts = Attempts(settings.failures, settings.failures_in)
        self.openid = config.oidc


def check(store: Store, door: Door, user: str, password: str, address: str) -> Principal:
    """Who this is. Refused(UNAUTHENTICATED), without saying what was wrong, Refused(DENIED); TooMany."""
    user = user.strip().lower()
    door.attempts.begin(user[:64], address)
    u = t.users.c
    with store.read() as c:
        row = c.execute(sa.select(u.name, u.admin, u.enabled, u.password).where(u.name == user)).first()
        roles = people.roles_of(c, user)
    right = door.passwords.matches(row.password if row is not None else "", password)
    if row is None or not right or not row.enabled:
        shown = user if _NAME.fullmatch(user) else "?"
        with store.write() as c:
            operations.note(c, shown, "sign-in failed", utcnow(), address=address)
        hint = "ask an admin of the testbed for a new link if you forgot it"
        raise Refused(Code.UNAUTHENTICATED, "the user or the password is not right", hint=hint)
    door.attempts.forgive(user[:64], address)
    with store.read() as c:
        passwords_off.check(c, door.openid, user)
    if door.passwords.stale(row.password):
        fresh = door.passwords.hash(password, user)
        with store.write() as c:
            c.execute(t.users.update().where(u.name == user, u.password == row.password).values(password=fresh))
    return Principal(row.name, row.admin, roles, address=address)

"""Limits on sign-in attempts. Failures make the next attempt wait, up to a bound; none locks an account.

An unknown browser is counted three times: by account and address together, which stops guessing from one address
without affecting the owner of the account elsewhere; by address, against one client that tries many accounts; and by
account, against guesses from many addresses. A browser in which the account's user signed in before has a counter of
its own, so that failures of others do not slow it down. Counters are kept in memory, for the only web process.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from slicemgr.config import PeopleConfig
from slicemgr.errors import Busy, Code

_WIDER = 3  # times as many free failures for all of an address or an account: people share addresses
_MOST_COUNTERS = 50_000  # the longest unused are forgotten first
_DOUBLINGS = 30


class TooMany(Busy):
    """A sign-in attempt that came too early. retry_after: seconds."""

    def __init__(self, what: str, retry_after: float, hint: str = "") -> None:
        left = max(1, ceil(retry_after))
        again = f"try again in {left} s" if left < 120 else f"try again in {ceil(left / 60)} minutes"
        hint = f"{again}, {hint}" if hint else again
        super().__init__(Code.TOO_MANY, f"too many failed sign-in attempts {what}", hint=hint, retry_after=left)


@dataclass(slots=True)
class _Counter:
    failures: int = 0
    last: float = 0.0


@dataclass(frozen=True, slots=True)
class Rule:
    """One counter of an attempt: the first `free` failures cause no wait, then each wait doubles up to `longest`
    seconds.
    """

    key: tuple[str, ...]
    free: int
    longest: float
    what: str
    hint: str = ""


class Attempts:
    """Thread-safe. An attempt counts as a failure until `forgive`, so concurrent attempts gain nothing over sequential
    ones.
    """

    def __init__(self, settings: PeopleConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.on_refusal: Callable[[], object] = lambda: None
        self._free = settings.failures
        self._first = settings.delay.total_seconds()
        self._longest = settings.delay_longest.total_seconds()
        self._longest_account = min(self._longest, settings.delay_account.total_seconds())
        self._kept = settings.failures_in.total_seconds()
        self._clock = clock
        self._lock = threading.Lock()
        self._counters: OrderedDict[tuple[str, ...], _Counter] = OrderedDict()

    def begin(self, user: str, address: str, browser: str = "") -> None:
        """Count an attempt. browser: the known browser or the session of the request, "" for none. A TooMany is not
        counted.
        """
        now = self._clock()
        with self._lock:
            rules = self.rules(user, address, browser)
            for rule in rules:
                left = self._wait(rule, now)
                if left > 0:
                    self.on_refusal()
                    raise TooMany(rule.what, left, rule.hint)
            for rule in rules:
                counter = self._counters.setdefault(rule.key, _Counter())
                self._counters.move_to_end(rule.key)
                counter.failures, counter.last = counter.failures + 1, now
            while len(self._counters) > _MOST_COUNTERS:
                self._counters.popitem(last=False)

    def forgive(self, user: str, address: str, browser: str = "") -> None:
        """The attempt succeeded: reset the first counter and take this attempt off the others; their other failures
        remain.
        """
        with self._lock:
            first, *others = self.rules(user, address, browser)
            self._counters.pop(first.key, None)
            for rule in others:
                if counter := self._counters.get(rule.key):
                    counter.failures = max(0, counter.failures - 1)

    def rules(self, user: str, address: str, browser: str) -> tuple[Rule, ...]:
        """The counters of an attempt, the most specific first."""
        if browser:
            return (Rule(("browser", user, browser), self._free, self._longest, "in this browser"),)
        place, wider = network(address), self._free * _WIDER
        known = "or use a browser in which you have signed in before"
        return (
            Rule(("both", user, place), self._free, self._longest, "to this account from your address", known),
            Rule(("address", place), wider, self._longest, "from your address", known),
            Rule(("account", user), wider, self._longest_account, "to this account", known),
        )

    def _wait(self, rule: Rule, now: float) -> float:
        """Seconds until the next attempt is allowed. A counter without attempts for `failures_in` is deleted."""
        counter = self._counters.get(rule.key)
        if counter is None:
            return 0.0
        if now - counter.last >= max(self._kept, rule.longest):
            del self._counters[rule.key]
            return 0.0
        more = counter.failures - rule.free
        if more < 0:
            return 0.0
        return counter.last + min(rule.longest, self._first * 2.0 ** min(more, _DOUBLINGS)) - now


def network(address: str) -> str:
    """The network that one person probably controls: an IPv4 address, or a /64 of IPv6."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        mapped = found.ipv4_mapped
        return str(mapped) if mapped else str(ipaddress.IPv6Network((found, 64), strict=False))
    return str(found)

"""Write the rules to the kernel's legacy tables by python-iptables: read, change and commit a table in one step.

Rules are encoded into the kernel's format once and cached, so that a table of thousands of rules is written within
milliseconds. Neither this module nor libiptc is thread-safe; `Firewall` holds a lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from slicemgr.drivers.network.firewall_rules import PREFIX
from slicemgr.drivers.network.firewall_table import Rule, Table, changes, wrong_counts
from slicemgr.errors import Failed

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it imports distutils
    import iptc

LOCK = Path("/run/xtables.lock")  # the lock that `iptables -w` waits for
LOCK_TIMEOUT = 20.0  # seconds
ATTEMPTS = 3
MOST_ENCODED = 1 << 15  # cached rules in the kernel's format, about 400 bytes each


class LegacyTables:
    """The back end that uses libiptc."""

    name = "legacy"

    def __init__(self) -> None:
        self._encoded: dict[tuple[bool, Rule], Any] = {}

    def apply(self, steps: Sequence[tuple[Table, Table | None]]) -> None:
        """Write the own part of each table, as a whole if its predecessor is None. Raises Failed."""
        for table, previous in steps:
            self._retry(table, previous)

    def remove(self, tables: Sequence[Table]) -> None:
        """Remove every own chain and every jump to one. Raises Failed."""
        for table in tables:
            if _has_chains(table):
                self._retry(Table(table.ipv6, table.name, (), {}), None)

    def problems(self, tables: Sequence[Table]) -> list[str]:
        """The differences from `tables` in jumps, chains and the number of rules of each chain."""
        found: list[str] = []
        for table in tables:
            with _open(table) as handle:
                for builtin, chain in table.jumps:
                    targets = list(_targets(handle, builtin))
                    if targets[:1] != [chain] or targets.count(chain) != 1:
                        found.append(f"{table.title}: {builtin} does not begin with one jump to {chain}")
                there = {chain: sum(1 for _ in _entries(handle, chain)) for chain in _own_chains(handle)}
                found += wrong_counts(table, there)
        return found

    def _retry(self, table: Table, previous: Table | None) -> None:
        """Commit, and retry with a full write: a program without the lock may interfere or remove own chains."""
        for attempt in range(ATTEMPTS):
            try:
                self._commit(table, previous)
            except iptc.IPTCError as error:
                if attempt == ATTEMPTS - 1:
                    raise Failed(f"cannot write the {table.title}: {error}") from error
                previous = None
            else:
                return

    def _commit(self, table: Table, previous: Table | None) -> None:
        written, stale = changes(table, previous)
        with _open(table) as handle:
            if previous is None:
                there = _own_chains(handle)
                stale = there - table.chains.keys()
            else:
                there = {name for name in written | stale if handle.is_chain(name)}
            missing = self._drop_jumps(handle, table)
            for name in sorted((written | stale) & there):
                handle.flush_entries(name)
            for name in sorted(written - there):
                handle.create_chain(name)
            for name in sorted(written):
                for rule in table.chains[name]:
                    handle.append_entry(name, self._buffer(table.ipv6, rule))
            for builtin, chain in missing:
                handle.insert_entry(builtin, self._buffer(table.ipv6, Rule(chain)), 0)
            for name in sorted(stale & there):
                handle.delete_chain(name)
            handle.commit()

    def _drop_jumps(self, handle: Any, table: Table) -> list[tuple[str, str]]:
        """Remove misplaced jumps to own chains; return the jumps to insert."""
        missing: list[tuple[str, str]] = []
        for builtin in _builtin_chains(handle):
            wanted = [chain for name, chain in table.jumps if name == builtin]
            targets = list(_targets(handle, builtin))
            own = [target for target in targets if target.startswith(PREFIX)]
            if own == wanted == targets[: len(wanted)]:
                continue
            for chain in own:
                jump = _encode(table.ipv6, Rule(chain))
                handle.delete_entry(builtin, jump.rule, jump.mask)
            missing += [(builtin, chain) for chain in wanted]
        return missing

    def _buffer(self, ipv6: bool, rule: Rule) -> Any:
        buffer = self._encoded.get((ipv6, rule))
        if buffer is None:
            if len(self._encoded) >= MOST_ENCODED:
                self._encoded.clear()
            buffer = self._encoded[ipv6, rule] = _encode(ipv6, rule).rule
        return buffer


class _Match(iptc.Match):  # type: ignore[misc]
    """A match with scratch space that stays allocated.

    Some extensions (here: hashlimit) write into it when they parse an option. `iptc.Match.reset` frees it as soon as it
    returns, so that they would write into memory that another object may have got.
    """

    _scratch: ClassVar[dict[tuple[int, str], Any]] = {}  # by family and module: libxtables keeps the pointer

    def reset(self) -> None:
        super().reset()
        if self._module.udata_size:
            key = (self._rule.nfproto, self._name)
            if key not in self._scratch:
                self._scratch[key] = ctypes.create_string_buffer(self._module.udata_size)
            ctypes.memset(self._scratch[key], 0, self._module.udata_size)
            self._module.udata = ctypes.addressof(self._scratch[key])


class _PureRule(iptc.Rule):  # type: ignore[misc]
    """A rule that is encoded without a search through every table for the names of chains."""

    tables = property(lambda self: [_OwnChains])


class _PureRule6(iptc.Rule6):  # type: ignore[misc]
    tables = property(lambda self: [_OwnChains])


class _OwnChains:
    @staticmethod
    def is_chain(name: str) -> bool:
        return name.startswith(PREFIX)


def _encode(ipv6: bool, rule: Rule) -> Any:
    entry = _PureRule6() if ipv6 else _PureRule()
    for attribute, value in (
        ("protocol", rule.protocol),
        ("src", rule.source),
        ("dst", rule.destination),
        ("in_interface", rule.in_link),
        ("out_interface", rule.out_link),
    ):
        if value:
            setattr(entry, attribute, value)
    for module, options in rule.matches:
        match = _Match(entry, module)
        entry.add_match(match)
        for option, value in options:
            setattr(match, option.replace("-", "_"), value)
    target = entry.create_target(rule.target, goto=rule.goto)
    for option, value in rule.options:
        setattr(target, option.replace("-", "_"), value)
    entry.final_check()
    return entry


@contextlib.contextmanager
def _open(table: Table) -> Iterator[Any]:
    """The table as the kernel has it, under the lock that iptables programs share; closed without a commit."""
    with _lock():
        kind = iptc.Table6 if table.ipv6 else iptc.Table
        handle = kind(table.name, autocommit=False)
        handle.refresh()
        try:
            yield handle
        finally:
            handle.close()


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    descriptor = os.open(LOCK, os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + LOCK_TIMEOUT
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Failed(f"another program has held {LOCK} for {LOCK_TIMEOUT:g} s") from None
                time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def _has_chains(table: Table) -> bool:
    """Whether own chains exist. A table that the kernel has not created yet is not opened."""
    path = _names_file(table.ipv6)
    if not path.exists() or table.name not in path.read_text().split():
        return False
    with _open(table) as handle:
        return bool(_own_chains(handle))


def _names_file(ipv6: bool) -> Path:
    """The file with the names of the tables that exist in the thread's network namespace."""
    return Path("/proc/thread-self/net") / ("ip6_tables_names" if ipv6 else "ip_tables_names")


def _builtin_chains(handle: Any) -> list[str]:
    hooks = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
    return [hook for hook in hooks if handle.builtin_chain(hook)]


def _own_chains(handle: Any) -> set[str]:
    return {chain.name for chain in handle.chains if chain.name.startswith(PREFIX)}


def _entries(handle: Any, chain: str) -> Iterator[Any]:
    entry = handle.first_rule(chain)
    while entry:
        yield entry
        entry = handle.next_rule(entry)


def _targets(handle: Any, chain: str) -> Iterator[str]:
    for entry in _entries(handle, chain):
        yield (handle.get_target(entry) or b"").decode()

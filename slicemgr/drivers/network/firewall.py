"""Write the rules of `firewall_rules` to the host's packet filter, by one of two back ends.

Only the chains `SLICEMGR-*` and the jumps to them are changed. A change rewrites the chains that differ from the last
write of this process; `full` writes all.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slicemgr.config import NetworkConfig
from slicemgr.drivers import command
from slicemgr.drivers.network import conntrack, firewall_trial, fragments
from slicemgr.drivers.network.firewall_restore import RestoreProgram
from slicemgr.drivers.network.firewall_rules import Published, tables
from slicemgr.drivers.network.firewall_table import Table
from slicemgr.errors import Code, Refused

log = logging.getLogger(__name__)


class Backend(Protocol):
    """An interface to the kernel's rules."""

    name: str

    def apply(self, steps: Sequence[tuple[Table, Table | None]]) -> None: ...

    def remove(self, tables: Sequence[Table]) -> None: ...

    def problems(self, tables: Sequence[Table]) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Facts:
    """The properties of the host that the choice depends on.

    program: nft, legacy or "" (no `iptables`). others: other users of nft. fault: why python-iptables cannot write the
    rules into the kernel's legacy tables, "" if it can.
    """

    legacy_tables: bool
    program: str
    others: str = ""
    fault: str = ""

    @property
    def obstacle(self) -> str:
        """Why the legacy back end cannot be used; "" if it can."""
        if not self.legacy_tables:
            return "this kernel has no legacy tables"
        return f"python-iptables cannot write the rules here: {self.fault}" if self.fault else ""


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen back end, `legacy` or `restore`, and the reason."""

    name: str
    reason: str


def choose(setting: str, facts: Facts) -> Choice:
    """The back end for `network.firewall`. Raises Refused if the host does not support it, or supports none."""
    if setting == "legacy" and facts.obstacle:
        raise Refused(Code.INVALID, facts.obstacle, hint="auto or restore", field="network.firewall")
    if setting != "legacy" and not facts.program and (setting == "restore" or facts.obstacle):
        problem = "there is no iptables program"
        if facts.fault and setting == "auto":
            problem += f", and {facts.obstacle}"
        raise Refused(Code.INVALID, problem, hint="install iptables", field="network.firewall")
    if setting != "auto":
        return Choice(setting, "set by network.firewall")
    if facts.obstacle:
        return Choice("restore", facts.obstacle)
    if facts.program == "nft" and facts.others:
        return Choice("restore", f"the host's iptables is the nft one, and in use: {facts.others}")
    if facts.program == "nft":
        return Choice("legacy", "the kernel has legacy tables, and no program uses nftables")
    return Choice("legacy", "the kernel has legacy tables, and the host's iptables uses them")


def gather_facts(network: NetworkConfig) -> Facts:
    """The facts of the calling thread's network namespace. It starts programs and changes nothing."""
    program, others = "", ""
    try:
        version = command.run(["iptables", "--version"], timeout=10).decode(errors="replace")
        program = "nft" if "nf_tables" in version else "legacy"
    except command.CommandFailed as error:
        log.info("no iptables program: %s", error)
    if program == "nft":
        saved = RestoreProgram().saved(ipv6=False)
        others = ", ".join(f"table {name}" for name, table in saved.items() if table.foreign)
        others = others or _native_tables()
    fault = firewall_trial.fault(network)  # loads the kernel's module, if it exists
    return Facts(_legacy_supported(), program, others, fault)


def _native_tables() -> str:
    """nft tables that do not belong to iptables, such as firewalld's; "" without the program `nft`."""
    if not any((Path(place) / "nft").exists() for place in ("/usr/sbin", "/sbin", "/usr/bin")):
        return ""
    listed = command.run(["nft", "list", "tables"], timeout=10).decode(errors="replace").splitlines()
    of_iptables = {f"table {family} {name}" for family in ("ip", "ip6") for name in ("filter", "nat", "raw", "mangle")}
    ours = {f"table inet {fragments.TABLE}", "table ip security", "table ip6 security"}
    return ", ".join(sorted(set(listed) - of_iptables - ours))


def _legacy_supported() -> bool:
    """Whether this kernel has legacy tables. The check creates none."""
    return Path("/proc/thread-self/net/ip_tables_names").exists()


class Firewall:
    """The packet filter of the node. Thread-safe; one per node."""

    def __init__(self, network: NetworkConfig) -> None:
        self._network = network
        self._lock = threading.Lock()
        self._tickets = threading.Lock()
        self._asked = 0  # number of calls of replace, and of those that are served
        self._served = 0
        self._choice: Choice | None = None
        self._facts: Facts | None = None
        self._backends: dict[str, Backend] = {}
        self._written: dict[str, Table] = {}
        self._owners: dict[str, Published] | None = None  # by address
        self._gone: set[str] = set()  # addresses released since connections were last deleted

    @property
    def backend(self) -> str:
        """`legacy` or `restore`, as chosen at the last full replace, or now if there was none."""
        with self._lock:
            return (self._choice or self._choose()).name

    @property
    def reason(self) -> str:
        """The reason for this back end."""
        with self._lock:
            return (self._choice or self._choose()).reason

    def replace(
        self, published: Collection[Published] | Callable[[], Collection[Published]], *, full: bool = False
    ) -> None:
        """Replace the host's rules by those that these slivers need.

        published: the slivers, or a function that returns them. A thread that reads rows and then waits here could
        overwrite newer rules; a function is called when it is the thread's turn, and one write serves all waiting
        threads. full: choose the back end again and write every chain and jump; otherwise only the chains that differ
        from the last write of this object (the first call is always full). Raises Refused if no back end is usable,
        and Failed if a write failed: each table is then unchanged or complete, and the next call is full.
        """
        with self._tickets:
            self._asked += 1
            ticket = self._asked
        with self._lock:
            if callable(published):
                if ticket <= self._served and not full:
                    return
                with self._tickets:
                    newest = self._asked
                self._write(published(), full)
                self._served = newest
            else:
                self._write(published, full)

    def _write(self, published: Collection[Published], full: bool) -> None:
        wanted = {table.title: table for table in self._tables(published)}
        before, self._written = self._written, {}
        full = full or before.keys() != wanted.keys()
        choice = self._choose() if full or self._choice is None else self._choice
        steps = [(table, None if full else before[title]) for title, table in wanted.items()]
        changed = [(new, old) for new, old in steps if old is None or new.chains != old.chains]
        self._backend(choice.name).apply(changed)
        if full:
            self._leave_other_place(choice)
        self._forget_predecessors(published)
        self._written = wanted

    def remove(self) -> None:
        """Remove all own chains and jumps by both back ends. Raises Failed."""
        with self._lock:
            self._written, self._owners, facts = {}, None, gather_facts(self._network)
            if facts.program:
                self._backend("restore").remove(self._tables(()))
            self._clear_legacy(facts)

    def check(self) -> list[str]:
        """The differences between the host's rules and the last replace, as texts; [] if there are none."""
        with self._lock:
            if self._choice is None or not self._written:
                return ["the rules have not been written yet"]
            return self._backend(self._choice.name).problems(list(self._written.values()))

    def busiest(self) -> dict[str, int]:
        """The number of connections of each published sliver that has reached `network.connections`. Raises OSError.

        Ended connections that the kernel still tracks are included.
        """
        with self._lock:
            slivers = {socket.inet_aton(address): one.sliver for address, one in (self._owners or {}).items()}
        found = conntrack.count(slivers)
        return {slivers[address]: count for address, count in found.items() if count >= self._network.connections}

    @property
    def published(self) -> int:
        """The number of slivers in the last replace."""
        with self._lock:
            return len(self._owners or {})

    def _tables(self, published: Collection[Published]) -> list[Table]:
        """The tables, without those for IPv6 if the kernel runs without it."""
        ipv6 = Path("/proc/thread-self/net/if_inet6").exists()
        return [table for table in tables(published, self._network) if ipv6 or not table.ipv6]

    def _choose(self) -> Choice:
        self._facts = gather_facts(self._network)
        choice = choose(self._network.firewall, self._facts)
        if choice != self._choice:
            log.info("packet filter by %s: %s", choice.name, choice.reason)
        self._choice = choice
        return choice

    def _leave_other_place(self, choice: Choice) -> None:
        """Remove the rules of an earlier back end. Two places for rules exist only with the nft program."""
        if self._facts is None or self._facts.program != "nft":
            return
        if choice.name == "legacy":
            self._backend("restore").remove(self._tables(()))
        else:
            self._clear_legacy(self._facts)

    def _clear_legacy(self, facts: Facts) -> None:
        """Remove legacy rules that an earlier version wrote, by the host's program if the library cannot."""
        if facts.legacy_tables and not facts.fault:
            self._backend("legacy").remove(self._tables(()))
        elif facts.legacy_tables and facts.program == "nft":
            RestoreProgram("-legacy").remove(self._tables(()))

    def _backend(self, name: str) -> Backend:
        if name not in self._backends:
            if name == "restore":
                self._backends[name] = RestoreProgram()
            else:
                from slicemgr.drivers.network.firewall_legacy import LegacyTables  # its libraries may be missing

                self._backends[name] = LegacyTables()
        return self._backends[name]

    def _forget_predecessors(self, published: Collection[Published]) -> None:
        """Delete the open connections of addresses whose owner has changed.

        They are deleted when an address is used again, not when it is released: one dump of all connections then
        serves every address released since. At the first call, the connections of all unused addresses of the pool
        are deleted.
        """
        before, owners = self._owners, {one.address: one for one in published}
        if before is None:
            pool = ipaddress.ip_network(self._network.addresses)
            conntrack.forget(lambda source: source in pool and str(source) not in owners)
        else:
            self._gone |= {address for address, one in before.items() if owners.get(address) != one}
            if self._gone & owners.keys():
                gone, self._gone = frozenset(self._gone), set()
                conntrack.forget(lambda source: str(source) in gone)
        self._owners = owners

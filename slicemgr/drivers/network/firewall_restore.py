"""Write the rules by the host's own `iptables-restore`, the program that the host's other software uses.

With the nft variant, slicemgr's chains are then in the same tables as those of Docker, ufw and firewalld. The output of
`iptables-save` is read only for the names of own chains and for own jumps, never for the meaning of rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from slicemgr.drivers import command
from slicemgr.drivers.network.firewall_rules import PREFIX
from slicemgr.drivers.network.firewall_table import Table, changes, restore_text, wrong_counts
from slicemgr.errors import Failed

TIMEOUT = 60.0  # seconds
WAIT = "20"  # seconds that the program waits for the lock of the legacy tables
ATTEMPTS = 3


@dataclass
class Saved:
    """The content of one table by `iptables-save`. first: the first rule of each built-in chain."""

    policies: dict[str, str] = field(default_factory=dict)
    chains: set[str] = field(default_factory=set)
    rules: Counter[str] = field(default_factory=Counter)
    jumps: Counter[tuple[str, str]] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    @property
    def foreign(self) -> bool:
        """Whether other software has a policy, a chain or a rule in this table."""
        others = {name for name in self.chains if not name.startswith(PREFIX)}
        own_jumps = sum(self.jumps.values())
        rules = sum(count for name, count in self.rules.items() if not name.startswith(PREFIX))
        return bool(others) or rules > own_jumps or any(policy != "ACCEPT" for policy in self.policies.values())

    @property
    def own(self) -> dict[str, int]:
        """The own chains with their numbers of rules."""
        return {name: self.rules[name] for name in self.chains if name.startswith(PREFIX)}


def parse_saved(text: str) -> dict[str, Saved]:
    """The tables in the output of `iptables-save`."""
    tables: dict[str, Saved] = {}
    table = Saved()
    for line in text.splitlines():
        if line.startswith("*"):
            table = tables.setdefault(line[1:], Saved())
        elif line.startswith(":"):
            name, policy = line[1:].split()[:2]
            if policy == "-":
                table.chains.add(name)
            else:
                table.policies[name] = policy
        elif line.startswith("-A "):
            _, chain, rule = line.split(" ", 2)
            table.rules[chain] += 1
            table.first.setdefault(chain, rule)
            if rule.startswith(f"-j {PREFIX}") and not chain.startswith(PREFIX):
                table.jumps[chain, rule.removeprefix("-j ")] += 1
    return tables


class RestoreProgram:
    """The back end that uses `iptables-restore --noflush`: one process per family, one commit per table."""

    name = "restore"

    def __init__(self, variant: str = "") -> None:
        """variant: `-legacy` for the program that always uses the legacy tables; "" for the host's default."""
        self._variant = variant

    def apply(self, steps: Sequence[tuple[Table, Table | None]]) -> None:
        """Write the own part of each table, as a whole if its predecessor is None. Raises Failed."""
        for family in {table.ipv6 for table, _ in steps}:
            self._retry(family, [step for step in steps if step[0].ipv6 is family])

    def remove(self, tables: Sequence[Table]) -> None:
        """Remove every own chain and every jump to one. Raises Failed."""
        for family in {table.ipv6 for table in tables}:
            saved = self.saved(family)
            mine = [one for one in tables if one.ipv6 is family and saved.get(one.name, Saved()).own]
            self._retry(family, [(Table(family, table.name, (), {}), None) for table in mine])

    def problems(self, tables: Sequence[Table]) -> list[str]:
        """The differences from `tables` in jumps, chains and the number of rules of each chain."""
        found: list[str] = []
        for family in {table.ipv6 for table in tables}:
            saved = self.saved(family)
            for table in (one for one in tables if one.ipv6 is family):
                there = saved.get(table.name, Saved())
                for builtin, chain in table.jumps:
                    if there.first.get(builtin) != f"-j {chain}" or there.jumps[builtin, chain] != 1:
                        found.append(f"{table.title}: {builtin} does not begin with one jump to {chain}")
                found += wrong_counts(table, there.own)
        return found

    def saved(self, ipv6: bool) -> dict[str, Saved]:
        """The tables as the host's own program saves them, by name. Raises Failed."""
        try:
            return parse_saved(command.run([self._program(ipv6, "save")], timeout=TIMEOUT).decode(errors="replace"))
        except command.CommandFailed as error:
            raise Failed(f"cannot read the packet filter: {error}") from error

    def _retry(self, ipv6: bool, steps: Sequence[tuple[Table, Table | None]]) -> None:
        """Commit, and retry with a full write: other software may have removed own chains or replaced them."""
        for attempt in range(ATTEMPTS):
            try:
                self._commit(ipv6, steps)
            except command.CommandFailed as error:
                if attempt == ATTEMPTS - 1:
                    raise Failed(f"cannot write the packet filter: {error}") from error
                steps = [(table, None) for table, _ in steps]
            else:
                return

    def _commit(self, ipv6: bool, steps: Sequence[tuple[Table, Table | None]]) -> None:
        anew = any(previous is None for _, previous in steps)
        text = ""
        saved = self.saved(ipv6) if anew else {}
        for table, previous in steps:
            written, stale = changes(table, previous)
            if previous is None:
                there = saved.get(table.name, Saved())
                text += restore_text(table, written, there.own.keys() - table.chains.keys(), there.jumps)
            elif written or stale:
                text += restore_text(table, written, stale)
        if text:
            argv = [self._program(ipv6, "restore"), "--noflush", "--wait", WAIT]
            command.run(argv, input=text.encode(), timeout=TIMEOUT)

    def _program(self, ipv6: bool, what: str) -> str:
        return f"{'ip6tables' if ipv6 else 'iptables'}{self._variant}-{what}"

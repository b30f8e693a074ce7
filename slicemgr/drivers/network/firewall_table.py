"""A table of the packet filter as plain data: rules, their iptables syntax, and changes between versions. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Match(NamedTuple):
    """One `-m module` with its options; a flag has the value "", and a leading `!` negates a value."""

    module: str
    options: tuple[tuple[str, str], ...]


class Rule(NamedTuple):
    """One rule. A leading `!` negates an address, links may end in `+`, and "" matches anything."""

    target: str
    options: tuple[tuple[str, str], ...] = ()
    protocol: str = ""
    source: str = ""
    destination: str = ""
    in_link: str = ""
    out_link: str = ""
    matches: tuple[Match, ...] = ()
    goto: bool = False


Chain = tuple[Rule, ...]


@dataclass(frozen=True)
class Table:
    """The own part of a table: own chains, and jumps (built-in chain, own chain), each first in its built-in chain."""

    ipv6: bool
    name: str
    jumps: tuple[tuple[str, str], ...]
    chains: dict[str, Chain]

    @property
    def title(self) -> str:
        """The name of the table for messages, such as `IPv4 filter table`."""
        return f"{'IPv6' if self.ipv6 else 'IPv4'} {self.name} table"


def rule_words(rule: Rule) -> list[str]:
    """The rule in the syntax of `iptables`, without the chain."""
    words: list[str] = []
    for flag, value in (
        ("-s", rule.source),
        ("-d", rule.destination),
        ("-i", rule.in_link),
        ("-o", rule.out_link),
        ("-p", rule.protocol),
    ):
        if value:
            words += ["!", flag, value[1:]] if value.startswith("!") else [flag, value]
    for match in rule.matches:
        words += ["-m", match.module]
        words += _option_words(match.options)
    return [*words, "-g" if rule.goto else "-j", rule.target, *_option_words(rule.options)]


def _option_words(options: tuple[tuple[str, str], ...]) -> Iterator[str]:
    for option, value in options:
        if value.startswith("!"):
            yield "!"
        yield f"--{option}"
        if value:
            yield value.removeprefix("!")


def changes(table: Table, previous: Table | None) -> tuple[set[str], set[str]]:
    """The chains to write and the chains to delete to change `previous` to `table`."""
    before = previous.chains if previous else {}
    written = {name for name, chain in table.chains.items() if before.get(name) != chain}
    return written, before.keys() - table.chains.keys()


def wrong_counts(table: Table, there: Mapping[str, int]) -> list[str]:
    """Problems with own chains. there: the number of rules of each existing own chain."""
    problems = [f"{table.title}: chain {name} is missing" for name in table.chains if name not in there]
    problems += [f"{table.title}: chain {name} is a leftover" for name in there if name not in table.chains]
    for name, chain in table.chains.items():
        if there.get(name, len(chain)) != len(chain):
            problems.append(f"{table.title}: chain {name} has {there[name]} rules instead of {len(chain)}")
    return problems


def restore_text(
    table: Table, written: Collection[str], stale: Collection[str], jumps: Mapping[tuple[str, str], int] | None = None
) -> str:
    """Input for `iptables-restore --noflush` that writes some chains and deletes others in one commit.

    jumps: the number of existing rules for each jump, which are then replaced; None changes no jumps.
    """
    lines = [f"*{table.name}", *(f":{name} - [0:0]" for name in (*sorted(written), *sorted(stale)))]
    for (builtin, chain), count in (jumps or {}).items():
        lines += [f"-D {builtin} -j {chain}"] * count
    if jumps is not None:
        lines += [f"-I {builtin} -j {chain}" for builtin, chain in table.jumps]
    for name in sorted(written):
        lines += [f"-A {name} {' '.join(rule_words(rule))}" for rule in table.chains[name]]
    lines += [f"-X {name}" for name in sorted(stale)]
    return "\n".join([*lines, "COMMIT", ""])

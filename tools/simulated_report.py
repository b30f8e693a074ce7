"""The figures of `tools/simulate.py` beside the aims for them."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from postgres_server import Server


@dataclass
class Aim:
    """A figure beside what it is to be at most."""

    what: str
    most: float
    unit: str
    figure: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.figure is None:
            return "not measured"
        return "met" if self.figure <= self.most else "missed"

    def line(self) -> str:
        figure = "-" if self.figure is None else f"{self.figure:.2f}"
        return f"{self.what:<52}{figure:>10} {self.unit:<6} at most {self.most:g}: {self.verdict} {self.note}"

    def row(self) -> str:
        """Of a table in Markdown."""
        figure = "-" if self.figure is None else f"{self.figure:.2f} {self.unit}"
        return f"| {self.what} | {self.most:g} {self.unit} | {figure} | {self.verdict} | {self.note.strip('()')} |"


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


@dataclass
class Aims:
    """Those that have been measured so far."""

    found: list[Aim] = field(default_factory=list)

    def add(self, *more: Aim) -> None:
        self.found.extend(more)
        for one in more:
            say(one.line())


def slowest(postgres: Server, most: int = 12) -> list[str]:
    """The statements on which the database has spent the most time, as rows of a table."""
    found = postgres.sql(
        "SELECT total_exec_time, calls, left(regexp_replace(query, '\\s+', ' ', 'g'), 150) FROM pg_stat_statements "
        f"JOIN pg_database d ON d.oid = dbid AND datname = 'simulated' ORDER BY 1 DESC LIMIT {most}",
        "simulated",
    )
    return [f"| {ms:.0f} | {calls} | {ms / calls:.2f} | `{text.replace('|', ' ')}` |" for ms, calls, text in found]


def table(
    aims: Sequence[Aim], slow: Sequence[str], options: argparse.Namespace, minutes: float, load: float, failed: str
) -> str:
    """The report, in Markdown. load: average of the machine before."""
    lines = [
        f"Simulation of {options.nodes} nodes ({options.links} with real links) and {options.slivers} slivers",
        f"in {minutes:.0f} minutes on {os.cpu_count()} cores; load average before: {load:.1f}. {failed}",
        "",
        *("| Aim | at most | measured | verdict | |", "|---|---|---|---|---|"),
        *(one.row() for one in aims),
        *("", "Statements with the most time in PostgreSQL:", "", "| ms | calls | ms each | statement |"),
        *("|---|---|---|---|", *slow),
    ]
    return "\n".join(lines) + "\n"

"""Rows on stdout as table, compact, json, yaml or csv; `-c` chooses the columns.

table and compact are for people: sizes and times in words, control characters replaced, and cut to the width
of the terminal if there is one. The others are data: the API's own values.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from slicemgr.cli.render.human import printable, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Row = Mapping[str, Any]

Command = TypeVar("Command", bound="Callable[..., Any]")

FORMATS = ("table", "compact", "json", "yaml", "csv")
_NARROWEST = 8  # characters of a column that is cut


class Column(NamedTuple):
    """One column: its name, how to get its value from a row, and how to print that for people.

    whole: never cut, because a part of it is of no use.
    """

    name: str
    get: Callable[[Any], Any]
    human: Callable[[object], str] = text
    whole: bool = False


def field(name: str, human: Callable[[object], str] = text, *, whole: bool = False) -> Column:
    """The column of the field of that name; `limits.memory`, a field of an inner object, is the column `memory`."""
    path = name.split(".")

    def get(row: Row) -> object:
        value: Any = row
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    return Column(path[-1], get, human, whole)


class Table(NamedTuple):
    """All columns, and the names of those that are printed by default.

    varied: those that are printed, after the first one, only if the rows differ in them.
    """

    columns: tuple[Column, ...]
    default: tuple[str, ...]
    varied: tuple[str, ...] = ()


class Output:
    """The options of the output of one table. columns: None for the default."""

    def __init__(self, table: Table, format: str, columns: tuple[str, ...] | None, header: bool) -> None:
        self.table = table
        self.format = format
        self.chosen = columns
        self.header = header

    @property
    def for_people(self) -> bool:
        return self.format in ("table", "compact")

    def of(self, table: Table) -> Output:
        """The same options for another table. Raises click.UsageError if it lacks one of the columns."""
        known = [one.name for one in table.columns]
        for name in self.chosen or ():
            if name not in known:
                raise click.UsageError(f"there is no column {name!r} here; the columns are {', '.join(known)}")
        return Output(table, self.format, self.chosen, self.header)

    def show(self, rows: Sequence[Row], data: object = None) -> None:
        """Print the rows. data: what json and yaml print when no columns were chosen, instead of the rows."""
        if self.format in ("json", "yaml"):
            objects = [{one.name: one.get(row) for one in self._columns(all_of_them=True)} for row in rows]
            whole = rows if data is None else data
            write((as_json if self.format == "json" else as_yaml)(objects if self.chosen else whole))
        elif self.format == "csv":
            columns = self._columns(all_of_them=True)
            write(as_csv(columns, rows, header=self.header))
        else:
            width = terminal_width() if self.format == "table" else None
            rule = self.format == "table"
            write(as_table(self._columns(rows), rows, header=self.header, rule=rule, width=width))

    def _columns(self, rows: Sequence[Row] = (), *, all_of_them: bool = False) -> list[Column]:
        known = {one.name: one for one in self.table.columns}
        first, others = self.table.default[:1], self.table.default[1:]
        varied = [name for name in self.table.varied if len({str(known[name].get(row)) for row in rows}) > 1]
        names = self.chosen or (tuple(known) if all_of_them else (*first, *varied, *others))
        return [known[name] for name in names]


def output_options(table: Table, *, long: str = "--format") -> Callable[[Command], Command]:
    """`-f`, `-c` and `--no-header`; the command gets them as one argument, `output`.

    long: what `-f` is called in full, for a command whose `--format` means something else.
    """
    known = [one.name for one in table.columns]

    def choose(context: click.Context, _: click.Parameter, value: str | None) -> tuple[str, ...] | None:
        if value is None:
            return None
        names = tuple(name.strip() for name in value.split(",") if name.strip())
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            what = f"unknown column {unknown[0]!r}" if unknown else "no column given"
            raise click.BadParameter(f"{what}; the columns are {', '.join(known)}")
        return names

    def decorate(command: Command) -> Command:
        from functools import wraps

        @wraps(command)
        def with_output(*args: Any, how: str, columns: tuple[str, ...] | None, no_header: bool, **rest: Any) -> Any:
            return command(*args, output=Output(table, how, columns, not no_header), **rest)

        for option in (
            click.option("--no-header", is_flag=True, help="Omit the heading line."),
            click.option(
                "-c", "--columns", callback=choose, metavar="COLUMNS", help=f"Columns to print, from {','.join(known)}."
            ),
            click.option("-f", long, "how", type=click.Choice(FORMATS), default="table", help="Output format."),
        ):
            with_output = option(with_output)
        return with_output  # type: ignore[return-value]  # the wrapped command, with three options more

    return decorate


def write(whole: str) -> None:
    sys.stdout.write(whole)


def as_json(data: object) -> str:
    return json.dumps(data, indent=2) + "\n"


def as_yaml(data: object) -> str:
    import yaml

    return str(yaml.safe_dump(data, sort_keys=False, default_flow_style=False))


def as_csv(columns: Sequence[Column], rows: Sequence[Row], *, header: bool) -> str:
    import csv
    import io

    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    if header:
        writer.writerow([one.name for one in columns])
    writer.writerows([[_csv_value(one.get(row)) for one in columns] for row in rows])
    return target.getvalue()


def _csv_value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return printable(value, keep="\n\t")
    return json.dumps(value)


def as_table(
    columns: Sequence[Column], rows: Sequence[Row], *, header: bool, rule: bool, width: int | None = None
) -> str:
    """Left-aligned columns two spaces apart. rule: a line below the header. width: of the terminal, if there is one."""
    lines = [[one.human(one.get(row)) for one in columns] for row in rows]
    if header:
        lines.insert(0, [one.name.upper() for one in columns])
    if not lines:
        return ""
    widths = [max(display_width(line[place]) for line in lines) for place in range(len(columns))]
    if width is not None:
        widths = _squeeze(widths, [one.whole for one in columns], width)
    if rule and header:
        lines.insert(1, ["-" * one for one in widths])
    return "".join("  ".join(map(_fit, line, widths)).rstrip() + "\n" for line in lines)


def _squeeze(widths: list[int], whole: list[bool], width: int) -> list[int]:
    """Cut the widest columns until the line fits or none can be cut further."""
    widths = list(widths)
    over = sum(widths) + 2 * (len(widths) - 1) - width
    while over > 0:
        place = max((one for one in range(len(widths)) if not whole[one]), key=widths.__getitem__, default=-1)
        if place < 0 or widths[place] <= _NARROWEST:
            break
        widths[place] -= 1
        over -= 1
    return widths


def _fit(cell: str, width: int) -> str:
    missing = width - display_width(cell)
    if missing >= 0:
        return cell + " " * missing
    while display_width(cell) > width - 1:
        cell = cell[:-1]
    return cell + "…"


def display_width(cell: str) -> int:
    """Terminal cells: a wide character takes two, a combining one none."""
    if cell.isascii():
        return len(cell)
    import unicodedata

    return sum(
        0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in ("W", "F")) for one in cell
    )


def terminal_width() -> int | None:
    """Columns of the terminal behind stdout; None if there is none."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError, AttributeError):
        return None

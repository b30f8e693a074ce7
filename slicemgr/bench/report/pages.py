"""Writes the reports of a run: report.html, a page without external resources, and report.md with its pictures."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2

from slicemgr.bench.frame import folder
from slicemgr.bench.frame.folder import Run
from slicemgr.bench.report import compare, not_measured, plots
from slicemgr.bench.report.content import Column, Content, Table, Value
from slicemgr.errors import Code, Refused, invalid
from slicemgr.human import printable, size, span

CONTENTS = {  # experiment → module with content(run)
    "scale": "slicemgr.bench.report.scale",
    "lifecycle": "slicemgr.bench.report.lifecycle",
    "throughput": "slicemgr.bench.report.throughput",
    "io": "slicemgr.bench.report.io",
    "sysbench": "slicemgr.bench.report.sysbench",
    "peers": "slicemgr.bench.report.peers",
    "nodes": "slicemgr.bench.report.nodes",
    "guests": "slicemgr.bench.report.guests",
    "memory": "slicemgr.bench.report.memory",
    "consolidation": "slicemgr.bench.report.consolidation",
}
_DASH = "–"
_WHAT = (
    ("experiment", "Experiment"),
    ("seed", "Seed"),
    ("slicemgr", "slicemgr"),
    ("commit", "Commit"),
    ("command", "Command line"),
    ("started", "Started"),
    ("finished", "Finished"),
)
_WHERE = (
    ("name", "Node"),
    ("cpu_model", "Processor"),
    ("cpus", "Cores"),
    ("memory", "Memory"),
    ("swap_total", "Swap"),
    ("kernel", "Kernel"),
    ("libvirt_lxc", "libvirt, lxc"),
    ("libvirt_kvm", "libvirt, kvm"),
    ("acceleration", "Machines run by"),
    ("filesystem", "File system of the pool"),
    ("disk_total", "Pool"),
    ("quota", "Disk quota"),
    ("cgroup", "Control groups"),
)
_SIZES = ("memory", "swap_total", "disk_total")

Pairs = list[tuple[str, str]]


def content(run: Run) -> Content:
    """The content of the report of a run. Raises Refused if the experiment is unknown or nothing was measured yet."""
    name = str(run.info["experiment"])
    if name not in CONTENTS:
        raise invalid("FOLDER", f"{name!r} is no experiment of this version", f"known: {', '.join(CONTENTS)}")
    try:
        made: Content = importlib.import_module(CONTENTS[name]).content(run)
    except ValueError as error:
        raise Refused(Code.CONFLICT, f"{run.folder} has nothing to report: {error}", field="FOLDER") from error
    plots.check(made.plots)
    return made


def write(run: Run, older: Run | None = None) -> list[Path]:
    """Write the reports and the data into the folder of the run. Returns the paths.

    older: a run to compare with. Raises Refused if matplotlib or scipy is missing, Failed if a file cannot be written.
    """
    if older is not None and older.info["experiment"] != run.info["experiment"]:
        message = f"{older.folder} is a run of {older.info['experiment']}, not of {run.info['experiment']}"
        raise invalid("--compare", message, "a run of the same experiment")
    made = content(run)
    beside = content(older) if older is not None else None
    words = context(run, made, older, beside)
    written = data(run, made)
    for one in made.plots:
        written.append(run.folder / f"{one.name}.png")
        folder.write(written[-1], plots.png(one))
    for name, text in (
        ("report.html", html(words, {one.name: plots.svg(one) for one in made.plots})),
        ("report.md", markdown(words)),
    ):
        written.append(run.folder / name)
        folder.write(written[-1], text)
    return written


def data(run: Run, made: Content) -> list[Path]:
    """Write data.csv with the rows of the experiment, and data.json with all measurements."""
    whole = {"run": run.info, "rows": list(made.data), "steps": list(run.steps.values())}
    files = {"data.csv": folder.as_csv(made.data), "data.json": json.dumps(whole, indent=1, allow_nan=False) + "\n"}
    for name, text in files.items():
        folder.write(run.folder / name, text)
    return [run.folder / name for name in files]


def context(run: Run, made: Content, older: Run | None, beside: Content | None) -> dict[str, Any]:
    """The variables of both templates."""
    info = run.info
    outcome = list(made.outcome)
    tables = list(made.tables)
    differs: list[str] = []
    if older is not None and beside is not None:
        compared = compare.table(made, beside)
        outcome.append(compare.sentence(compared))
        tables.append(compared)
        differs = compare.caveats(info, older.info)
    if info.get("outcome") not in ("done", "stopped"):
        outcome.insert(0, f"This run is not complete: {info.get('outcome')}{_because(info)}.")
    return {
        "content": made,
        "outcome": outcome,
        "tables": tables,
        "what": _what(info, run),
        "where": where(info),
        "noise": _noise(info),
        "older": str(older.info.get("started", "")) if older is not None else "",
        "differs": differs,
        "notes": [*info.get("notes", ()), *not_measured.sentences(run), *_jumps(run)],
    }


def _because(info: Mapping[str, Any]) -> str:
    return f" ({info['reason']})" if info.get("reason") else ""


def _what(info: Mapping[str, Any], run: Run) -> Pairs:
    pairs = [(label, cell(info.get(name))) for name, label in _WHAT]
    parameters = ", ".join(f"{name} {value}" for name, value in info.get("parameters", {}).items() if value != "")
    pairs.insert(1, ("Parameters", printable(parameters)))
    turns = info.get("turns", ())
    if turns:
        pairs.append(("Took", _took(turns)))
    pairs.append(("Outcome", printable(f"{info.get('outcome')}{_because(info)}")))
    pairs.append(("Steps", f"{len(run.steps)} of {info.get('planned', '?')}"))
    return pairs


def _took(turns: Sequence[Mapping[str, Any]]) -> str:
    seconds = sum(
        (datetime.fromisoformat(one["finished"]) - datetime.fromisoformat(one["started"])).total_seconds()
        for one in turns
    )
    return span(max(0.0, seconds)) + (f", in {len(turns)} turns" if len(turns) > 1 else "")


def where(info: Mapping[str, Any]) -> Pairs:
    """The facts about the node of a run."""
    node = info.get("node") or {}
    return [
        (label, size(node[name]) if name in _SIZES else cell(node[name])) for name, label in _WHERE if node.get(name)
    ]


def _noise(info: Mapping[str, Any]) -> str:
    noise = info.get("noise") or {}
    if noise.get("load") is None:
        return "not known"
    said = f"before the start a load of {noise['load']:g} on {noise.get('cpus', '?')} cores"
    return said + (f", {noise['slivers']} other slivers there" if noise.get("slivers") is not None else "")


def _jumps(run: Run) -> list[str]:
    return [
        f"the clock was set by {one['clock_jump']:+g} s during {one['title']}; durations are not affected by that"
        for one in run.steps.values()
        if one.get("clock_jump")
    ]


def cell(value: Value, column: Column | None = None) -> str:
    """A value as text for a table."""
    if value is None or value == "":
        return _DASH
    if isinstance(value, float):
        return f"{value:.{column.digits}f}" if column is not None and column.digits is not None else f"{value:.6g}"
    return printable(str(value))


def heading(column: Column) -> str:
    return f"{column.name} ({column.unit})" if column.unit else column.name


def numeric(table: Table, place: int) -> bool:
    """Whether a column has only numbers, so that it is aligned right."""
    return all(isinstance(row[place], int | float) or row[place] is None for row in table.rows)


def verdict(reached: bool | None) -> str:
    return {True: "reached", False: "NOT reached", None: "not measured"}[reached]


def html(context: Mapping[str, Any], svgs: Mapping[str, str]) -> str:
    """report.html. svgs: the pictures by the names of the plots; all other values are escaped as text."""
    return template("report.html", escape=True).render(**context, svgs=svgs)


def markdown(context: Mapping[str, Any]) -> str:
    return template("report.md", escape=False).render(**context)


def template(name: str, *, escape: bool) -> jinja2.Template:
    """A template of this folder. escape: escape all values as text of HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=escape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(cell=cell, heading=heading, verdict=verdict, plain=_plain)
    environment.globals["numeric"] = numeric
    return environment.get_template(name)


def _plain(text: object) -> str:
    """Text with the characters escaped that have a meaning in Markdown."""
    return "".join(f"\\{one}" if one in "\\`*_|<>[]#" else one for one in str(text)).replace("\n", " ")

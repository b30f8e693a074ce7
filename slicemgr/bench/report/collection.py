"""The page of `slicectl bench all`: the results and aims of each experiment, with links to its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slicemgr.bench.frame import folder
from slicemgr.bench.frame.collection import FAILED, LEFT_OUT, Collection, Part
from slicemgr.bench.frame.folder import Run
from slicemgr.bench.report import pages
from slicemgr.bench.report.content import Aim
from slicemgr.errors import Refused
from slicemgr.human import printable

_STATES = {"": "not run", "done": "done", "stopped": "stopped before its end", FAILED: "FAILED", LEFT_OUT: "left out"}


@dataclass(frozen=True, slots=True)
class Entry:
    """An experiment on the page. link: the path of its report without the ending, "" if there is none."""

    name: str
    title: str
    state: str
    headline: str
    link: str
    aims: Sequence[Aim] = ()


def write(collection: Collection) -> list[Path]:
    """Write report.html and report.md into the folder of the collection. Returns the paths. Raises Failed, Refused."""
    runs = collection.runs()
    entries = [_entry(collection, one, runs.get(one.name)) for one in collection.parts]
    first = next(iter(runs.values()), None)
    context = {
        "title": "All experiments" + (f" on {_node(first)}" if _node(first) else ""),
        "outcome": outcome(collection),
        "entries": entries,
        "where": pages.where(first.info) if first is not None else [],
    }
    written = []
    for name, escape in (("report.html", True), ("report.md", False)):
        written.append(collection.folder / name)
        folder.write(written[-1], pages.template(f"all_{name}", escape=escape).render(**context))
    return written


def outcome(collection: Collection) -> str:
    """How many experiments ended in each way, as a sentence."""
    counts = {state: [one.name for one in collection.parts if one.outcome == state] for state in _STATES}
    ended = len(counts["done"]) + len(counts["stopped"])
    said = f"{ended} of {len(collection.parts)} experiments ended"
    for state, words in ((FAILED, "failed"), (LEFT_OUT, "left out"), ("", "not run")):
        if counts[state]:
            said += f"; {words}: {', '.join(counts[state])}"
    return f"{said}."


def _entry(collection: Collection, part: Part, run: Run | None) -> Entry:
    state = _STATES.get(part.outcome, part.outcome)
    link = f"{part.name}/report" if (collection.folder / part.name / "report.html").exists() else ""
    if run is None:
        return Entry(part.name, part.name, state, printable(part.reason), link)
    try:
        content = pages.content(run)
    except Refused as error:  # nothing was measured
        return Entry(part.name, part.name, state, printable(part.reason or error.message), link)
    headline = " ".join([part.reason, *content.outcome[:2]] if part.reason else content.outcome[:2])
    return Entry(part.name, content.title, state, printable(headline), link, content.aims)


def _node(run: Run | None) -> str:
    return printable(str((run.info.get("node") or {}).get("name", ""))) if run is not None else ""

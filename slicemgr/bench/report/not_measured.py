"""The measurements that were not possible on the node of a run, and the reasons. Pure."""

from __future__ import annotations

from slicemgr.bench.frame.folder import Run
from slicemgr.bench.report.content import Column, Table


def reasons(run: Run) -> dict[str, list[str]]:
    """The names of what was not measured, by the reason. The series of a step is named `TURN/WHAT`."""
    found: dict[str, list[str]] = {}
    for one in run.steps.values():
        if one.get("missing"):
            what = one["series"].partition("/")[2] or one["title"]
            them = found.setdefault(str(one["missing"]), [])
            if what not in them:
                them.append(what)
    return found


def sentences(run: Run) -> list[str]:
    return [f"not measured: {', '.join(what)}: {reason}" for reason, what in reasons(run).items()]


def tables(run: Run) -> list[Table]:
    """The table of missing measurements; empty if there are none."""
    rows = [[", ".join(what), reason] for reason, what in reasons(run).items()]
    note = "--resume repeats these."
    return [Table("Not measured", [Column("what"), Column("why")], rows, note)] if rows else []


def outcome(run: Run) -> list[str]:
    """Sentences on missing measurements, and on the step at which the guard stopped the run."""
    said = [f"Not measured: {', '.join(what)} ({reason})." for reason, what in reasons(run).items()]
    stops = [f"{one['title']}: {one['stopped']}" for one in run.steps.values() if one.get("stopped")]
    if stops:
        said.append(f"It stopped before the node ran out of resources, at {stops[0]}.")
    return said

"""The report of `bench io`: SQLite and small files by size and place, and the statements of the thesis. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from slicemgr.bench.experiments.io import FILES, PLACES, ROOTS, SQLITE, label
from slicemgr.bench.frame.folder import Run
from slicemgr.bench.report import not_measured, stats
from slicemgr.bench.report.content import Axis, Column, Content, Metric, Plot, Series, Table, Value

TESTS = (
    (SQLITE, "read", "SQLite, every table read"),
    (SQLITE, "write", "SQLite, every table duplicated"),
    (FILES, "read", "small files read"),
    (FILES, "write", "small files unpacked"),
)
WORDS = {
    "lxc": "lxc sliver",
    "kvm": "kvm sliver",
    "snapshot": "btrfs snapshot",
    "overlay": "overlayfs",
    "copy": "plain copy",
}
_SAME = 1.5  # the ratio up to which two times are "similar": the thesis does not define it
_REFERENCE = "snapshot"


@dataclass(frozen=True, slots=True)
class Point:
    """One repetition of one size in one place. Times are in seconds.

    make: creation of the root, None in slivers. sync: from the end of the write until the data are on the disk.
    """

    turn: int
    place: str
    what: str
    size: int
    read: float
    write: float
    sync: float
    make: float | None


Values = dict[tuple[str, int, str], list[float]]  # (place, size, "read" or "write" or …) → a value for each repetition


def points(run: Run) -> list[Point]:
    """The points of a run, in the order in which they were measured."""
    found = []
    for one in run.steps.values():
        data = one["data"]
        if "read" in data:
            names = ("turn", "place", "what", "size", "read", "write", "sync")
            found.append(Point(make=data.get("make"), **{name: data[name] for name in names}))
    return found


def content(run: Run) -> Content:
    """The content of the report. Raises ValueError if nothing was measured yet."""
    found = points(run)
    if not found:
        raise ValueError("no size was measured yet")
    places = [one for one in PLACES if any(point.place == one for point in found)]
    tests = [one for one in TESTS if any(point.what == one[0] for point in found)]
    grouped = {what: _values(found, what) for what in (SQLITE, FILES)}
    compared = _compared(grouped, places, tests)
    statements = _statements(grouped, places)
    tables = [_table(grouped[what], places, what, how, title) for what, how, title in tests]
    tables += [*_made(grouped, places), *compared, *_thesis(statements), *not_measured.tables(run)]
    return Content(
        title="Disk: SQLite and small files in slivers and on roots of three kinds",
        outcome=_outcome(run, found, grouped, places, statements),
        tables=tables,
        plots=[*_plots(grouped, places, tests), *_plot_of_making(grouped, places)],
        metrics=_metrics(grouped, places, tests),
        data=[_row(one) for one in found],
    )


def _values(found: Sequence[Point], what: str) -> Values:
    values: Values = {}
    for one in found:
        if one.what == what:
            for how in ("read", "write", "sync", "make"):
                if getattr(one, how) is not None:
                    values.setdefault((one.place, one.size, how), []).append(getattr(one, how))
    return values


def _sizes(values: Values, how: str, place: str = "") -> list[int]:
    return sorted({size for one, size, each in values if each == how and place in ("", one)})


# --- tables -----------------------------------------------------------------------------------------------------------


def mean_text(values: Sequence[float]) -> str:
    """The mean, with half the width of its confidence interval if there are several values."""
    one = stats.summary(values)
    return f"{one.mean:.4g}" if one.high is None else f"{one.mean:.4g} ± {one.high - one.mean:.2g}"


def _table(values: Values, places: Sequence[str], what: str, how: str, title: str) -> Table:
    columns = [Column("data"), *(Column(WORDS[place], "s") for place in places)]
    rows: list[list[Value]] = []
    for size in _sizes(values, how):
        here = [values.get((place, size, how)) for place in places]
        rows.append([label(what, size), *(mean_text(one) if one else None for one in here)])
    note = "Mean ± half of the 95 % confidence interval (Student). The data read were not in the page cache."
    if how == "write":
        note = "Mean ± half of the 95 % confidence interval (Student). "
        note += "Each table is a transaction that waits for the disk" if what == SQLITE else "tar waits for no disk"
        late = [
            fmean(values[place, size, "sync"])
            for place in places
            for size in _sizes(values, "sync", place)[-1:]
            if (place, size, "sync") in values
        ]
        note += (
            f"; until all was on the disk it took up to {max(late):.3g} s more, which is in data.csv." if late else "."
        )
    return Table(title, columns, rows, note)


def _made(grouped: Mapping[str, Values], places: Sequence[str]) -> list[Table]:
    roots = [place for place in places if place in ROOTS]
    columns = [Column("root with"), *(Column(WORDS[place], "s") for place in roots)]
    rows: list[list[Value]] = []
    for what, values in grouped.items():
        for size in _sizes(values, "make"):
            here = [values.get((place, size, "make")) for place in roots]
            what_in = f"a database of {label(what, size)}" if what == SQLITE else label(what, size)
            rows.append([what_in, *(mean_text(one) if one else None for one in here)])
    note = "On the node: a snapshot of the image's base with the data in it; a mount of overlayfs, in a process of its "
    note += "own; a copy of every file. Mean ± half of the 95 % confidence interval."
    return [Table("Making a root", columns, rows, note)] if rows else []


def _compared(
    grouped: Mapping[str, Values], places: Sequence[str], tests: Sequence[tuple[str, str, str]]
) -> list[Table]:
    """Compares each place with the snapshot, for the largest data of each test."""
    if _REFERENCE not in places:
        return []
    rows: list[list[Value]] = []
    chances: list[float | None] = []
    for what, how, title in tests:
        values = grouped[what]
        for place in places:
            both = [size for size in _sizes(values, how, place) if (_REFERENCE, size, how) in values]
            if place == _REFERENCE or not both:
                continue
            one = stats.difference(values[_REFERENCE, both[-1], how], values[place, both[-1], how])
            ratio = one.new / one.old if one.old else None
            rows.append([f"{title}, {label(what, both[-1])}", WORDS[place], ratio])
            chances.append(one.p)
    for row, p in zip(rows, stats.adjusted(chances), strict=True):
        chance = None if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
        row += [chance, "undetermined" if p is None else "yes" if p < 0.05 else "no"]
    columns = [Column("test"), Column("place"), Column("time", "× snapshot", 2), Column("p"), Column("significant")]
    note = (
        "Welch's t, or Mann-Whitney's U from 20 values on; corrected by Benjamini and Hochberg. The snapshot is read "
    )
    note += "by a program on the node; the lxc sliver is a snapshot, too, with its confinement around it and its data "
    note += "written by itself before."
    return [Table("Compared with a btrfs snapshot, for the largest data", columns, rows, note)] if rows else []


# --- the thesis -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Statement:
    """text: the statement of the thesis. here: the result of this run. holds: None if this run cannot decide it."""

    text: str
    here: str
    holds: bool | None


def _statements(grouped: Mapping[str, Values], places: Sequence[str]) -> list[Statement]:
    def at(what: str, how: str, one: str, other: str, *, least: bool = False) -> tuple[float, float | None, int] | None:
        """The ratio of the times of `one` and `other`, its p, and the size: the largest (or least) that both have."""
        values = grouped[what]
        sizes = [size for size in _sizes(values, how, one) if (other, size, how) in values]
        if not sizes:
            return None
        size = sizes[0 if least else -1]
        found = stats.difference(values[other, size, how], values[one, size, how])
        return (found.new / found.old if found.old else 1.0), found.p, size

    def beside(text: str, what: str, how: str, one: str, other: str, *, least: bool = False, more: bool) -> Statement:
        """more: the statement is that `one` takes significantly longer; otherwise, that both take a similar time."""
        comparison = at(what, how, one, other, least=least)
        if comparison is None:
            return Statement(text, "not measured", None)
        ratio, p, size = comparison
        here = f"{WORDS[one]} {ratio:.3g} × {WORDS[other]}, {label(what, size)}"
        if more:
            return Statement(text, here, None if p is None else ratio > 1 and p < 0.05)
        return Statement(text, here, 1 / _SAME <= ratio <= _SAME)

    first = SQLITE if _sizes(grouped[SQLITE], "make") else FILES
    return [
        beside("a full copy for each container costs much", first, "make", "copy", "snapshot", least=True, more=True),
        beside(
            "overlay and btrfs create containers about equally fast",
            first,
            "make",
            "overlay",
            "snapshot",
            least=True,
            more=False,
        ),
        beside(
            "a file opened through overlayfs is served by the file system below: many files are read as fast",
            FILES,
            "read",
            "overlay",
            "snapshot",
            more=False,
        ),
        beside(
            "overlay copies a whole file before it changes it, block-based copy-on-write only the blocks that change",
            SQLITE,
            "write",
            "overlay",
            "snapshot",
            more=True,
        ),
        _many(grouped[FILES]),
    ]


def _many(values: Values) -> Statement:
    text = "block-based copy-on-write has difficulties to create containers with many files in them"
    sizes = _sizes(values, "make", "snapshot")
    if len(sizes) < 2:
        return Statement(text, "not measured", None)
    few, many = (values["snapshot", size, "make"] for size in (sizes[0], sizes[-1]))
    found = stats.difference(few, many)
    ratio = found.new / found.old if found.old else 1.0
    here = f"a snapshot with {label(FILES, sizes[-1])} takes {ratio:.3g} × one with {label(FILES, sizes[0])}"
    return Statement(text, here, None if found.p is None else ratio > _SAME and found.p < 0.05)


def _thesis(statements: Sequence[Statement]) -> list[Table]:
    words = {True: "yes", False: "no", None: "undetermined"}
    rows = [[one.text, one.here, words[one.holds]] for one in statements]
    columns = [Column("the thesis (5.1)"), Column("this run"), Column("holds here")]
    note = "The thesis shows its times in figures 5.1, 5.2 and 5.7 only; the first column has the statements of its "
    note += "text. Its data were 151.6 kB to 111.6 MB and 10 to 100 000 files of 4096 bytes, as here; its "
    note += f"database was TPC-C's, here it has TPC-C's tables and random text. Similar: up to {_SAME:g} ×."
    return [Table("Compared with the thesis", columns, rows, note)]


# --- plots ------------------------------------------------------------------------------------------------------------


def _curve(values: Values, place: str, how: str, scale: float = 1.0) -> Series:
    summaries = {size: stats.summary(values[place, size, how]) for size in _sizes(values, how, place)}
    bands = any(one.low is not None for one in summaries.values())
    low = [None if one.low is None else max(one.low, one.least / 2) for one in summaries.values()] if bands else ()
    high = [one.high for one in summaries.values()] if bands else ()
    return Series(
        WORDS[place], [size / scale for size in summaries], [one.mean for one in summaries.values()], low, high
    )


def _plots(grouped: Mapping[str, Values], places: Sequence[str], tests: Sequence[tuple[str, str, str]]) -> list[Plot]:
    made = []
    for what, how, title in tests:
        values = grouped[what]
        there = [place for place in places if _sizes(values, how, place)]
        x = Axis("size of the database", "MB", log=True) if what == SQLITE else Axis("number of files", log=True)
        curves = [_curve(values, place, how, 1e6 if what == SQLITE else 1) for place in there]
        made.append(Plot(f"{what}-{how}", title, x, Axis("time", "s", log=True), curves))
    return made


def _plot_of_making(grouped: Mapping[str, Values], places: Sequence[str]) -> list[Plot]:
    values = grouped[FILES]
    there = [place for place in places if _sizes(values, "make", place)]
    if not there:
        return []
    curves = [_curve(values, place, "make") for place in there]
    x = Axis("number of small files in the image", log=True)
    return [Plot("make", "Making a root", x, Axis("time", "s", log=True), curves)]


# --- what it came to --------------------------------------------------------------------------------------------------


def _outcome(
    run: Run,
    found: Sequence[Point],
    grouped: Mapping[str, Values],
    places: Sequence[str],
    statements: Sequence[Statement],
) -> list[str]:
    turns = len({one.turn for one in found})
    said = [f"{len(found)} measurements in {len(places)} places, {turns} repetition{'s' * (turns > 1)}."]
    for what, verb in ((SQLITE, "SQLite database of"), (FILES, "")):
        values = grouped[what]
        for size in _sizes(values, "read")[-1:]:
            parts = []
            for place in places:
                if (place, size, "read") in values:
                    read, write = (fmean(values[place, size, how]) for how in ("read", "write"))
                    parts.append(f"{WORDS[place]} {read:.3g} s and {write:.3g} s")
            said.append(f"{f'{verb} {label(what, size)}'.strip()}, read and written: {', '.join(parts)}.")
    known = [one for one in statements if one.holds is not None]
    if known:
        kept = sum(1 for one in known if one.holds)
        verb = "holds" if kept == 1 else "hold"
        said.append(f"Of {len(known)} statements of the thesis that this run can judge, {kept} {verb} here.")
    return said + not_measured.outcome(run)


def _metrics(
    grouped: Mapping[str, Values], places: Sequence[str], tests: Sequence[tuple[str, str, str]]
) -> list[Metric]:
    found = []
    for what, how, title in tests:
        values = grouped[what]
        for place in places:
            for size in _sizes(values, how, place)[-1:]:
                name = f"{title}, {label(what, size)}, {WORDS[place]}"
                found.append(Metric(name, "s", values[place, size, how]))
    for place in [one for one in places if one in ROOTS]:
        first = SQLITE if _sizes(grouped[SQLITE], "make", place) else FILES
        values = grouped[first]
        for size in _sizes(values, "make", place)[:1]:
            found.append(
                Metric(f"making a root, {label(first, size)}, {WORDS[place]}", "s", values[place, size, "make"])
            )
    return found


def _row(one: Point) -> dict[str, Any]:
    """A line of data.csv: times in seconds, size in bytes of the database or number of files."""
    return {
        "repetition": one.turn,
        "place": one.place,
        "what": one.what,
        "size": one.size,
        "make": one.make,
        "read": one.read,
        "write": one.write,
        "sync": one.sync,
    }

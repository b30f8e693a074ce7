"""The report of `bench nodes`: creates on nodes that have joined beside those on the service's own node. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slicemgr.bench.experiments.nodes import CREATE, IMAGE, PLACEMENT, RESYNC
from slicemgr.bench.frame.folder import Run
from slicemgr.bench.report import not_measured, stats
from slicemgr.bench.report.content import Aim, Axis, Column, Content, Metric, Plot, Series, Table, Value

NEAR, FAR = 0.050, 0.500  # seconds that a create may take longer at a round trip of 0, and of _FAR_TRIP
_FAR_TRIP = 0.100
_COPIES = 1.5  # of an image that the service may upload for _COPIES_NODES nodes
_COPIES_NODES = 3
_FEW = 5  # rounds below which there is no verdict
PHASES = ("accepted", "node", "way", "operation", "banner", "delete")
_TITLES = {
    "accepted": "accepted by the service",
    "node": "the node's own work",
    "way": "the rest: on the way, and waiting",
    "operation": "the operation has ended",
    "banner": "ssh banner read",
    "delete": "delete",
}
_PLANS = {
    "named": "one sliver, node named",
    "placed": "one sliver, placed",
    "spread": "one sliver on each node, placed",
}

Round = Mapping[str, Mapping[str, Any]]  # node → times of its create


@dataclass(slots=True)
class Found:
    """What a run measured. rounds: those with a create on every node."""

    local: str
    remote: list[str]
    rounds: list[Round] = field(default_factory=list)
    plans: dict[str, list[float]] = field(default_factory=dict)
    rows: dict[str, list[float]] = field(default_factory=dict)  # node → seconds until it had all rows again
    image: dict[str, Any] = field(default_factory=dict)

    @property
    def nodes(self) -> list[str]:
        return [self.local, *self.remote]

    def values(self, node: str, phase: str) -> list[float]:
        return [value for one in self.rounds if (value := phase_of(one[node], phase)) is not None]

    def trip(self, node: str) -> float:
        """Seconds of the round trip: the median of the shortest connections."""
        return stats.percentile([min(one[node]["trips"]) for one in self.rounds], 0.5)


def phase_of(times: Mapping[str, Any], phase: str) -> float | None:
    """Seconds of a phase; None if the node did not report its steps."""
    if phase != "way":
        value = times.get(phase)
        return None if value is None else float(value)
    if times.get("node") is None:
        return None
    return float(times["operation"] - times["accepted"] - times["node"])


def allowed(trip: float) -> float:
    """Seconds by which a create may take longer on a node with this round trip: the two aims, and in proportion."""
    return NEAR + (FAR - NEAR) * trip / _FAR_TRIP


def found_in(run: Run) -> Found:
    parameters = run.info["parameters"]
    found = Found(parameters["local"], str(parameters["nodes"]).split())
    for name, step in run.steps.items():
        data, kind = step["data"], name.partition("/")[0]
        if kind == CREATE and set(data.get("creates", ())) >= set(found.nodes):
            found.rounds.append(data["creates"])
        elif kind == PLACEMENT and data.get("placed"):
            found.plans = {plan: data[plan] for plan in _PLANS}
        elif kind == RESYNC:
            found.rows = {node: values for node in found.remote if (values := data.get(node))}
        elif kind == IMAGE and data.get("size"):
            found.image = data
    return found


def content(run: Run) -> Content:
    """The content of the report. Raises ValueError if nothing was measured yet."""
    found = found_in(run)
    if not (found.rounds or found.plans or found.rows or found.image):
        raise ValueError("no round is finished yet")
    tables = [*_creates(found), *_beside(found), *_plans(found), *_resyncs(found), *_image(found)]
    return Content(
        title="Creates on nodes that have joined",
        outcome=[*_outcome(found), *not_measured.outcome(run)],
        tables=[*tables, *not_measured.tables(run)],
        plots=_plots(found),
        aims=[*_aims(found), *_image_aims(found)],
        metrics=_metrics(found),
        data=_rows(found),
    )


# --- statistics -------------------------------------------------------------------------------------------------------


def _between(one: str, local: str, phase: str) -> Callable[[Sequence[Round]], float]:
    """The difference of the medians of two nodes."""

    def difference(rounds: Sequence[Round]) -> float:
        return _median(rounds, one, phase) - _median(rounds, local, phase)

    return difference


def _median(rounds: Sequence[Round], node: str, phase: str) -> float:
    return stats.percentile([phase_of(one[node], phase) or 0.0 for one in rounds], 0.5)


def difference(found: Found, node: str, phase: str = "operation") -> tuple[float, tuple[float, float] | None]:
    """How many seconds more a node needs at the median, and the interval of that: the rounds are resampled."""
    statistic = _between(node, found.local, phase)
    return statistic(found.rounds), stats.bootstrap(found.rounds, statistic)


def _ratio(found: Found, node: str, phase: str) -> tuple[float, tuple[float, float] | None]:
    def statistic(rounds: Sequence[Round]) -> float:
        return _median(rounds, node, phase) / _median(rounds, found.local, phase)

    return statistic(found.rounds), stats.bootstrap(found.rounds, statistic)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else float(f"{1000 * seconds:.4g}")


def _interval(interval: tuple[float, float] | None) -> tuple[float | None, float | None]:
    return interval if interval is not None else (None, None)


# --- tables -----------------------------------------------------------------------------------------------------------


def _creates(found: Found) -> list[Table]:
    if not found.rounds:
        return []
    columns = [
        Column("node"),
        Column("round trip", "ms"),
        Column("phase"),
        Column("median", "ms"),
        Column("95 %", "ms"),
    ]
    columns += [Column("mean", "ms"), Column("low", "ms"), Column("high", "ms"), Column("of")]
    rows: list[Sequence[Value]] = []
    for node in found.nodes:
        for phase in PHASES:
            values = found.values(node, phase)
            if values:
                one = stats.summary(values)
                spread = [_ms(stats.percentile(values, share)) for share in (0.5, 0.95)]
                ends = [_ms(value) for value in (one.mean, one.low, one.high)]
                rows.append([node, _ms(found.trip(node)), _TITLES[phase], *spread, *ends, one.count])
    note = (
        "One create on each node in each round, in a random order. Times since the request, by the clock of the "
        "client; the node's own work is from the first of its steps to the end of the last one, by its own clock. Low "
        "and high: the 95 % confidence interval of the mean by Student's t. Round trip: the shortest of five TCP "
        "connections to the port of the sliver, from where slicectl ran; the median of the rounds."
    )
    return [Table("Each phase on each node", columns, rows, note)]


def _beside(found: Found) -> list[Table]:
    if not found.rounds:
        return []
    columns = [Column("node"), Column("phase"), Column("more", "ms"), Column("low", "ms"), Column("high", "ms")]
    columns += [Column("ratio", "×", 3), Column("low", "×", 3), Column("high", "×", 3)]
    rows: list[Sequence[Value]] = []
    for node in found.remote:
        for phase in ("operation", "banner", "delete"):
            more, ends = difference(found, node, phase)
            ratio, of_ratio = _ratio(found, node, phase)
            low, high = _interval(ends)
            rows.append([node, _TITLES[phase], _ms(more), _ms(low), _ms(high), ratio, *_interval(of_ratio)])
    note = "Of the medians. Low and high: the 95 % interval by resampling the rounds (bootstrap)."
    return [Table(f"Compared with {found.local}", columns, rows, note)]


def _plans(found: Found) -> list[Table]:
    if not found.plans:
        return []
    columns = [Column("plan"), Column("median", "ms"), Column("95 %", "ms"), Column("of")]
    rows: list[Sequence[Value]] = []
    for name, values in found.plans.items():
        rows.append([_PLANS[name], *(_ms(stats.percentile(values, share)) for share in (0.5, 0.95)), len(values)])
    note = "A plan (`dry_run`) checks rights and quota, chooses the nodes, and changes nothing: the whole request."
    return [Table(f"Placement on {len(found.nodes)} nodes", columns, rows, note)]


def _resyncs(found: Found) -> list[Table]:
    if not found.rows:
        return []
    columns = [Column("node"), Column("median", "ms"), Column("least", "ms"), Column("most", "ms"), Column("of")]
    rows: list[Sequence[Value]] = []
    for node, values in found.rows.items():
        rows.append(
            [node, *(_ms(one) for one in (stats.percentile(values, 0.5), min(values), max(values))), len(values)]
        )
    note = "From the request of an admin until the hub has the answer of the node that it has all its rows."
    return [Table("All rows of a node again", columns, rows, note)]


def _image(found: Found) -> list[Table]:
    if not found.image:
        return []
    columns = [Column("node"), Column("pushed"), Column("fetch", "s", 2), Column("in all", "s", 2)]
    rows: list[Sequence[Value]] = [[node, "it imported the image", None, None] for node in found.image["had"]]
    for how in ("alone", "together"):
        for node, times in found.image[how].items():
            rows.append([node, how, times.get("fetch"), times["seconds"]])
    copies = found.image.get("copies")
    uploaded = "not known" if copies is None else f"{copies:.2f} copies"
    note = (
        f"An image of {found.image['size'] / (1 << 20):.0f} MiB. Pushed to one node alone, then to the others at once. "
        f"The service uploaded {uploaded} of it to nodes, including that for the import. In all: with the files "
        "extracted for containers."
    )
    return [Table("An image on all nodes", columns, rows, note)]


# --- plots ------------------------------------------------------------------------------------------------------------


def _plots(found: Found) -> list[Plot]:
    if not found.rounds:
        return []
    bars = []
    for phase in ("accepted", "node", "way", "operation", "banner"):
        summaries = [stats.summary(values) if (values := found.values(node, phase)) else None for node in found.nodes]
        sure = all(one is None or one.low is not None for one in summaries)
        low = [_ms(one.low) if one else None for one in summaries] if sure else ()
        high = [_ms(one.high) if one else None for one in summaries] if sure else ()
        means = [_ms(one.mean) if one else None for one in summaries]
        bars.append(Series(_TITLES[phase].partition(":")[0], (), means, low, high))
    labels = [f"{node}, {1000 * found.trip(node):.1f} ms" for node in found.nodes]
    phases = Plot(
        "phases",
        "Phases of a create",
        Axis("node, with its round trip"),
        Axis("mean", "ms", 0),
        bars,
        groups=labels,
        note="Whiskers: the 95 % confidence interval of the mean.",
    )
    numbers = list(range(1, len(found.rounds) + 1))
    series = [
        Series(node, numbers, [1000 * one[node]["operation"] for one in found.rounds], points=True)
        for node in found.nodes
    ]
    rounds = Plot("rounds", "Request to the end of the create", Axis("round", least=0), Axis("time", "ms", 0), series)
    return [phases, rounds]


# --- what it came to --------------------------------------------------------------------------------------------------


def _outcome(found: Found) -> list[str]:
    said = []
    if found.rounds:
        own = stats.percentile(found.values(found.local, "operation"), 0.5)
        said.append(f"Half of {len(found.rounds)} creates on {found.local} took at most {1000 * own:.0f} ms.")
    for node in found.remote if found.rounds else ():
        more, ends = difference(found, node)
        said.append(
            f"{node}, at a round trip of {1000 * found.trip(node):.1f} ms: {1000 * more:+.0f} ms{_around(ends)}."
        )
    if found.plans:
        median = 1000 * stats.percentile(found.plans["placed"], 0.5)
        extra = median - 1000 * stats.percentile(found.plans["named"], 0.5)
        said.append(f"A plan with placement took {median:.1f} ms, {extra:+.1f} ms compared with a named node.")
    if found.rows:
        slowest = max(found.rows, key=lambda node: stats.percentile(found.rows[node], 0.5))
        median = 1000 * stats.percentile(found.rows[slowest], 0.5)
        said.append(f"A node had all its rows again after {median:.0f} ms or less ({slowest}).")
    if found.image.get("copies") is not None:
        said.append(f"The service uploaded {found.image['copies']:.2f} copies of an image for all nodes.")
    return said


def _around(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f" ({1000 * interval[0]:+.0f} to {1000 * interval[1]:+.0f})"


def _aims(found: Found) -> list[Aim]:
    """One for each node that has joined, by the round trip that was measured."""
    aims = []
    for node in found.remote:
        if not found.rounds:
            aims.append(Aim(f"creates on {node} take not much longer than on {found.local}", None, "not measured"))
            continue
        trip = found.trip(node)
        most = allowed(trip)
        more, ends = difference(found, node)
        text = (
            f"half of the creates on {node}, at a round trip of {1000 * trip:.1f} ms, take at most "
            f"{1000 * most:.0f} ms longer than on {found.local}"
        )
        count = len(found.rounds)
        few = f"; this run had {count} rounds" if count < _FEW else ""
        aims.append(Aim(text, None if few else more <= most, f"{1000 * more:+.0f} ms{_around(ends)}{few}"))
    return aims


def _image_aims(found: Found) -> list[Aim]:
    if not found.image:
        return []
    text = f"the service uploads at most {_COPIES} copies of an image for {_COPIES_NODES} nodes"
    copies, count = found.image.get("copies"), len(found.nodes)
    if copies is None:
        return [Aim(text, None, "the service does not count what it uploads")]
    measured = f"{copies:.2f} copies, {count} nodes"
    return [Aim(text, copies <= _COPIES if count >= _COPIES_NODES else None, measured)]


def _metrics(found: Found) -> list[Metric]:
    metrics = []
    for node in found.nodes if found.rounds else ():
        for phase in PHASES:
            metrics.append(Metric(f"{node}: {_TITLES[phase]}", "ms", [1000 * one for one in found.values(node, phase)]))
    for name, values in found.plans.items():
        metrics.append(Metric(f"plan: {_PLANS[name]}", "ms", [1000 * one for one in values]))
    for node, values in found.rows.items():
        metrics.append(Metric(f"{node}: all rows again", "ms", [1000 * one for one in values]))
    return [one for one in metrics if one.values]


def _rows(found: Found) -> list[dict[str, Any]]:
    """A row of data.csv for each create, in seconds."""
    rows = []
    for number, one in enumerate(found.rounds, 1):
        for node in found.nodes:
            row: dict[str, Any] = {"round": number, "node": node, "trip": min(one[node]["trips"])}
            rows.append(row | {phase: phase_of(one[node], phase) for phase in PHASES})
    return rows

"""The report of `bench lifecycle`: phases compared with the raw baseline and the thesis, costs of a sliver. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from slicemgr.bench.frame.folder import Run
from slicemgr.bench.report import stats
from slicemgr.bench.report.content import Aim, Axis, Column, Content, Metric, Plot, Series, Table, Value

MIB, KIB = 1 << 20, 1 << 10
_EDGE = 50  # the number of first and of last creates that are compared
# The label, the phase of slicemgr, and the point of the baseline if both are the same point of time.
_LINES = (
    ("accepted", "accepted", None),
    ("prepared: the root is made", "prepared", None),
    ("started: the domain runs", "started", "started"),
    ("console: the guest's first byte", "console", "spoke"),
    ("operation done", "operation", None),
    ("ssh banner", "banner", "answered"),
)
_WARM = {
    "accepted": "accepted",
    "banner": "ssh banner",
    "operation": "operation done: name and keys are the user's",
    "agent": "the agent's work",
    "burst": "a burst: for each, until all sent the banner",
}
# Milliseconds of the median.
_WARM_AIMS = {"lxc": (("banner", 40), ("agent", 10), ("burst", 15)), "kvm": (("banner", 100),)}
# The phases of section 4.2.2 of the thesis, by its names.
THESIS = ("create", "start", "exec", "launch", "response", "ping")
_SAID = {
    "create": "t_create: until the container is created",
    "start": "t_start: from then until it runs",
    "exec": "t_exec: /bin/echo Hello World",
    "launch": "t_exec of a web server, detached",
    "response": "t_response: from then until the first HTTP response",
    "ping": "ping, one echo",
}
# The thesis shows its times in drawings only; these are the statements of its text (chapter 5).
_THESIS_SAYS = (
    ("create and start", "more for what is based on virtualisation: a kernel has to be loaded"),
    ("exec", "much less overhead there"),
)


@dataclass(slots=True)
class Turn:
    """One repetition of a series: the measurements of the baseline and of slicemgr, which may be incomplete."""

    raw: Mapping[str, Any] = field(default_factory=dict)
    ours: Mapping[str, Any] = field(default_factory=dict)
    warm: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def phase(self, name: str) -> list[float]:
        return list(self.ours.get("phases", {}).get(name, ()))

    @property
    def whole(self) -> bool:
        """Whether all requested slices started."""
        return "inside" in self.ours

    def thesis(self, name: str) -> list[float]:
        """Seconds of a phase of the thesis, of each sliver. start: the time between two phases of slicemgr."""
        if name == "create":
            return self.phase("prepared")
        if name == "start":
            return [late - early for early, late in zip(self.phase("prepared"), self.phase("started"), strict=True)]
        return list(self.ours.get("inside", {}).get(name, ()))


Turns = dict[str, list[Turn]]  # by the label of the series


def turns(run: Run) -> Turns:
    """The repetitions of each series, in the order in which they were run."""
    labels = {f"{one['kind']} {one['boot']}".strip() for one in run.info["parameters"]["series"]}
    known = {label.replace(" ", "-"): label for label in labels}
    found: dict[str, dict[str, Turn]] = {}
    for id_, one in run.steps.items():
        number, series, part = id_.split("/")
        turn = found.setdefault(known[series], {}).setdefault(number, Turn())
        if part == "raw":
            turn.raw = one["data"].get("raw", {})
        elif part == "warm":
            turn.warm = one["data"].get("warm", {})
        else:
            turn.ours = one["data"]
    return {label: list(one.values()) for label, one in found.items()}


def content(run: Run) -> Content:
    """The content of the report. Raises ValueError if no slice was measured yet."""
    found = {label: [one for one in own if one.phase("banner")] for label, own in turns(run).items()}
    found = {label: own for label, own in found.items() if own}
    if not found:
        raise ValueError("no step with slices is finished yet")
    asked = int(run.info["parameters"]["count"])
    return Content(
        title="The life of a sliver: create, start, work inside, delete, beside the raw baseline",
        outcome=_outcome(run, found),
        tables=[_phases(found), *_warm(found), _thesis(run, found), _thesis_says(found), _totals(found)],
        plots=[_bars(found), _order(found)],
        aims=_aims(found, asked),
        metrics=_metrics(found),
        data=[row for label, own in found.items() for row in _rows(label, own)],
    )


# --- figures ----------------------------------------------------------------------------------------------------------


def _all(own: Iterable[Turn], phase: str) -> list[float]:
    return [value for one in own for value in one.phase(phase)]


def ratios(own: Sequence[Turn], phase: str, point: str) -> list[float]:
    """For each repetition, the median of slicemgr divided by the median of the baseline of that repetition."""
    both = [(one.phase(phase), list(one.raw.get(point, ()))) for one in own]
    return [stats.percentile(ours, 0.5) / stats.percentile(raw, 0.5) for ours, raw in both if ours and raw]


def last_to_first(own: Sequence[Turn]) -> list[float]:
    """For each repetition, the median time of the last creates divided by that of the first."""
    found = []
    for one in own:
        banner = one.phase("banner")
        edge = min(_EDGE, len(banner) // 4)
        if edge:
            found.append(stats.percentile(banner[-edge:], 0.5) / stats.percentile(banner[:edge], 0.5))
    return found


def totals_ratios(own: Sequence[Turn], what: str) -> list[float]:
    """For each complete repetition, the time of all slices divided by that of all raw slivers.

    what: "create" or "delete".
    """
    return [one.ours[what] / one.raw[what] for one in own if one.whole and one.raw.get(what)]


def _weights(own: Sequence[Turn], what: str) -> list[float]:
    return [one.ours[what] for one in own if one.ours.get(what) is not None]


def _short(value: float | None) -> float | None:
    """Rounded to three significant digits, the precision of such a figure."""
    return None if value is None else float(f"{value:.3g}")


def _around(values: Sequence[float]) -> str | None:
    """The mean with its confidence interval, as text."""
    if not values:
        return None
    summary = stats.summary(values)
    if summary.low is None or summary.high is None:
        return f"{summary.mean:.3g}"
    return f"{summary.mean:.3g} ({summary.low:.3g} to {summary.high:.3g})"


# --- tables -----------------------------------------------------------------------------------------------------------


def _phases(found: Turns) -> Table:
    columns = [Column("phase"), Column("type"), Column("median", "s", 3), Column("95 %", "s", 3)]
    columns += [Column("most", "s", 3), Column("mean", "s", 3), Column("low", "s", 3), Column("high", "s", 3)]
    columns += [Column("of"), Column("raw, median", "s", 3), Column("ratio to raw")]
    rows: list[Sequence[Value]] = []
    for name, phase, point in _LINES:
        for label, own in found.items():
            values = _all(own, phase)
            if values:
                summary = stats.summary(values)
                raw = [value for one in own for value in one.raw.get(point, ())] if point else []
                spread = [stats.percentile(values, share) for share in (0.5, 0.95)]
                ends = [summary.most, summary.mean, summary.low, summary.high, summary.count]
                beside = stats.percentile(raw, 0.5) if raw else None
                ratio = _around(ratios(own, phase, point)) if point else None
                rows.append([name, label, *spread, *ends, beside, ratio])
    note = (
        "Seconds since the request; prepared and started by the node's own clock, since the service took it. Raw: the "
        "same root and XML through virDomainCreateXML on the same node, right before. Low and high: the 95 % "
        "confidence interval of the mean by Student's t. A ratio is that of the medians, the mean of all repetitions."
    )
    return Table("Each phase beside the raw baseline", columns, rows, note)


def _warm(found: Turns) -> list[Table]:
    """The slices that took a spare, if there were any."""
    columns = [Column("phase"), Column("type"), Column("median", "ms", 1), Column("95 %", "ms", 1)]
    columns += [Column("mean", "ms", 1), Column("low", "ms", 1), Column("high", "ms", 1), Column("of")]
    columns += [Column("ratio to a new sliver")]
    rows: list[Sequence[Value]] = []
    for phase, name in _WARM.items():
        for label, own in found.items():
            values = _taken(own, phase)
            if values:
                summary, cold = stats.summary([1000 * one for one in values]), _all(own, phase)
                half, late = (1000 * stats.percentile(values, share) for share in (0.5, 0.95))
                ratio = stats.percentile(values, 0.5) / stats.percentile(cold, 0.5) if cold else None
                rows.append([name, label, half, late, summary.mean, summary.low, summary.high, summary.count, ratio])
    note = "One slice at a time, except in the burst. "
    note += "Since the request; the agent's work is the sum of its steps, by the clock of the node."
    return [Table("Slices that took a spare", columns, rows, note)] if rows else []


def _taken(own: Iterable[Turn], phase: str) -> list[float]:
    return [value for one in own for value in one.warm.get(phase, ())]


def _thesis(run: Run, found: Turns) -> Table:
    columns = [Column("phase"), Column("type"), Column("median", "ms"), Column("mean", "ms")]
    columns += [Column("low", "ms"), Column("high", "ms"), Column("of")]
    rows: list[Sequence[Value]] = []

    def add(name: str, label: str, values: Sequence[float]) -> None:
        if values:
            summary = stats.summary([1000 * one for one in values])
            half = 1000 * stats.percentile(values, 0.5)
            rows.append(
                [name, label, *(_short(one) for one in (half, summary.mean, summary.low, summary.high)), summary.count]
            )

    for phase in THESIS:
        for label, own in found.items():
            add(_SAID[phase], label, [value for one in own for value in one.thesis(phase)])
    for label, own in found.items():
        add("ready: t_create + t_start", label, _all(own, "started"))
    for label, own in found.items():
        add("network set-up: request to banner, launch, first response", label, network(own))
    target = run.info["parameters"].get("ping") or "the gateway"
    note = (
        "By section 4.2.2 of the thesis, on slivers that run at once. A command is run by ssh through the sliver's "
        "port, with the handshake; the server is a few lines of Python in place of lighttpd, asked through the next "
        f"port. Pinged was {target}; the thesis pinged 1.1.1.1, which --ping does."
    )
    return Table("The thesis's phases", columns, rows, note)


def network(own: Sequence[Turn]) -> list[float]:
    """For each sliver, seconds from the request until a server inside has answered, without waiting for others."""
    found = []
    for one in own:
        if one.whole:
            parts = [one.phase("banner"), one.thesis("launch"), one.thesis("response")]
            found += [sum(values) for values in zip(*parts, strict=True)]
    return found


def _thesis_says(found: Turns) -> Table:
    columns = [Column("what"), Column("the thesis, of containers in a machine of their own (Kata)")]
    columns += [Column(f"here: {label}", "ms", 1) for label in found]
    rows: list[Sequence[Value]] = []
    for (name, says), phases in zip(_THESIS_SAYS, (("create", "start"), ("exec",)), strict=True):
        sums = []
        for own in found.values():
            parts = [[value for one in own for value in one.thesis(phase)] for phase in phases]
            sums.append(sum(1000 * stats.percentile(one, 0.5) for one in parts) if all(parts) else None)
        rows.append([name, says, *sums])
    note = "The thesis shows its times in figures 5.1 to 5.7 only; the column repeats the statements of its text."
    return Table("Compared with the thesis", columns, rows, note)


def _totals(found: Turns) -> Table:
    columns = [Column("what"), *(Column(label) for label in found)]
    lines: tuple[tuple[str, Callable[[Sequence[Turn]], str | None]], ...] = (
        ("slices that came up", lambda own: str(sum(len(one.phase("banner")) for one in own))),
        ("create, all (s)", lambda own: _around([one.ours["create"] for one in own if one.whole])),
        ("slices a second", lambda own: _around([one.ours["count"] / one.ours["create"] for one in own if one.whole])),
        ("create, all, to raw (×)", lambda own: _around(totals_ratios(own, "create"))),
        ("create, last to first (×)", lambda own: _around(last_to_first(own))),
        ("delete, all (s)", lambda own: _around([one.ours["delete"] for one in own if one.whole])),
        ("delete, all, to raw (×)", lambda own: _around(totals_ratios(own, "delete"))),
        ("memory of the node for each (MiB)", lambda own: _sizes(own, "available_each", MIB)),
        (
            "working set of its own group (MiB)",
            lambda own: _sizes(own, "working_each", MIB) or _sizes(own, "memory_each", MIB),
        ),
        ("charged to its own group: disk (KiB)", lambda own: _sizes(own, "disk_each", KIB)),
    )
    rows: list[Sequence[Value]] = [[name, *(cell(own) for own in found.values())] for name, cell in lines]
    note = "In brackets: the 95 % confidence interval over the repetitions; one alone has none. "
    note += "Memory of the node is the decrease of available memory, whose noise exceeds the memory of few slivers."
    return Table("All slices of a series", columns, rows, note)


def _sizes(own: Sequence[Turn], what: str, unit: int) -> str | None:
    return _around([one / unit for one in _weights(own, what)])


# --- plots ------------------------------------------------------------------------------------------------------------


def _bars(found: Turns) -> Plot:
    series = []
    for label, own in found.items():
        summaries = []
        for phase in THESIS:
            values = [1000 * value for one in own for value in one.thesis(phase) if value > 0]
            summaries.append(stats.summary(values) if values else None)
        means = [one.mean if one else None for one in summaries]
        whiskers = all(one is None or (one.low is not None and one.low > 0) for one in summaries)
        low = [one.low if one else None for one in summaries] if whiskers else ()
        high = [one.high if one else None for one in summaries] if whiskers else ()
        series.append(Series(label, (), means, low, high))
    return Plot(
        name="phases",
        title="The thesis's phases",
        x=Axis("phase"),
        left=Axis("mean", "ms", log=True),
        series=series,
        groups=THESIS,
        note="Whiskers: the 95 % confidence interval of the mean.",
    )


def _order(found: Turns) -> Plot:
    series = []
    for label, own in found.items():
        for name, columns in (
            (label, [one.phase("banner") for one in own]),
            (f"{label}, raw", [list(one.raw.get("answered", ())) for one in own]),
        ):
            most = max((len(one) for one in columns), default=0)
            middle = [stats.percentile([one[at] for one in columns if at < len(one)], 0.5) for at in range(most)]
            if middle:
                series.append(Series(name, list(range(1, most + 1)), middle, points=True))
    return Plot(
        name="creates",
        title="Request to ssh banner, in the order of creation",
        x=Axis("sliver", least=0),
        left=Axis("seconds", "s", 0),
        series=series,
        note="The median of the repetitions. Raw: from the first call until the banner at the private address.",
    )


# --- what it came to --------------------------------------------------------------------------------------------------


def _outcome(run: Run, found: Turns) -> list[str]:
    said = []
    for label, own in found.items():
        banner = _all(own, "banner")
        text = f"{label}: half of {len(banner)} slices answered by ssh within {stats.percentile(banner, 0.5):.3g} s"
        beside = ratios(own, "banner", "answered")
        text += f", {fmean(beside):.2f} × the raw time" if beside else ""
        late = network(own)
        text += f"; a web server inside had answered after {stats.percentile(late, 0.5):.3g} s" if late else ""
        whole = [one.ours["delete"] / one.ours["count"] for one in own if one.whole]
        text += f"; deleting took {1000 * fmean(whole):.3g} ms for each" if whole else ""
        said.append(f"{text}.")
        echoes = [value for one in own for value in one.thesis("ping")]
        if not echoes and any(one.whole for one in own):
            said.append(f"{label}: no echo came back from {run.info['parameters'].get('ping') or 'the gateway'}.")
    stops = [f"{one['title']}: {one['stopped']}" for one in run.steps.values() if one.get("stopped")]
    return [*said, *(f"Stopped at {one}." for one in stops)]


def _aims(found: Turns, asked: int) -> list[Aim]:
    """The aims. Those of new slivers concern lxc: the times of a machine depend on its guest."""
    own, warm = found.get("lxc"), _warm_aims(found)
    if own is None:
        return warm
    beside, creates, late = ratios(own, "banner", "answered"), totals_ratios(own, "create"), last_to_first(own)
    deletes = [200 * one.ours["delete"] / one.ours["count"] for one in own if one.whole]
    few = f"this run had {asked}"
    light = few if asked < _EDGE else ""  # the memory of few slivers is less than the noise of the node's memory
    return [
        _aim("one create, from the request to ssh's banner, takes at most 2 × raw", beside, 2, "×"),
        _aim("200 slices take at most 1.3 × raw", creates, 1.3, "×", few if asked < 200 else ""),
        _aim("the last 50 of 400 take at most 1.5 × as long as the first", late, 1.5, "×", few if asked < 400 else ""),
        _aim("200 are deleted within 5 s", deletes, 5, "s for 200", few if asked < 200 else ""),
        _aim("at most 6 MiB of memory for each", [x / MIB for x in _weights(own, "available_each")], 6, "MiB", light),
        _aim("at most 300 KiB of disk for each", [x / KIB for x in _weights(own, "disk_each")], 300, "KiB"),
        *warm,
    ]


def _warm_aims(found: Turns) -> list[Aim]:
    aims = []
    for label, own in found.items():
        for phase, most in _WARM_AIMS[label.split()[0]]:
            if values := _taken(own, phase):
                half = 1000 * stats.percentile(values, 0.5)
                text = f"{label}, half of the creates that take a spare: {_WARM[phase]} within {most} ms"
                aims.append(_aim(text, [half], most, "ms"))
    return aims


def _aim(text: str, values: Sequence[float], most: float, unit: str, few: str = "") -> Aim:
    if not values:
        return Aim(text, None, "not measured")
    measured = f"{fmean(values):.3g} {unit}"
    return Aim(text, None if few else fmean(values) <= most, f"{measured}; {few}" if few else measured)


def _metrics(found: Turns) -> list[Metric]:
    metrics = []
    for label, own in found.items():
        metrics.append(Metric(f"{label}: request to ssh banner", "s", _all(own, "banner")))
        metrics.append(Metric(f"{label}: network set-up", "s", network(own)))
        metrics.append(Metric(f"{label}: ssh banner to raw", "×", ratios(own, "banner", "answered")))
        for phase in THESIS:
            values = [1000 * value for one in own for value in one.thesis(phase)]
            metrics.append(Metric(f"{label}: {phase}", "ms", values))
        metrics.append(Metric(f"{label}: request to ssh banner, by a spare", "s", _taken(own, "banner")))
        each = [one.ours["delete"] / one.ours["count"] for one in own if one.whole]
        metrics.append(Metric(f"{label}: delete, each", "s", each))
    return [one for one in metrics if one.values]


def _rows(label: str, own: Sequence[Turn]) -> list[dict[str, Any]]:
    """A row of data.csv for each sliver, in seconds."""
    rows = []
    for number, turn in enumerate(own, 1):
        phases = turn.ours["phases"]
        more = {name: turn.thesis(name) for name in ("exec", "launch", "response")}
        for at in range(len(turn.phase("banner"))):
            row: dict[str, Any] = {"type": label, "repetition": number, "sliver": at + 1}
            row |= {name: values[at] for name, values in {**phases, **more}.items() if at < len(values)}
            raw = {f"raw_{name}": turn.raw.get(name, ()) for name in ("started", "spoke", "answered")}
            rows.append(row | {name: values[at] for name, values in raw.items() if at < len(values)})
    return rows

"""The report of `bench throughput`: the paper's table 2, the rates of many talkers, and their fairness. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from slicemgr.bench.experiments.throughput import UNLIMITED, VANILLA
from slicemgr.bench.frame.folder import Run
from slicemgr.bench.report import stats
from slicemgr.bench.report.content import Aim, Axis, Column, Content, Mark, Metric, Plot, Series, Table, Value

MBIT = 10**6
MANY = 200  # number of talkers in the aims
# Table 2 of the CoreLab paper, Mbit/s over Gigabit Ethernet: average, minimum, maximum.
PAPER = {
    VANILLA: ("Vanilla Linux", 940, 940, 941),
    "PlanetLab": ("PlanetLab", 941, 941, 942),
    "lxc": ("LXC", 931, 901, 934),
    "kvm": ("KVM (virtio)", 604, 492, 702),
}
_LEAST = {UNLIMITED: 0.95}  # share of vanilla, by link; for a link that is limited to a rate:
_LEAST_SHAPED = 0.99


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement, in bits per second. samples: of each pair. count: number of talkers, 0 for table 2."""

    link: str
    repeat: int
    direction: str
    way: str
    count: int
    samples: tuple[tuple[float, ...], ...]
    cpu: float | None  # CPU use of all clients, in per cent of a core
    retransmits: int | None

    @property
    def each(self) -> list[float]:
        """The mean rate of each pair."""
        return [sum(one) / len(one) for one in self.samples]

    @property
    def total(self) -> float:
        return sum(self.each)

    @property
    def fairness(self) -> float | None:
        return stats.fairness(self.each)


def points(run: Run) -> list[Point]:
    found = []
    for one in run.steps.values():
        data = one["data"]
        if data.get("pairs"):
            pairs = data["pairs"]
            cpus = [pair["cpu"]["host"] for pair in pairs if pair["cpu"]["host"] is not None]
            again = [pair["retransmits"] for pair in pairs if pair["retransmits"] is not None]
            found.append(
                Point(
                    **{name: data[name] for name in ("link", "repeat", "direction", "way", "count")},
                    samples=tuple(tuple(pair["samples"]) for pair in pairs),
                    cpu=sum(cpus) if cpus else None,
                    retransmits=sum(again) if again else None,
                )
            )
    return found


def content(run: Run) -> Content:
    """The content of the report. Raises ValueError if nothing was measured yet."""
    found = points(run)
    if not found:
        raise ValueError("no measurement is finished yet")
    links = list(dict.fromkeys(one.link for one in found))
    directions = list(dict.fromkeys(one.direction for one in found))
    both = any(run.info["parameters"].get(name) for name in ("peer", "peer_node"))
    tables = [_table(found, link, direction, both) for link in links for direction in directions]
    talk = [one for one in found if one.count]
    plots = [_bars(found, link, directions[0]) for link in links]
    if talk:
        tables += [_talkers(talk, link, direction) for link in links for direction in directions]
        plots += [_curves(talk, link, directions[0]) for link in links if any(one.link == link for one in talk)]
    return Content(
        title="TCP throughput between two nodes, and between slivers of them",
        outcome=_outcome(run, found, links, both),
        tables=[one for one in tables if one.rows],
        plots=plots,
        aims=[aim for link in links for aim in _aims(found, link)],
        metrics=_metrics(found),
        data=[row for one in found for row in _rows(one)],
    )


# --- figures ----------------------------------------------------------------------------------------------------------


def of(found: Sequence[Point], link: str, direction: str, way: str, count: int = 0) -> list[Point]:
    """The repetitions of one measurement."""
    return [one for one in found if (one.link, one.direction, one.way, one.count) == (link, direction, way, count)]


def shares(found: Sequence[Point], link: str, direction: str, way: str) -> list[float]:
    """The rates as shares of the rate of vanilla in the same repetition."""
    plain = {one.repeat: one.total for one in of(found, link, direction, VANILLA)}
    return [one.total / plain[one.repeat] for one in of(found, link, direction, way) if plain.get(one.repeat)]


def sums(found: Sequence[Point], link: str, direction: str, way: str, count: int) -> list[float]:
    """The summed rates of `count` talkers, divided by the rate of one talker in the same repetition."""
    alone = {one.repeat: one.total for one in of(found, link, direction, way, 1)}
    return [one.total / alone[one.repeat] for one in of(found, link, direction, way, count) if alone.get(one.repeat)]


def _samples(own: Sequence[Point]) -> list[float]:
    return [value / MBIT for one in own for pair in one.samples for value in pair]


def _known(values: Sequence[float | None]) -> list[float]:
    return [one for one in values if one is not None]


# --- tables -----------------------------------------------------------------------------------------------------------


def _named(link: str) -> str:
    return "the unlimited link" if link == UNLIMITED else f"the link held to {link}"


def _head(direction: str) -> str:
    return "to the node" if direction == "in" else "from the node"


def _table(found: Sequence[Point], link: str, direction: str, both: bool) -> Table:
    columns = [Column("way"), Column("average", "Mbit/s", 0), Column("minimum", "Mbit/s", 0)]
    columns += [Column("maximum", "Mbit/s", 0), Column("low", "Mbit/s", 1), Column("high", "Mbit/s", 1)]
    columns += [Column("samples"), Column("of vanilla", "%", 1), Column("cpu of the client", "%", 0)]
    columns += [Column(f"the paper: {one}", "Mbit/s") for one in ("average", "minimum", "maximum")]
    columns.append(Column("the paper: of vanilla", "%", 1))
    rows: list[Sequence[Value]] = []
    for way, (name, *paper) in PAPER.items():
        own = of(found, link, direction, way)
        beside = [*paper, 100 * paper[0] / PAPER[VANILLA][1]]
        if own:
            summary, cpus = stats.summary(_samples(own)), _known([one.cpu for one in own])
            share = shares(found, link, direction, way)
            more = [100 * fmean(share) if share else None, fmean(cpus) if cpus else None]
            ours = [summary.mean, summary.least, summary.most, summary.low, summary.high, summary.count, *more]
            rows.append([f"{way} ({name})" if way != VANILLA else name, *ours, *beside])
        elif way == "PlanetLab":
            rows.append([f"{name} (the paper's only)", *[None] * 8, *beside])
    ends = "a sliver of either node" if both else "the plain peer and a sliver of the node"
    note = (
        f"Between {ends}, through NAT and DNAT; vanilla: from node to node. Low and high: the 95 % confidence interval "
        "of the mean of all samples, which follow each other closely: it shows their spread, not that of another day. "
        "The paper's link was Gigabit Ethernet. CPU: of a core, as the client's iperf3 saw it of itself."
    )
    return Table(f"The paper's table 2: {_named(link)}, {_head(direction)}", columns, rows, note)


def _talkers(talk: Sequence[Point], link: str, direction: str) -> Table:
    columns = [Column("way"), Column("talkers"), Column("sum", "Mbit/s", 0), Column("low", "Mbit/s", 1)]
    columns += [Column("high", "Mbit/s", 1), Column("of one", "%", 1), Column("fairness", digits=4)]
    columns += [Column("least", "Mbit/s", 2), Column("most", "Mbit/s", 2), Column("retransmissions")]
    columns.append(Column("cpu of the clients", "%", 0))
    rows: list[Sequence[Value]] = []
    for way, count in dict.fromkeys((one.way, one.count) for one in talk):
        own = of(talk, link, direction, way, count)
        if own:
            summary = stats.summary([value / MBIT for one in own for value in _summed(one)])
            each = [value / MBIT for one in own for value in one.each]
            share, fair = sums(talk, link, direction, way, count), _known([one.fairness for one in own])
            again, cpus = _known([one.retransmits for one in own]), _known([one.cpu for one in own])
            fairness = fmean(fair) if fair else None
            of_one = 100 * fmean(share) if share else None
            more = [fairness, min(each), max(each), round(fmean(again)) if again else None]
            more.append(fmean(cpus) if cpus else None)
            rows.append([way, count, summary.mean, summary.low, summary.high, of_one, *more])
    note = (
        "Each talker is a sliver of its own with one connection. Fairness: Jain's index of their rates over the "
        "whole time, 1 if all had the same. Least and most: of one talker. Low and high: of the mean of the sums."
    )
    return Table(f"Many talk at once: {_named(link)}, {_head(direction)}", columns, rows, note)


def _summed(one: Point) -> list[float]:
    """The sums over all pairs, sample by sample; the pairs began at the same time."""
    least = min(len(pair) for pair in one.samples)
    return [sum(pair[at] for pair in one.samples) for at in range(least)]


# --- plots ------------------------------------------------------------------------------------------------------------


def _bars(found: Sequence[Point], link: str, direction: str) -> Plot:
    ways = [way for way in PAPER if of(found, link, direction, way)]
    summaries = [stats.summary(_samples(of(found, link, direction, way))) for way in ways]
    series = [
        Series("here", (), [x.mean for x in summaries], [x.least for x in summaries], [x.most for x in summaries])
    ]
    note = "Whiskers: the least and the most of all samples."
    if link != UNLIMITED:
        paper = [[float(value) for value in PAPER[way][1:]] for way in ways]
        average, least, most = ([one[at] for one in paper] for at in range(3))
        series.append(Series("the paper", (), average, least, most))
        note += " The paper's link was Gigabit Ethernet."
    return Plot(
        name=f"throughput-{_slug(link)}",
        title=f"Throughput on {_named(link)}",
        x=Axis("way"),
        left=Axis("average", "Mbit/s", 0),
        series=series,
        groups=ways,
        note=note,
    )


def _slug(link: str) -> str:
    return "".join(one if one.isalnum() else "-" for one in link.lower())


def _curves(talk: Sequence[Point], link: str, direction: str) -> Plot:
    series = []
    for way in dict.fromkeys(one.way for one in talk):
        counts = sorted({one.count for one in talk if of([one], link, direction, way, one.count)})
        own = [of(talk, link, direction, way, count) for count in counts]
        total = [fmean([one.total / MBIT for one in some]) for some in own]
        fair = [_known([one.fairness for one in some]) for some in own]
        series.append(Series(f"sum, {way}", counts, total))
        series.append(Series(f"fairness, {way}", counts, [fmean(one) if one else None for one in fair], right=True))
    return Plot(
        name=f"talkers-{_slug(link)}",
        title=f"Slivers that talk at once, {_named(link)}",
        x=Axis("talkers", log=True),
        left=Axis("sum of all", "Mbit/s", 0),
        right=Axis("Jain's fairness", least=0, most=1.05),
        series=series,
        marks=[Mark(MANY, "the aim")] if any(one.count > MANY for one in talk) else (),
    )


# --- what it came to --------------------------------------------------------------------------------------------------


def _outcome(run: Run, found: Sequence[Point], links: Sequence[str], both: bool) -> list[str]:
    said = [
        _sentence(found, link, direction) for link in links for direction in dict.fromkeys(x.direction for x in found)
    ]
    if not both:
        said.append("The peer had no slivers of its own: the clients were the plain peer, behind no NAT.")
    stops = [f"{one['title']}: {one['stopped']}" for one in run.steps.values() if one.get("stopped")]
    return [*(one for one in said if one), *(f"Stopped at {one}." for one in stops)]


def _sentence(found: Sequence[Point], link: str, direction: str) -> str:
    own = [way for way in PAPER if of(found, link, direction, way)]
    talk = [one for one in found if one.count > 1 and one.link == link and one.direction == direction]
    if not own and not talk:
        return ""
    parts = []
    for way in own:
        sentence = f"{way} {fmean(_samples(of(found, link, direction, way))):.0f} Mbit/s"
        share = shares(found, link, direction, way) if way != VANILLA else []
        parts.append(sentence + (f" ({100 * fmean(share):.1f} % of vanilla)" if share else ""))
    text = f"On {_named(link)}, {_head(direction)}: {', '.join(parts)}"
    if talk:
        most = max(talk, key=lambda one: (one.way != VANILLA, one.count))
        share = sums(found, link, direction, most.way, most.count)
        text += f"; {most.count} {most.way} talkers had {most.total / MBIT:.0f} Mbit/s together"
        text += f", {100 * fmean(share):.1f} % of the rate of one" if share else ""
        text += f", with a fairness of {most.fairness:.3f}" if most.fairness is not None else ""
    return f"{text}."


def _aims(found: Sequence[Point], link: str) -> list[Aim]:
    """The aims, which concern lxc, evaluated for the worst direction."""
    directions = list(dict.fromkeys(one.direction for one in found))
    least = _LEAST.get(link, _LEAST_SHAPED)
    share = [fmean(x) for x in (shares(found, link, one, "lxc") for one in directions) if x]
    aims = [_aim(f"lxc at least {100 * least:.0f} % of vanilla on {_named(link)}", share, least, "of vanilla", "")]
    counts = [one.count for one in found if one.count and one.link == link and one.way == "lxc"]
    if not counts:
        return aims
    most = MANY if MANY in counts else max(counts)
    few = "" if most >= MANY else f"with {most} talkers"
    total = [fmean(x) for x in (sums(found, link, one, "lxc", most) for one in directions) if x]
    fair = _known([one.fairness for one in found if (one.link, one.way, one.count) == (link, "lxc", most)])
    name = f"with {MANY} lxc slivers talking on {_named(link)}"
    return [
        *aims,
        _aim(f"{name} the sum is no more than 5 % below that of one", total, 0.95, "of one", few),
        _aim(f"{name} the fairness is at least 0.95", [min(fair)] if fair else [], 0.95, "", few),
    ]


def _aim(text: str, values: Sequence[float], least: float, unit: str, few: str) -> Aim:
    if not values:
        return Aim(text, None, "not measured")
    worst = min(values)
    measured = f"{100 * worst:.1f} % {unit}" if unit else f"{worst:.3f}"
    return Aim(text, None if few else worst >= least, f"{measured}, {few}" if few else measured)


def _metrics(found: Sequence[Point]) -> list[Metric]:
    metrics = []
    for link, direction, way, count in dict.fromkeys((x.link, x.direction, x.way, x.count) for x in found):
        own = of(found, link, direction, way, count)
        name = f"{way}{f', {count} at once' if count else ''}, {link}, {direction}"
        values = [value / MBIT for one in own for value in _summed(one)]
        metrics.append(Metric(name, "Mbit/s", values, better="more"))
        if count > 1:
            metrics.append(Metric(f"fairness: {name}", "", _known([one.fairness for one in own]), better="more"))
    return [one for one in metrics if one.values]


def _rows(one: Point) -> list[dict[str, Any]]:
    """A row of data.csv for each pair, in bits per second."""
    head = {"link": one.link, "repetition": one.repeat, "direction": one.direction, "way": one.way}
    return [
        {**head, "talkers": one.count, "pair": number, "mean": round(sum(pair) / len(pair)), "least": min(pair)}
        | {"most": max(pair), "samples": " ".join(str(round(value)) for value in pair)}
        for number, pair in enumerate(one.samples, 1)
    ]

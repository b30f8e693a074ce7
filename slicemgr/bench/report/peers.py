"""The report of `bench peers`: the costs of each system, as ratios to slicemgr in the same run, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from slicemgr.bench.experiments.peers import LABELS, OURS
from slicemgr.bench.frame.folder import Run
from slicemgr.bench.report import stats
from slicemgr.bench.report.content import Aim, Axis, Column, Content, Metric, Plot, Series, Table

MIB, KIB = 1 << 20, 1 << 10
_AIM = 200  # slices from which the aim is evaluated,
_AIM_DOCKER = 50  # and containers of Docker: some nodes lack the memory for 2 x 20 proxies each of 200
_AIM_PORTS = 20
_TIME, _MEMORY = 1 / 3, 1 / 6  # of the value of Docker
_FAIR = (
    "All systems: the same image's files on the same pool, sshd as first process, the same number of forwarded ports "
    "and made side by side; peers in a network of their own that one link joins to the node's. Slices also forward "
    "UDP, map ids and hold a disk quota, which the peers here do not."
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure. key: in the values of a System. scale: bytes or seconds per unit. better: "less" or "more"."""

    key: str
    name: str
    unit: str
    scale: float = 1.0
    better: str = "less"


FIGURES = (
    Figure("create", "create", "s"),
    Figure("banner", "ssh banner", "s"),
    Figure("memory", "memory", "MiB", MIB),
    Figure("charged", "memory of its own groups", "MiB", MIB),
    Figure("disk", "disk", "KiB", KIB),
    Figure("delete", "delete", "s"),
    Figure("in", "iperf3 in, of the plain link", "", better="more"),
    Figure("out", "iperf3 out, of the plain link", "", better="more"),
    Figure("work_in", "processor time of a byte in, of the plain link", ""),
    Figure("work_out", "processor time of a byte out, of the plain link", ""),
)
_BY_KEY = {one.key: one for one in FIGURES}
_BESIDE = ("create", "banner", "memory", "disk", "delete", "in", "out", "work_in", "work_out")
_WAYS = ("in", "out")
_CARRIED = 0.9  # of the rate of the plain link
_NOISE = 1.05  # a ratio up to which two values count as equal


@dataclass(slots=True)
class System:
    """A system. values: by figure, one per repetition (banner: per container), in seconds, bytes or shares."""

    key: str
    label: str
    version: str = ""
    most: int = 0
    total: list[float] = field(default_factory=list)  # seconds of all creates, per repetition
    rows: list[dict[str, Any]] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=dict)

    def mean(self, figure: str) -> float | None:
        found = self.values.get(figure)
        return sum(found) / len(found) if found else None


def systems(run: Run) -> list[System]:
    """The systems with a complete repetition, even one with fewer containers than requested; slicemgr first."""
    found: dict[str, System] = {}
    for name, step in run.steps.items():
        data, turn = step["data"], name.partition("/")[0]
        if not data.get("n") or "delete_seconds" not in data:
            continue
        key = data["system"]
        system = found.setdefault(key, System(key, LABELS.get(key, key), data["version"]))
        values = _values(data)
        for figure, several in values.items():
            system.values.setdefault(figure, []).extend(several)
        system.most = max(system.most, data["n"])
        system.total.append(data["seconds"])
        system.rows.append(_row(turn, system.label, data, values))
    return sorted(found.values(), key=lambda one: list(LABELS).index(one.key) if one.key in LABELS else len(LABELS))


def _values(data: dict[str, Any]) -> dict[str, list[float]]:
    n, rates, work = data["n"], data.get("rates") or {}, data.get("work") or {}
    found = {
        "create": [data["seconds"] / n],
        "banner": [one["banner"] for one in data["creates"]],
        "memory": [data["memory"] / n],
        "charged": [data["charged"] / n] if data.get("charged") is not None else [],
        "disk": [data["disk"] / n],
        "delete": [data["delete_seconds"] / n],
    }
    for way in _WAYS:
        found[way] = [rates[way] / rates["plain"]] if rates.get("plain") else []
        found[f"work_{way}"] = [work[way] / work["plain"]] if work.get("plain") else []
    return found


def _row(turn: str, label: str, data: dict[str, Any], values: dict[str, list[float]]) -> dict[str, Any]:
    """A row of data.csv, in seconds, bytes and bits per second; `_each` means per container."""
    rates, work = data.get("rates") or {}, data.get("work") or {}
    return {
        "repetition": turn,
        "system": label,
        "version": data["version"],
        "containers": data["n"],
        "reached": data["reached"],
        "create_all": data["seconds"],
        "banner_p50": stats.percentile(values["banner"], 0.5),
        "banner_p95": stats.percentile(values["banner"], 0.95),
        "memory_each": data["memory"] / data["n"],
        "charged_each": values["charged"][0] if values["charged"] else None,
        "disk_each": data["disk"] / data["n"],
        "delete_all": data["delete_seconds"],
        **{f"rate_{name}": rates.get(name) for name in ("plain", *_WAYS)},
        **{f"processor_seconds_per_gib_{name}": work.get(name) for name in ("plain", *_WAYS)},
    }


def content(run: Run) -> Content:
    """The content of the report. Raises ValueError if nothing was measured yet."""
    found = systems(run)
    if not found:
        raise ValueError("no system's turn is finished yet")
    tables = [_costs(found), _spread(found)]
    ours = next((one for one in found if one.key == OURS), None)
    others = [one for one in found if one.key != OURS]
    if ours is not None and others:
        tables.insert(1, _beside(ours, others))
    absent = _absent(run, {one.key for one in found})
    if absent.rows:
        tables.append(absent)
    ports = run.info["parameters"]["ports"]
    return Content(
        title="slicemgr's lxc slices beside other systems' containers",
        outcome=_outcome(ours, others, absent, ports),
        tables=tables,
        plots=[_bars(found, "create", "time of a create", "times"), _bars(found, "memory", "memory of each", "memory")],
        aims=[_aim(ours, others, ports), _aim_of_rates(ours), _aim_of_work(ours, others)],
        metrics=_metrics(found),
        data=[row for one in found for row in one.rows],
    )


# --- tables -----------------------------------------------------------------------------------------------------------


def _costs(found: Sequence[System]) -> Table:
    columns = [Column("system"), Column("version"), Column("containers"), Column("create", "s each", 3)]
    columns += [Column("banner, median", "s", 3), Column("banner, 95 %", "s", 3), Column("memory", "MiB each", 2)]
    columns += [Column("own groups", "MiB each", 2), Column("disk", "KiB each", 0), Column("delete", "s each", 3)]
    columns += [Column("iperf3 in", "of plain", 2), Column("iperf3 out", "of plain", 2)]
    columns += [Column("processor time of a byte in", "of plain", 2), Column("of a byte out", "of plain", 2)]
    rows = []
    for one in found:
        banners = one.values["banner"]
        row: list[str | float | None] = [one.label, one.version, one.most, one.mean("create")]
        row += [stats.percentile(banners, 0.5), stats.percentile(banners, 0.95), _scaled(one, "memory")]
        row += [_scaled(one, "charged"), _scaled(one, "disk"), one.mean("delete")]
        row += [one.mean(f"{figure}{way}") for figure in ("", "work_") for way in _WAYS]
        rows.append(row)
    note = f"{_FAIR} Create: the time until the last of all answered, by their number. "
    note += "Memory: the decrease of the node's available memory. Processor time of a byte: of all programs and the "
    note += "kernel on all cores while iperf3 runs between the container and a client behind one link, by the bytes "
    note += "that arrived, as the ratio to that of the link alone."
    return Table("What a container costs", columns, rows, note)


def _scaled(one: System, key: str) -> float | None:
    mean = one.mean(key)
    return None if mean is None else mean / _BY_KEY[key].scale


def _beside(ours: System, others: Sequence[System]) -> Table:
    columns = [Column("system"), *(Column(_BY_KEY[key].name, "×", 2) for key in _BESIDE), Column("p of the banners")]
    chances = stats.adjusted([stats.difference(ours.values["banner"], one.values["banner"]).p for one in others])
    rows = []
    for one, p in zip(others, chances, strict=True):
        chance = None if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
        rows.append([one.label, *(ratio(one, ours, key) for key in _BESIDE), chance])
    note = (
        "Each figure as a ratio to slicemgr's in the same run: above 1 it takes more than slicemgr; of the iperf3 "
        "columns, it carries more. p: that the times to the banner differ by chance, corrected for the number of rows."
    )
    return Table("Compared with slicemgr", columns, rows, note)


def ratio(one: System, other: System, key: str) -> float | None:
    """The ratio of two means; None if either was not measured, or is lost in noise."""
    above, below = one.mean(key), other.mean(key)
    return None if above is None or below is None or below <= 0 else above / below


def _spread(found: Sequence[System]) -> Table:
    columns = [
        Column("system"),
        Column("what"),
        Column("mean"),
        Column("low"),
        Column("high"),
        Column("unit"),
        Column("of"),
    ]
    rows: list[list[str | float | None]] = []
    for one in found:
        for figure in FIGURES:
            values = [value / figure.scale for value in one.values.get(figure.key, ())]
            if values:
                summary = stats.summary(values)
                ends = [_short(value) for value in (summary.mean, summary.low, summary.high)]
                rows.append([one.label, figure.name, *ends, figure.unit, summary.count])
    note = "Low and high: the 95 % confidence interval by Student's t; one value alone has none."
    return Table("How sure that is", columns, rows, note)


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


def _absent(run: Run, measured: set[str]) -> Table:
    """The systems that are not installed, and those that did not finish a repetition."""
    rows = []
    for one in run.steps.values():
        data = one["data"]
        key = data.get("system", one["series"])
        if one.get("stopped"):
            rows.append([LABELS.get(key, key), one["stopped"], None])
        elif "missing" in data and key not in measured:
            rows.append([LABELS.get(key, key), f"not installed: {', '.join(data['missing'])}", data["install"]])
    return Table(
        "Not measured, or not to the end", [Column("system"), Column("why"), Column("how to have it measured")], rows
    )


# --- plots ------------------------------------------------------------------------------------------------------------


def _bars(found: Sequence[System], key: str, title: str, name: str) -> Plot:
    figure = _BY_KEY[key]
    summaries = [stats.summary([value / figure.scale for value in one.values[key]]) for one in found]
    sure = all(one.low is not None for one in summaries)
    series = Series(
        figure.name,
        range(len(found)),
        [one.mean for one in summaries],
        [one.low for one in summaries] if sure else (),
        [one.high for one in summaries] if sure else (),
    )
    lost = any(one.mean <= 0 for one in summaries)  # lost in the noise of the node's memory
    axis = Axis(figure.name, f"{figure.unit} each", least=None if lost else 0)
    return Plot(name, title.capitalize(), Axis("system"), axis, [series], groups=[one.label for one in found])


# --- what it came to --------------------------------------------------------------------------------------------------


def _outcome(ours: System | None, others: Sequence[System], absent: Table, ports: int) -> list[str]:
    said = []
    if ours is None:
        said.append("No repetition of slicemgr is finished, so there is nothing to compare with.")
    else:
        said.append(
            f"slicemgr made {ours.most} lxc slices with {ports} forwarded ports each at {ours.mean('create') or 0:.3f} "
            f"s and {(ours.mean('memory') or 0) / MIB:.1f} MiB of the node's memory each."
        )
        said += [_sentence(one, ours) for one in others]
        behind = [f"{one.label} in {', '.join(ahead)}" for one in others if (ahead := _ahead(one, ours))]
        if behind:
            said.append(f"slicemgr is behind {'; behind '.join(behind)}.")
    if absent.rows:
        said.append(f"Not measured, or not to the end: {', '.join(dict.fromkeys(str(row[0]) for row in absent.rows))}.")
    return said


def _sentence(one: System, ours: System) -> str:
    parts = [
        f"{found:.2f} × {what}"
        for key, what in (
            ("create", "slicemgr's time of a create"),
            ("memory", "its memory"),
            ("disk", "its disk"),
            ("delete", "its time of a delete"),
        )
        if (found := ratio(one, ours, key)) is not None
    ]
    return f"{one.label}, {one.most} containers, same run: {', '.join(parts)}."


def _ahead(one: System, ours: System) -> list[str]:
    """The names of the figures in which a peer is better by more than 5 %, which is taken as noise."""
    names = []
    for key in _BESIDE:
        found = ratio(one, ours, key)
        if found is not None and (found < 1 / _NOISE if _BY_KEY[key].better == "less" else found > _NOISE):
            names.append(_BY_KEY[key].name)
    return names


def _aim(ours: System | None, others: Sequence[System], ports: int) -> Aim:
    text = (
        f"{_AIM} lxc slivers at under a third of Docker's time and a sixth of its memory per instance with "
        f"{_AIM_PORTS} forwarded ports, same run"
    )
    docker = next((one for one in others if one.key == "docker"), None)
    if ours is None or docker is None:
        return Aim(text, None, "Docker was not measured" if docker is None else "slicemgr was not measured")
    time, memory = ratio(ours, docker, "create"), ratio(ours, docker, "memory")
    if time is None or memory is None:
        return Aim(text, None, "Docker's memory is lost in noise: use more containers")
    measured = f"{time:.3f} of its time and {memory:.3f} of its memory, {ours.most} slices, {docker.most} by Docker"
    measured += f", {ports} ports"
    enough = ours.most >= _AIM and docker.most >= _AIM_DOCKER and ports >= _AIM_PORTS
    return Aim(text, (time < _TIME and memory < _MEMORY) if enough else None, measured)


def _aim_of_rates(ours: System | None) -> Aim:
    text = f"a slice carries at least {100 * _CARRIED:.0f} % of the plain link's rate, in and out"
    shares = [one for way in _WAYS if ours is not None and (one := ours.mean(way)) is not None]
    if len(shares) < len(_WAYS):
        return Aim(text, None, "not measured")
    return Aim(text, min(shares) >= _CARRIED, f"{shares[0]:.2f} in, {shares[1]:.2f} out")


def _aim_of_work(ours: System | None, others: Sequence[System]) -> Aim:
    text = f"a byte takes no more processor time than by plain LXC's bridge (up to {_NOISE} × is noise), same run"
    plain = next((one for one in others if one.key == "lxc"), None)
    if ours is None or plain is None:
        return Aim(text, None, "plain LXC was not measured" if plain is None else "slicemgr was not measured")
    found = [one for way in _WAYS if (one := ratio(ours, plain, f"work_{way}")) is not None]
    if len(found) < len(_WAYS):
        return Aim(text, None, "not measured")
    return Aim(text, max(found) <= _NOISE, f"{found[0]:.2f} × in, {found[1]:.2f} × out")


def _metrics(found: Sequence[System]) -> list[Metric]:
    return [
        Metric(f"{one.label}: {figure.name}", figure.unit, [value / figure.scale for value in values], figure.better)
        for one in found
        for figure in FIGURES
        if (values := one.values.get(figure.key))
    ]

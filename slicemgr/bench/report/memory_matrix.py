"""The part of the report of `bench memory` about knobs: what each changes, and five questions of the thesis. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from slicemgr.bench.experiments.memory_setting import CONTROLLER, HIGH, KERNEL, KNOBS, LOW
from slicemgr.bench.report import stats
from slicemgr.bench.report.content import Axis, Column, Plot, Series, Table, Value
from slicemgr.bench.report.memory_repetitions import KEPT, NAMES, PROMISED, SAME, TITLES, Measured
from slicemgr.human import counted

_PAGE = 4096
_MIB = 1 << 20
_MARKED = {KERNEL: "the kernel alone", CONTROLLER: "the controller"}  # in plots and answers

Cell = tuple[str, str]  # the name of a variant, "" for the base, and the configuration


def cells(found: Sequence[Measured]) -> dict[Cell, list[Measured]]:
    """The repetitions of each variant and configuration."""
    by: dict[Cell, list[Measured]] = {}
    for one in found:
        by.setdefault((one.variant, one.configuration), []).append(one)
    return by


def table(found: Sequence[Measured]) -> Table:
    columns = [Column("knob"), Column("who decides"), Column("kept, promised 1", "%", 1)]
    columns += [
        Column("kept, promised 2", "%", 1),
        Column("99 %, promised 1", "×", 2),
        Column("99 %, promised 2", "×", 2),
    ]
    columns += [Column("taken by the controller", "MiB", 0), Column("by the kernel", "MiB", 0)]
    columns += [Column("of it by programs that wait", "%", 0), Column("to swap", "MiB", 0)]
    columns += [Column("read back", "MiB", 0), Column("killed")]
    rows: list[list[Value]] = []
    for (variant, configuration), some in cells(found).items():
        kernel = [_kernel(one) for one in some]
        rows.append(
            [
                variant or "base",
                NAMES[configuration],
                *(100 * fmean([one.kept(name) for one in some]) for name in PROMISED),
                *(stats.mean_of_known([one.slower(name) for one in some]) for name in PROMISED),
                fmean([one.taken for one in some]) / _MIB,
                *(
                    stats.mean_of_known([one[name] for one in kernel])
                    for name in ("stolen", "direct", "swapped", "back")
                ),
                sum(one.killed for one in some),
            ]
        )
    base = next((one for one in found if not one.variant), found[0]).data.get("setting", {})
    values = ", ".join(f"{name} {base[name]}" for name in KNOBS if name in base)
    note = f"Base: {values}. The kernel's counters are those of the machine while the program held its memory."
    return Table("What each knob changes", columns, rows, note)


def _kernel(one: Measured) -> dict[str, float | None]:
    """What the kernel took, in MiB, and the part of it that programs took which waited for memory, in percent."""
    counted_ = one.data["node"].get("kernel") or {}
    if "pgsteal_direct" not in counted_:
        return dict.fromkeys(("stolen", "direct", "swapped", "back", "file"))
    direct = counted_["pgsteal_direct"]
    whole = direct + counted_["pgsteal_kswapd"]
    refaults = counted_.get("workingset_refault", 0) + counted_.get("workingset_refault_file", 0)
    refaults += counted_.get("workingset_refault_anon", 0)
    return {
        "stolen": whole * _PAGE / _MIB,
        "direct": 100 * direct / whole if whole else None,
        "file": 100 * counted_["pgsteal_file"] / whole if whole and "pgsteal_file" in counted_ else None,
        "swapped": counted_.get("pswpout", 0) * _PAGE / _MIB,
        "back": refaults * _PAGE / _MIB,
    }


def plots(found: Sequence[Measured]) -> list[Plot]:
    """For each knob with numbers, what slivers keep by its value."""
    by, made = cells(found), []
    base: Mapping[str, Any] = next((one.data["setting"] for one in found if not one.variant), {})
    for knob in KNOBS:
        names = {base.get(knob): ""} | {_value(name): name for name, _ in by if name.startswith(f"{knob}=")}
        values = sorted(value for value in names if isinstance(value, int))
        if len(values) < 2:
            continue
        series = []
        for configuration, title in _MARKED.items():
            for sliver in PROMISED:
                kept = [_kept(by.get((names[value], configuration), []), sliver) for value in values]
                if any(one is not None for one in kept):
                    series.append(Series(f"{title}, {TITLES[sliver]}", values, kept))
        plot = Plot(
            f"knob-{knob}",
            f"What slivers keep by {knob}",
            Axis(knob, "" if knob == "slivers" else "%"),
            Axis("kept part of the speed", least=0),
            series,
        )
        made.append(plot)
    return made


def _value(name: str) -> int | str:
    text = name.partition("=")[2]
    return int(text) if text.isdigit() else text


def _kept(some: Sequence[Measured], sliver: str) -> float | None:
    return fmean([one.kept(sliver) for one in some]) if some else None


def answers(found: Sequence[Measured]) -> list[str]:
    """The five questions of section 1.2 of the thesis, with figures of this run."""
    by = cells(found)
    kernel = {name: some for (name, configuration), some in by.items() if configuration == KERNEL}
    if not kernel:
        return []
    return [_how(kernel), _when(kernel), *_performance(kernel), *_policy(kernel), _desired(by)]


def _how(kernel: Mapping[str, Sequence[Measured]]) -> str:
    rows = [_kernel(one) for some in kernel.values() for one in some]
    stolen, file, swapped = (stats.mean_of_known([one[name] for one in rows]) for name in ("stolen", "file", "swapped"))
    kept = [fmean([one.kept(sliver) for some in kernel.values() for one in some]) for sliver in PROMISED]
    lost = f"the slivers that were promised 1 : 2 kept {100 * kept[0]:.0f} % and {100 * kept[1]:.0f} % of their speed"
    if stolen is None:
        return f"How is memory managed? The kernel alone takes it from all slivers alike: {lost}, over all settings."
    part = "" if file is None else f", {file:.0f} % of it page cache"
    return (
        f"How is memory managed? The kernel alone took {stolen:.0f} MiB in a repetition{part}, and moved "
        f"{swapped or 0:.0f} MiB to swap; it did not ask what was promised: {lost}, over all settings."
    )


def _when(kernel: Mapping[str, Sequence[Measured]]) -> str:
    some = [one for group in kernel.values() for one in group]
    direct = stats.mean_of_known([_kernel(one)["direct"] for one in some])
    free = fmean([min(one.data["node"]["free"]) for one in some]) / _MIB
    ended = sum(one.killed for one in some)
    killed = f"{counted(ended, 'program')} {'was' if ended == 1 else 'were'} killed"
    if direct is None:
        return f"What happens, and when? Memory was taken until {free:.0f} MiB were left free; {killed}."
    who = f"The kernel's own thread took {100 - direct:.0f} % of what was taken, and programs that wanted memory took"
    return (
        f"What happens, and when? {who} {direct:.0f} % themselves and waited for it; at least {free:.0f} MiB were left "
        f"free, and {killed}."
    )


def _spreads(kernel: Mapping[str, Sequence[Measured]]) -> dict[str, dict[str, float]]:
    """By knob, what the slivers kept for each of its values."""
    found: dict[str, dict[str, float]] = {}
    for name, some in kernel.items():
        if name:
            knob, _, value = name.partition("=")
            found.setdefault(knob, {})[value] = fmean([one.kept(sliver) for one in some for sliver in PROMISED])
    if "" in kernel:
        base = kernel[""][0].data.get("setting", {})
        own = fmean([one.kept(sliver) for one in kernel[""] for sliver in PROMISED])
        for knob in found:
            found[knob][str(base.get(knob))] = own
    return found


def _range(knob: str, values: Mapping[str, float]) -> str:
    ordered = sorted(values.items(), key=lambda one: one[1])
    (worst, least), (best, most) = ordered[0], ordered[-1]
    return f"{knob}, from {100 * least:.0f} % ({worst}) to {100 * most:.0f} % ({best})"


def _performance(kernel: Mapping[str, Sequence[Measured]]) -> list[str]:
    spreads = _spreads(kernel)
    if not spreads:
        return []
    ordered = sorted(spreads, key=lambda knob: min(spreads[knob].values()) - max(spreads[knob].values()))
    parts = "; ".join(_range(knob, spreads[knob]) for knob in ordered)
    return [
        f"How does the configuration change performance? With the kernel alone, what slivers keep depends on {parts}."
    ]


def _policy(kernel: Mapping[str, Sequence[Measured]]) -> list[str]:
    spreads = _spreads(kernel)
    own = [knob for knob in ("guarantee", "ceiling") if knob in spreads]
    if not own:
        return []
    parts = ", and on ".join(_range(knob, spreads[knob]) for knob in own)
    return [f"What do the knobs of containers change in what the kernel does? What slivers keep depends on {parts}."]


def _desired(by: Mapping[Cell, Sequence[Measured]]) -> str:
    parts = []
    for configuration, title in _MARKED.items():
        groups = [some for (_, own), some in by.items() if own == configuration]
        if not groups:
            continue
        good = sum(_as_promised(some) for some in groups)
        parts.append(f"with {title} in {good} of {counted(len(groups), 'setting')}")
    least = f"each sliver within its guarantee keeps {100 * KEPT:.0f} %"
    whole = f"{least}, and the one that was promised more keeps as much"
    return f"Do the knobs work as desired? They do if {whole}: {', '.join(parts)}."


def _as_promised(some: Sequence[Measured]) -> bool:
    kept = {sliver: fmean([one.kept(sliver) for one in some]) for sliver in PROMISED}
    within = float(some[0].data.get("setting", {}).get("usage", 0)) <= 100
    return (not within or min(kept.values()) >= KEPT) and kept[HIGH] >= kept[LOW] - SAME

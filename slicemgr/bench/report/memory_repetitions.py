"""The repetitions of `bench memory`: what each sliver did before, under and after the pressure. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from slicemgr.bench.experiments.memory_setting import (
    CONTROLLER,
    GUARANTEE,
    HIGH,
    HOG,
    KERNEL,
    LOW,
    STATIC,
    kind,
)
from slicemgr.bench.frame.folder import Run

KEPT = 0.95  # of the speed without pressure, which is to be kept, and which is to be back
SAME = 0.02  # of the speed: two slivers that keep parts that differ by less count as equal
_SMOOTH = 3  # seconds: a speed is back if their mean is
PROMISED = (LOW, HIGH)
NAMES = {
    KERNEL: "the kernel alone",
    GUARANTEE: "the kernel with guarantees",
    CONTROLLER: "the memory controller",
    STATIC: "a static partition",
}
TITLES = {LOW: "promised 1", HIGH: "promised 2", HOG: "promised nothing"}


@dataclass(frozen=True, slots=True)
class Measured:
    """One repetition of one configuration. rates, p99: of the slivers that were promised 1 and 2, for each second since
    the begin of the measurement.

    rates: of all slivers of that kind. p99: microseconds within which 99 % of the reads ended, the mean of those
    slivers; empty in runs of earlier versions. alone: seconds in which the further sliver did nothing; 0 in runs of
    earlier versions, in which it began with the pressure. begin, ramp, end: seconds when the pressure began, had grown,
    and ended.
    """

    configuration: str
    data: Mapping[str, Any]
    rates: Mapping[str, Sequence[float]]
    p99: Mapping[str, Sequence[float]]
    alone: int
    begin: int
    ramp: int
    end: int

    @property
    def _undisturbed(self) -> slice:
        """The seconds before the pressure, without the first, in which the further sliver begins."""
        return slice(self.alone + 1, self.begin)

    @property
    def hog(self) -> Sequence[float]:
        """What the further sliver used under pressure, in each second: bytes."""
        rates: Sequence[float] = self.data["slivers"][HOG]["each_second"]
        return rates[self.begin : self.end] if self.alone else rates

    def before(self, name: str) -> float:
        return fmean(self.rates[name][self._undisturbed])

    def of_alone(self, name: str) -> float | None:
        """The part of the speed that a sliver kept beside the further one, while memory was not short."""
        return self.before(name) / fmean(self.rates[name][1 : self.alone]) if self.alone else None

    def pressed(self, name: str) -> float:
        return fmean(self.rates[name][self.ramp : self.end])

    def kept(self, name: str) -> float:
        """The part of the speed that was kept under pressure."""
        return self.pressed(name) / self.before(name)

    def back(self, name: str) -> float | None:
        """Seconds after the pressure until the speed was back; None: not within the measurement."""
        rates, least = self.rates[name], KEPT * self.before(name)
        for second in range(self.end, len(rates) - _SMOOTH + 1):
            if fmean(rates[second : second + _SMOOTH]) >= least:
                return float(second - self.end)
        return None

    def usual(self, name: str) -> float | None:
        """The 99th percentile of reads without pressure, microseconds: the median of the seconds."""
        return median(self.p99[name][self._undisturbed]) if name in self.p99 else None

    def slower(self, name: str) -> float | None:
        """How many times as long it is under pressure."""
        usual = self.usual(name)
        under = median(self.p99[name][self.ramp : self.end]) if name in self.p99 else 0.0
        return under / usual if usual and under else None  # a killed load has no times

    @property
    def variant(self) -> str:
        """Such as `usage=120`; "" for the base, and in runs of earlier versions."""
        knob = self.data.get("knob", "")
        return f"{knob}={self.data['setting'][knob]}" if knob else ""

    @property
    def killed(self) -> int:
        """Loads that the kernel has ended for lack of memory, that of the node included."""
        return sum("killed" in one for one in self.data["slivers"].values()) + bool(self.data["node"].get("killed"))

    @property
    def taken(self) -> int:
        return int(self.data["node"]["taken"][-1])

    @property
    def cost(self) -> float:
        """Of a core, that the controller used."""
        return float(self.data["node"]["cpu"]) / len(self.data["node"]["taken"])

    @property
    def taking(self) -> float:
        """Of a core, that the kernel used in the controller's thread to take memory (v2)."""
        return float(self.data["node"].get("taking", 0.0)) / len(self.data["node"]["taken"])


def measured(run: Run) -> list[Measured]:
    found = []
    for one in run.steps.values():
        data = one["data"]
        if "configuration" not in data:
            continue
        seconds, alone = len(data["node"]["taken"]), int(data.get("alone", 0))
        part = (seconds - alone) // 4
        begin = alone + part
        rates = {name: _of_kind(data, name, "each_second", sum) for name in PROMISED}
        p99 = {name: series for name in PROMISED if (series := _of_kind(data, name, "p99", fmean))}
        found.append(
            Measured(data["configuration"], data, rates, p99, alone, begin, begin + part // 2, begin + 2 * part)
        )
    return found


def _of_kind(
    data: Mapping[str, Any], title: str, series: str, one_of: Callable[[list[float]], float]
) -> Sequence[float]:
    """A series of the slivers of a kind, made one by `one_of` in each second; empty if it was not measured.

    The loads began a moment before or after the agent: whole seconds are moved.
    """
    found = [
        _moved(own[series], own["at"] - data["node"]["at"])
        for name, own in data["slivers"].items()
        if kind(name) == title and series in own
    ]
    return [one_of(list(values)) for values in zip(*found, strict=True)]


def _moved(rates: Sequence[float], late: float) -> Sequence[float]:
    """As if the load had begun with the agent. late: seconds."""
    shift = round(late)
    if 4 * abs(shift) > len(rates):  # the clock of a sliver, which may have any time, is not that of the node
        return list(rates)
    return [rates[0]] * shift + list(rates[: len(rates) - shift]) if shift >= 0 else list(rates[-shift:])

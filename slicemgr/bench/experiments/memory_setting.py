"""What experiments of memory vary (section 3.2 of the thesis on elastic memory), and what each sliver gets. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from slicemgr.bench.frame.experiment import Json
from slicemgr.bench.frame.stores import STORES
from slicemgr.errors import invalid

KERNEL, GUARANTEE, CONTROLLER, STATIC = "kernel", "guarantee", "controller", "static"
CONFIGURATIONS = {KERNEL: "off", GUARANTEE: "observe", CONTROLLER: "on", STATIC: "off"}  # what the controller does
LOW, HIGH, HOG = "low", "high", "hog"
FILE, MEMORY, STRESS = "file", "memory", "stress"
WORKLOADS = (FILE, MEMORY, *(f"{store.name}-{one}" for store in STORES.values() for one in store.workloads))
HOGS = {
    "stream": 1.0,
    "rewrite": 0.5,
    "update": 0.5,
    STRESS: 0.5,
}  # loads of the other sliver; the part of the node they can reach
PROCESS, BALLOON = "process", "balloon"
MIB = 1 << 20
_WEIGHTS = {LOW: 100, HIGH: 200, HOG: 100}
_SHARES = {LOW: 1, HIGH: 2}  # of what is promised
_STATIC_HOG = 0.12  # of the node's memory: the limit of the other sliver in a static partition
_FITS = 0.8  # of its limit, which the memory of a program may have
_MACHINE_CEILING = 200  # percentage of its guarantee that is the limit of a virtual machine, unless another is set
_MACHINE_HOG = 0.3  # of the node's memory: the limit of the other sliver, if it is a virtual machine


@dataclass(frozen=True, slots=True)
class Setting:
    """The knobs.

    slivers: to which memory is promised, half of them twice as much as to the others. guarantee: percentage of the
    node's memory that is promised in all. ceiling: percentage of its guarantee that is the limit of each; 0: the node's
    memory. usage: percentage of its guarantee that each uses. workload: of WORKLOADS. hog: of HOGS, what the sliver
    does to which nothing is promised. pressure: percentage of the node's memory that a program takes, which the kernel
    cannot move to swap if external is `balloon`, as with a balloon below the node.
    """

    slivers: int = 2
    guarantee: int = 30
    ceiling: int = 0
    usage: int = 80
    workload: str = FILE
    hog: str = "stream"
    pressure: int = 40
    external: str = PROCESS

    @property
    def recorded(self) -> Json:
        return asdict(self)


BASE = Setting()
_BOUNDS = {"slivers": (2, 64), "guarantee": (3, 60), "ceiling": (0, 1000), "usage": (10, 300), "pressure": (0, 50)}
_WORDS = {"workload": WORKLOADS, "hog": tuple(HOGS), "external": (PROCESS, BALLOON)}
KNOBS = tuple(one.name for one in fields(Setting))


def checked(setting: Setting) -> Setting:
    """Raises Refused if a knob has a value that it cannot have."""
    for name, (least, most) in _BOUNDS.items():
        if not least <= getattr(setting, name) <= most:
            raise invalid(f"--{name}", f"{getattr(setting, name)} is out of range", f"{least} to {most}")
    for name, known in _WORDS.items():
        if getattr(setting, name) not in known:
            raise invalid(f"--{name}", f"{getattr(setting, name)!r} is unknown", ", ".join(known))
    if setting.slivers % 2:
        raise invalid("--slivers", f"{setting.slivers} is odd", "an even number: half are promised twice as much")
    if 0 < setting.ceiling < 100:
        raise invalid("--ceiling", f"{setting.ceiling} is less than the guarantee", "0, or at least 100")
    return setting


@dataclass(frozen=True, slots=True)
class Variant:
    """A setting that differs from the base by one knob. knob: "" for the base itself."""

    setting: Setting
    knob: str = ""

    @property
    def name(self) -> str:
        """Such as `usage=120`; "" for the base."""
        return f"{self.knob}={getattr(self.setting, self.knob)}" if self.knob else ""


def variants(base: Setting, varied: Sequence[str]) -> list[Variant]:
    """The base and those that differ from it. varied: such as `usage=50,120`. Raises Refused."""
    found = [Variant(checked(base))]
    for text in varied:
        knob, _, values = text.partition("=")
        if knob not in KNOBS or not values:
            raise invalid("--vary", f"{text[:40]!r} is not a knob with values", f"usage=50,120; {', '.join(KNOBS)}")
        for value in values.split(","):
            setting = checked(replace(base, **_value(knob, value)))
            if setting != base and Variant(setting, knob) not in found:
                found.append(Variant(setting, knob))
    return found


def _value(knob: str, text: str) -> dict[str, Any]:
    if knob in _WORDS:
        return {knob: text}
    if not text.isascii() or not text.isdigit():
        raise invalid("--vary", f"{text[:40]!r} is not a value of {knob}", "a whole number")
    return {knob: int(text[:9])}


@dataclass(frozen=True, slots=True)
class Size:
    """Of one sliver, in bytes. file: that it uses, of a file or of its own memory."""

    limit: int
    guarantee: int
    weight: int
    file: int


def kind(name: str) -> str:
    """LOW, HIGH or HOG, for the name of a sliver."""
    return name.rstrip("0123456789")


def sizes(configuration: str, memory: int, setting: Setting = BASE, *, machines: bool = False) -> dict[str, Size]:
    """Of each sliver. memory: of the node. A static partition limits each to what it was promised.

    machines: virtual machines, which are not started with all memory of the node as their limit.
    """
    pairs, static = setting.slivers // 2, configuration == STATIC
    ceiling_part = setting.ceiling or (_MACHINE_CEILING if machines else 0)
    found = {}
    for number in range(1, pairs + 1):
        for title, share in _SHARES.items():
            promised = _whole(memory * setting.guarantee / 100 * share / sum(_SHARES.values()) / pairs)
            ceiling = _whole(promised * ceiling_part / 100) or _whole(memory)
            used = int(promised * setting.usage / 100)
            name = f"{title}{number}" if number > 1 else title
            found[name] = Size(promised if static else ceiling, promised, _WEIGHTS[title], used)
    limit = _whole(memory * (_STATIC_HOG if static else _MACHINE_HOG if machines else 1.0))
    used = _whole(HOGS[setting.hog] * memory)
    found[HOG] = Size(limit, 0, _WEIGHTS[HOG], used if setting.hog == "stream" else min(used, int(_FITS * limit)))
    return found


def of_kind(found: Mapping[str, Size], title: str) -> list[str]:
    """The names of the slivers of a kind."""
    return [name for name in found if kind(name) == title]


def _whole(amount: float) -> int:
    """In whole MiB."""
    return int(amount) // MIB * MIB

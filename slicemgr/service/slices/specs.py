"""Parse and validate raw input into a `SliceSpec`. All errors are reported together, each with its field."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy.engine import Row

from slicemgr import names
from slicemgr.config import RATE_HINT, Config, parse_duration, parse_rate, parse_size
from slicemgr.errors import Code, Refused, invalid
from slicemgr.model import (
    DEFAULT_PROJECT,
    KIB,
    MIB,
    Boot,
    Init,
    Limits,
    Machine,
    OnLoss,
    SliceSpec,
    SliverType,
    Spread,
    Where,
)
from slicemgr.policy import leases
from slicemgr.policy.allocate import size_text
from slicemgr.service.slices import request_keys, user_data

T = TypeVar("T")

LONGEST_NAME = 40  # with `-999` appended it is still a host name label of at most 63 characters
MOST_PORTS = 1000
LEAST_MEMORY = LEAST_DISK = 16 * MIB
LEAST_PIDS, MOST_PIDS = 8, 4_194_304  # the kernel's PID_MAX_LIMIT
LEAST_CPU, MOST_CPU = 0.01, 8192.0
LEAST_IO_RATE, LEAST_IO_OPS = 64 * KIB, 10  # a guest with less memory does not boot
MOST_BYTES = 1 << 50
LEAST_RATE, MOST_RATE = 64_000, 100_000_000_000  # bits per second

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_IMAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NETWORK = ("net_in", "net_out")
_MEMORY = ("memory", "memory_guarantee", "memory_weight", "memory_max", "memory_soft")
LIMITS = ("cpu", "cpu_shares", *_MEMORY, "disk", "pids", "io_weight", "io_rate", "io_ops", *_NETWORK)
_FIELDS = frozenset(
    (
        *("name", "project", "type", "image", "count", *LIMITS, "ports", "lease", "ssh_keys", "node"),
        *("site", "spread", "apart", "boot", "machine", "init", "user_data", "on_loss", "warm"),
    )
)
_PAGE_CACHE = "containers write through the page cache of the node, which has no rate limit; use io_weight"
_NOT_OF = {  # unsupported fields of each type, with the reason
    SliverType.LXC: {
        "io_rate": _PAGE_CACHE,
        "io_ops": _PAGE_CACHE,
        "boot": "a container does not boot a kernel",
        "machine": "a container has no hardware of its own",
        "memory_max": "the memory of a container can always grow while it runs",
    },
    SliverType.KVM: {
        "pids": "a virtual machine has its own kernel, which limits its own processes",
        "init": "a virtual machine always boots the init of its image",
    },
}


class InvalidSpec(Refused):
    """Several fields are wrong. The error itself is the first one; `errors` has all."""

    def __init__(self, errors: list[Refused]) -> None:
        first = errors[0]
        super().__init__(Code.INVALID, first.message, hint=first.hint, field=first.field)
        self.errors = tuple(errors)


class _Form:
    """Reads fields of the raw input and collects their errors."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw
        self.errors: list[Refused] = []

    def take(self, name: str, parse: Callable[[Any], T], default: T) -> T:
        """The parsed field; the default if it is absent or wrong."""
        value = self._raw.get(name)
        if value is None:
            return default
        return self.attempt(lambda: parse(value), default)

    def need(self, name: str, parse: Callable[[Any], T], default: T, hint: str = "") -> T:
        if self._raw.get(name) is None:
            self.errors.append(invalid(name, "is missing", hint))
        return self.take(name, parse, default)

    def attempt(self, work: Callable[[], T], default: T) -> T:
        try:
            return work()
        except Refused as error:
            self.errors.append(error)
            return default


def of_rows(head: Row[*tuple[Any, ...]], slivers: Sequence[Row[*tuple[Any, ...]]]) -> SliceSpec:
    """The specification of slivers that exist, with the limits of the first. head: the row of their slice."""
    first = slivers[0]
    return SliceSpec(
        name=head.name,
        type=SliverType(head.type),
        image=head.image,
        count=len(slivers),
        limits=Limits(**{name: getattr(first, name) for name in LIMITS}),
        ports=first.port_count,
        lease=head.expires_at - head.created_at,
        ssh_keys=tuple(head.ssh_keys),
        boot=Boot(head.boot),
        machine=Machine(head.machine),
        init=Init(head.init),
        project=head.project,
    )


def slice_spec(
    raw: Mapping[str, Any],
    config: Config,
    default_lease: timedelta | None = None,
    hints: Mapping[str, str] | None = None,
    *,
    keyless: bool = False,
) -> SliceSpec:
    """The request in `raw` (the JSON of `POST /slices`), complete and valid. Raises InvalidSpec.

    default_lease: for a request without a lease, in a project with a policy of its own. hints: for missing fields.
    keyless: whether it needs no ssh keys.
    """
    form = _Form(raw)
    for unknown in sorted(set(raw) - _FIELDS):
        form.errors.append(invalid(unknown[:64], "unknown field", f"the fields are {', '.join(sorted(_FIELDS))}"))
    defaults, network = config.limits, config.network
    sliver_type = form.need("type", _sliver_type, SliverType.LXC)
    for name, reason in _NOT_OF[sliver_type].items():
        if raw.get(name) is not None:
            form.errors.append(invalid(name, f"is not supported for {sliver_type}: {reason}", "omit this field"))
    usual = min(config.lease.default, config.lease.longest)
    most_ports = min(MOST_PORTS, network.ports_last - network.ports_first + 1)
    spec = SliceSpec(
        name=form.need("name", slice_name, ""),
        type=sliver_type,
        image=form.need("image", lambda value: _text("image", value), "", (hints or {}).get("image", "")),
        count=form.take("count", lambda value: _whole("count", value, 1, defaults.slivers_per_slice), 1),
        limits=Limits(
            memory=form.take("memory", memory, defaults.memory.bytes),
            memory_guarantee=form.take("memory_guarantee", memory_guarantee, defaults.memory_guarantee.bytes),
            memory_weight=form.take("memory_weight", memory_weight, 100),
            memory_max=form.take("memory_max", lambda value: _size("memory_max", value, LEAST_MEMORY), None),
            disk=form.take("disk", disk, defaults.disk.bytes),
            pids=form.take(
                "pids",
                lambda value: _whole("pids", value, LEAST_PIDS, MOST_PIDS),
                defaults.pids if sliver_type is SliverType.LXC else 0,
            ),
            cpu=form.take("cpu", _cpu, defaults.cpu),
            cpu_shares=form.take("cpu_shares", lambda value: _whole("cpu_shares", value, 2, 262144), 1024),
            memory_soft=form.take("memory_soft", lambda value: _size("memory_soft", value, LEAST_MEMORY), None),
            io_weight=form.take("io_weight", lambda value: _whole("io_weight", value, 1, 1000), None),
            io_rate=form.take("io_rate", lambda value: _size("io_rate", value, LEAST_IO_RATE), None),
            io_ops=form.take("io_ops", lambda value: _whole("io_ops", value, LEAST_IO_OPS, 10_000_000), None),
            net_in=form.take("net_in", lambda value: _rate("net_in", value), None),
            net_out=form.take("net_out", lambda value: _rate("net_out", value), None),
        ),
        ports=form.take("ports", lambda value: _whole("ports", value, 1, most_ports), network.ports_per_sliver),
        lease=form.take("lease", lambda value: lease(value, config), default_lease or usual),
        ssh_keys=() if keyless else form.need("ssh_keys", _keys, ()),
        where=Where(
            nodes=form.take("node", _nodes, ()),
            site=form.take("site", lambda value: _text("site", value), ""),
            spread=form.take("spread", _spread, Spread.NODE),
            apart=form.take("apart", lambda value: _text("apart", value), ""),
        ),
        boot=form.take("boot", _boot, Boot.LOADER),
        machine=form.take("machine", _machine, Machine.STANDARD),
        init=form.take("init", _init, Init.MINIMAL),
        user_data=form.take("user_data", user_data.check, ""),
        on_loss=form.take("on_loss", _on_loss, OnLoss.KEEP),
        warm=form.take("warm", _warm, True),
        project=form.take("project", lambda value: _text("project", value), DEFAULT_PROJECT),
    )
    if raw.get("memory_guarantee") is None:
        guarantee = min(spec.limits.memory, spec.limits.memory_guarantee)
        spec = replace(spec, limits=replace(spec.limits, memory_guarantee=guarantee))
    for name in ("memory_guarantee", "memory_soft"):
        if (getattr(spec.limits, name) or 0) > spec.limits.memory:
            form.errors.append(invalid(name, "exceeds the memory limit", "use at most the value of memory"))
    if spec.limits.memory_max is not None and spec.limits.memory_max < spec.limits.memory:
        form.errors.append(invalid("memory_max", "is less than the memory limit", "use at least the value of memory"))
    if spec.machine is Machine.THIN and spec.boot not in (Boot.LOADER, Boot.DIRECT):
        form.errors.append(invalid("boot", "a thin machine has no firmware", "direct, or omit this field"))
    if form.errors:
        raise InvalidSpec(form.errors)
    return spec


def changed(original: SliceSpec, raw: Mapping[str, Any], config: Config, contents: int = 0) -> SliceSpec:
    """The specification of a clone: the original, with name, project, lease, disk and ssh_keys of `raw`.

    contents: bytes that the largest sliver begins with, for which its disk must have room. Refused(INVALID).
    """
    span = original.lease if raw.get("lease") is None else lease(raw["lease"], config)
    limits = original.limits if raw.get("disk") is None else replace(original.limits, disk=disk(raw["disk"]))
    keys = original.ssh_keys if raw.get("ssh_keys") is None else _keys(raw["ssh_keys"])
    if limits.disk < contents + LEAST_DISK:
        least = size_text(contents + LEAST_DISK)
        raise invalid("disk", f"the snapshot already contains {size_text(contents)}", f"at least {least}")
    own = {"name": raw["name"], "project": raw["project"]}
    return replace(original, **own, lease=span, limits=limits, ssh_keys=keys)


def objections(raw: Mapping[str, Any], config: Config) -> tuple[Refused, ...]:
    """What is wrong with the fields of an incomplete request; missing fields are not reported."""
    try:
        slice_spec(raw, config)
    except InvalidSpec as error:
        return tuple(one for one in error.errors if one.field in raw)
    return ()


def slice_name(value: Any) -> str:
    """A slice name, which is also the first label of a host name. Refused(INVALID)."""
    text = _text("name", value)
    if len(text) > LONGEST_NAME:
        raise invalid("name", f"{len(text)} characters are too many", f"at most {LONGEST_NAME}")
    if not _NAME.fullmatch(text):
        hint = "lower-case letters, digits and inner hyphens, as in `my-slice-1`"
        raise invalid("name", f"{text!r} is not a valid slice name", hint)
    return text


def image_name(value: Any) -> str:
    """An image name. Refused(INVALID)."""
    text = _text("name", value)
    if not _IMAGE_NAME.fullmatch(text):
        hint = "up to 64 letters, digits, dots, hyphens and underscores, a letter or digit first"
        raise invalid("name", f"{text[:80]!r} is not a valid image name", hint)
    return text


def lease(value: Any, config: Config) -> timedelta:
    """The duration of a new lease."""
    span = renewal(value)
    leases.check(span, config.lease.longest)
    return span


def disk(value: Any) -> int:
    """A disk limit in bytes. Refused(INVALID)."""
    return _size("disk", value, LEAST_DISK)


def memory(value: Any) -> int:
    """A memory limit in bytes. Refused(INVALID)."""
    return _size("memory", value, LEAST_MEMORY)


def memory_guarantee(value: Any) -> int:
    """A memory guarantee in bytes; 0: none. Refused(INVALID)."""
    return 0 if value in (0, "0") and value is not False else _size("memory_guarantee", value, MIB)


def memory_weight(value: Any) -> int:
    """The weight of a sliver for memory beyond its guarantee. Refused(INVALID)."""
    return _whole("memory_weight", value, 1, 10_000)


def sliver_index(value: object) -> int:
    """The index of a sliver. Refused(INVALID)."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= names.MAX_INDEX:
        raise invalid("sliver", f"{str(value)[:40]!r} is not the number of a sliver", f"0 to {names.MAX_INDEX}")
    return value


def renewal(value: Any) -> timedelta:
    """The requested duration of a renewal; the policy decides how much is granted."""
    if not isinstance(value, str):
        raise invalid("lease", "must be text", "write it as 12h, 7d or 2w")
    if value.strip().startswith("-"):
        raise invalid("lease", f"{value[:40]} is not in the future", "write it as 12h, 7d or 2w")
    span = parse_duration(value, "lease")
    leases.check(span)
    return span


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise invalid(field, "must be text")
    if not value:
        raise invalid(field, "is empty")
    if len(value) > 1024:
        raise invalid(field, "is too long")
    return value


def _sliver_type(value: Any) -> SliverType:
    if value not in tuple(SliverType):
        raise invalid("type", f"{str(value)[:40]!r} is unknown", "lxc or kvm")
    return SliverType(value)


def _boot(value: Any) -> Boot:
    if value not in tuple(Boot):
        raise invalid("boot", f"{str(value)[:40]!r} is unknown", ", ".join(Boot))
    return Boot(value)


def _warm(value: Any) -> bool:
    if not isinstance(value, bool):
        raise invalid("warm", f"{str(value)[:40]!r} is unknown", "true or false")
    return value


def _machine(value: Any) -> Machine:
    if value not in tuple(Machine):
        raise invalid("machine", f"{str(value)[:40]!r} is unknown", " or ".join(Machine))
    return Machine(value)


def _init(value: Any) -> Init:
    if value not in tuple(Init):
        raise invalid("init", f"{str(value)[:40]!r} is unknown", " or ".join(Init))
    return Init(value)


def _on_loss(value: Any) -> OnLoss:
    try:
        return OnLoss(value)
    except ValueError:
        raise invalid("on_loss", f"{str(value)[:40]!r} is unknown", " or ".join(OnLoss)) from None


def _spread(value: Any) -> Spread:
    if value not in tuple(Spread):
        raise invalid("spread", f"{str(value)[:40]!r} is unknown", ", ".join(Spread))
    return Spread(value)


def _nodes(value: Any) -> tuple[str, ...]:
    """Names of nodes, separated by commas, each once."""
    found = tuple(dict.fromkeys(name.strip() for name in _text("node", value).split(",")))
    if "" in found:
        raise invalid("node", "has an empty name", "separate the names of nodes by commas, such as n1,n2")
    return found


def _whole(field: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value.strip()):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise invalid(field, f"{str(value)[:40]!r} is not a whole number", f"{least} to {most}")
    if not least <= value <= most:
        raise invalid(field, f"{str(value)[:40]} is out of range", f"{least} to {most}")
    return value


def _size(field: str, value: Any, least: int) -> int:
    enough = f"at least {least // MIB}M" if least >= MIB else f"at least {least // KIB}K"
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise invalid(field, f"{str(value)[:40]!r} is not a size", "write it as 512M, 2G or a number of bytes")
    if str(value).strip().startswith("-"):
        raise invalid(field, f"{str(value)[:40]} is negative", enough)
    size = parse_size(value if isinstance(value, str) else str(value), field)
    if size < least:
        if meant := with_unit(str(value).strip(), least):
            raise invalid(field, f"{str(value).strip()} B is too little", f"did you mean {meant}? Use {enough}")
        raise invalid(field, f"{str(value)[:40]} is too small", enough)
    if size > MOST_BYTES:
        raise invalid(field, f"{str(value)[:40]} exceeds the capacity of every node", "write it as 512M or 2G")
    return size


def with_unit(number: str, least: int) -> str:
    """The size that a number without a unit may mean: `30M` for 30; "": none."""
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", number):
        return ""
    return next((number + unit for unit in "MG" if parse_size(number + unit) >= least), "")


def _rate(field: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise invalid(field, f"{str(value)[:40]!r} is not a rate", RATE_HINT)
    rate = parse_rate(str(value), field)
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise invalid(field, f"{str(value)[:40]} is out of range", "64kbit to 100Gbit")
    return rate


def _cpu(value: Any) -> float:
    try:
        cpu = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        cpu = math.nan
    if math.isnan(cpu):
        raise invalid("cpu", f"{str(value)[:40]!r} is not a number of CPU cores", "write it as 0.5, 1 or 2")
    if not LEAST_CPU <= cpu <= MOST_CPU:
        raise invalid(
            "cpu", f"{str(value)[:40]} CPU cores are out of range", f"use {LEAST_CPU} up to the capacity of the node"
        )
    return cpu


def _keys(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise invalid(request_keys.FIELD, "must be a list of texts, each the content of a .pub file")
    return request_keys.parse(value)


def baseline(raw: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """The parameters of a baseline: type, image (sha256), boot, machine, memory (bytes), count, parallel."""
    return {
        "type": _sliver_type(raw.get("type", SliverType.LXC)).value,
        "boot": _boot(raw.get("boot", Boot.LOADER)).value,
        "machine": _machine(raw.get("machine", Machine.STANDARD)).value,
        "memory": _size("memory", raw.get("memory", config.limits.memory.bytes), LEAST_MEMORY),
        "image": _text("image", raw.get("image")),
        "count": _whole("count", raw.get("count", 1), 1, config.limits.slivers_per_slice),
        "parallel": _whole("parallel", raw.get("parallel", 1), 1, 64),
    }

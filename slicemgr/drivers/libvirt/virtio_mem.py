"""The size of a running virtual machine that can get more memory than it started with: what its balloon leaves to the
guest, and what the guest has plugged of the device virtio-mem.

The guest decides how much it plugs, up to what is requested, and how much it gives back, and it can write to memory
that it gave back. So only the limit of QEMU's group bounds it. That rises before the guest can get memory, and falls
after the guest has given it back.

Sizes are in KiB. The functions get libvirt's domains as objects, and pass libvirt's errors on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree as ET

from slicemgr.drivers.libvirt.machine_xml import STATISTICS, VIRTIO_MEM
from slicemgr.errors import Failed

_STEP = 4 * 1024  # Linux before 5.19 plugs no less
_LEAST = 16 * 1024  # that a balloon leaves
_PATIENCE = 10.0  # seconds in which a guest must have taken or given some memory
_MOST = 120.0  # seconds for all of it
_PAUSE = 0.1  # seconds between two readings of that
_ONLINE = 0.5  # the part of what a guest plugged by which its own total must have grown
_TRIES = 3  # of a balloon, whose guest may give plugged memory back meanwhile
_LIVE = 1  # VIR_DOMAIN_AFFECT_LIVE
_START = "or stop and start the slice, which then starts with it"


@dataclass(frozen=True, slots=True)
class Size:
    """base: with which the machine started. most: that the device can add. requested: that the guest is to plug.
    plugged: that it has plugged. xml: of the device.
    """

    base: int
    most: int
    requested: int
    plugged: int
    xml: str


def read(domain: Any) -> Size | None:
    """The size of a machine; None if it has no such device."""
    tree = ET.fromstring(domain.XMLDesc())
    device, cell = tree.find(f"devices/memory[@model='{VIRTIO_MEM}']"), tree.find("cpu/numa/cell")
    if device is None or cell is None:
        return None
    most, requested, plugged = (int(device.findtext(f"target/{one}") or 0) for one in ("size", "requested", "current"))
    return Size(int(cell.get("memory", "0")), most, requested, plugged, ET.tostring(device, encoding="unicode"))


def resize(domain: Any, before: Size, memory: int, overhead: int) -> None:
    """Give a guest `memory`, and let its QEMU use `overhead` beside it. before: its size now.

    Raises Failed if the guest does not follow; it is then to have what it had.
    """
    if memory > before.base + before.most:
        raise Failed("the machine started with less memory", hint="stop the slice first")
    left, limit = _left(domain), _limit_of(domain)
    requested = max(0, memory - before.base) // _STEP * _STEP
    with ExitStack() as undo:
        undo.callback(_take_back, domain, before, left, limit, overhead)
        if memory + overhead > limit:
            _limit(domain, memory + overhead)
        if requested > before.plugged and requested >= before.requested:
            _plug(domain, before, requested)
        elif (requested, requested) != (before.requested, before.plugged):
            _request(domain, before, requested)
            follows(lambda: _plugged(domain), lambda plugged: plugged <= requested)  # the balloon takes the rest
        _set_balloon(domain, before.base, memory)
        undo.pop_all()
    _limit(domain, memory + overhead)


def follows(seen: Callable[[], int], reached: Callable[[int], bool]) -> bool:
    """Wait until a guest has reached a size; False if its size stops to change before, or it takes too long."""
    begun = moved = time.monotonic()
    known = seen()
    while not reached(now := seen()):
        if now != known:
            known, moved = now, time.monotonic()
        if time.monotonic() > min(moved + _PATIENCE, begun + _MOST):
            return False
        time.sleep(_PAUSE)
    return True


def _plug(domain: Any, before: Size, requested: int) -> None:
    """Have a guest plug memory, and wait until it also uses that."""
    with _frequent_reports(domain):
        total, more = _fresh_total(domain), requested - _plugged(domain)
        _request(domain, before, requested)
        if not follows(lambda: _plugged(domain), lambda plugged: plugged == requested):
            hint = f"its kernel needs the module virtio_mem, which `modprobe virtio_mem` loads; {_START}"
            raise Failed("the guest does not take more memory", hint=hint)
        if total is not None and not _uses(domain, total + int(_ONLINE * more)):
            setting = "`echo online > /sys/devices/system/memory/auto_online_blocks` before"
            hint = f"its kernel must bring new memory blocks online: {setting}; {_START}"
            raise Failed("the guest does not use the memory that it took", hint=hint)


def _uses(domain: Any, total: int) -> bool:
    """Wait until a guest reports that much memory in all."""
    return follows(lambda: _total(domain) or 0, lambda now: now >= total)


def _set_balloon(domain: Any, base: int, memory: int) -> None:
    """Leave so much of what the guest started with that it has `memory` together with what it has plugged."""
    for _ in range(_TRIES):
        plugged = _plugged(domain)
        left = min(base, memory - plugged)
        if left >= _LEAST and left != _left(domain):
            domain.setMemoryFlags(left, _LIVE)
        if left < _LEAST or not follows(lambda: _left(domain), lambda seen, left=left: seen == left):  # type: ignore[misc]
            hint = "its kernel needs the drivers virtio_mem and virtio_balloon, and room; or stop the slice first"
            raise Failed("the guest does not give its memory back", hint=hint)
        if _plugged(domain) == plugged:
            return


def _take_back(domain: Any, before: Size, left: int, limit: int, overhead: int) -> None:
    """Request what was requested before. The limit falls to what it was only if the guest holds no more than that."""
    most = max(before.requested, before.plugged)
    _request(domain, before, before.requested)
    domain.setMemoryFlags(left, _LIVE)
    follows(lambda: _plugged(domain), lambda plugged: plugged <= most)
    _limit(domain, max(limit, _left(domain) + _plugged(domain) + overhead))


def _request(domain: Any, size: Size, requested: int) -> None:
    device = ET.fromstring(size.xml)
    target = device.find("target/requested")
    if target is None:
        raise Failed(f"libvirt does not show the size of {VIRTIO_MEM}")
    target.text = str(requested)
    domain.updateDeviceFlags(ET.tostring(device, encoding="unicode"), _LIVE)


def _plugged(domain: Any) -> int:
    size = read(domain)
    return 0 if size is None else size.plugged


def _left(domain: Any) -> int:
    """What the balloon leaves of what the machine started with. What libvirt itself keeps may have plugged memory."""
    return int(domain.memoryStats()["actual"])


def _limit_of(domain: Any) -> int:
    return int(domain.memoryParameters(_LIVE)["hard_limit"])


def _limit(domain: Any, limit: int) -> None:
    domain.setMemoryParameters({"hard_limit": limit}, _LIVE)


@contextmanager
def _frequent_reports(domain: Any) -> Iterator[None]:
    domain.setMemoryStatsPeriod(1, _LIVE)
    try:
        yield
    finally:
        domain.setMemoryStatsPeriod(STATISTICS, _LIVE)


def _fresh_total(domain: Any) -> int | None:
    """The same of a report that is to come; None if none comes."""
    last = _reported_at(domain)
    if not last or not follows(lambda: _reported_at(domain), lambda at: at > last):
        return None
    return _total(domain)


def _total(domain: Any) -> int | None:
    """What a guest last reported as its memory in all; None: nothing."""
    total = domain.memoryStats().get("available")
    return None if total is None else int(total)


def _reported_at(domain: Any) -> int:
    """Seconds since 1970; 0: never."""
    return int(domain.memoryStats().get("last_update", 0))

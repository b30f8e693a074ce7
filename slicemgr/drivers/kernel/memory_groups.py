"""What slivers hold of the node's memory by their groups, how to take it, and how to spare it. cgroup v1 and v2. Bytes.

v2 takes memory by a write to `memory.reclaim`, which needs no lower limit. On v1 only a lowered limit takes it, so
`sliver-reclaim` lowers it and sets it again, also if the agent is killed meanwhile. v2 alone can spare memory.
"""

from __future__ import annotations

import errno
import mmap
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from slicemgr.config import PACKAGE
from slicemgr.drivers import command
from slicemgr.drivers.command import CommandFailed
from slicemgr.drivers.kernel import cgroup
from slicemgr.drivers.kernel.cgroup import MOUNT
from slicemgr.drivers.kernel.counters import pressure, read_file, reread, value_in
from slicemgr.errors import Failed

RECLAIM = PACKAGE / "libexec" / "sliver-reclaim"
RECURSIVE = "memory_recursiveprot"
_SPARED = "memory.min"  # kernels with several generations of pages take half of what `memory.low` should spare
_SOFT = "memory.soft_limit_in_bytes"
UNLIMITED = (1 << 63) - 1  # bytes that v2 shows as `max`
_ALL = 1 << 62  # bytes, more than any machine has
_PART = 4 << 20  # bytes that are taken at once (v2)
_STEP = 0.5  # seconds after which no further part is taken in this step
_LONGEST = 30.0  # seconds; the kernel scans the pages of all groups


@dataclass(frozen=True, slots=True)
class Held:
    """What a group holds. takeable: of files, and anonymous if there is swap. idle: of that, not used for a while.

    reread: what it has read back since its start, after the kernel had taken it. kinds: idle and all bytes of `file`
    and `anon`, as far as they can be taken. waited: microseconds since its start in which one of its programs waited
    for memory; None: the kernel does not count it.
    """

    charged: int
    idle: int
    reread: int
    takeable: int
    kinds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    waited: int | None = None


@dataclass(frozen=True, slots=True)
class Take:
    """Bytes to take from a group, and the limit that it has."""

    group: Path
    bytes: int
    limit: int


def group(sliver: str, pid: int) -> Path | None:
    """The memory group of a sliver's domain; None if it has ended, or has no group yet. pid: its main process."""
    with suppress(Failed):
        return cgroup.own_group(sliver, pid, "memory")
    return None


def held(group: Path, version: str, *, swap: bool) -> Held | None:
    """What a group holds; None if it is gone. version: v1 or v2. swap: whether anonymous pages can be taken."""
    unified = version == "v2"
    prefix = b"" if unified else b"total_"
    try:
        stat = read_file(f"{group}/memory.stat")
        charged = _usage(group, version)
    except (OSError, ValueError):
        return None
    kinds = {}
    for kind in ("file", "anon") if swap else ("file",):
        inactive, active = (value_in(stat, prefix + f"{one}_{kind}".encode()) for one in ("inactive", "active"))
        kinds[kind] = (inactive, inactive + active)
    idle, whole = (min(charged, sum(one)) for one in zip(*kinds.values(), strict=True))
    waited = pressure(f"{group}/memory.pressure") if unified else None
    return Held(charged, idle, reread(stat, prefix), whole, kinds, waited)


def usage(group: Path) -> int:
    """All memory that a group is charged for; 0 if it is gone."""
    with suppress(OSError, ValueError):
        return _usage(group, cgroup.version())
    return 0


def _usage(group: Path, version: str) -> int:
    return int(read_file(f"{group}/memory.current" if version == "v2" else f"{group}/memory.usage_in_bytes"))


def limit(group: Path) -> int | None:
    """The limit of a group; None if it has none or is gone."""
    name = "memory.max" if cgroup.version() == "v2" else "memory.limit_in_bytes"
    with suppress(OSError, ValueError):
        return int(read_file(group / name))
    return None


def protect(wanted: Mapping[Path, int]) -> None:
    """Have the kernel spare so many bytes of each group when memory is short (v2). Raises OSError.

    The kernel spares of a group at most what it spares of the group above, so each of those gets the sum of the groups
    directly below it, including those of other programs. A group that has just ended is left out.
    """
    above = {parent for group in wanted for parent in group.parents if MOUNT in parent.parents}
    for group, bytes_ in wanted.items():
        with unless_ended():
            _spare(group, bytes_)
    for group in sorted(above, key=lambda one: -len(one.parts)):
        with unless_ended():
            _spare(group, sum(_spared(one) for one in group.iterdir() if one.is_dir()))


def take_first(wanted: Mapping[Path, int]) -> None:
    """Have the kernel take first what groups have beyond so many bytes when the node is short of memory (v1).

    It then still takes from all groups if that is not enough at once. Raises OSError.
    """
    for group, bytes_ in wanted.items():
        with unless_ended():
            bytes_ = min(bytes_, UNLIMITED) // mmap.PAGESIZE * mmap.PAGESIZE
            if int(read_file(group / _SOFT)) != bytes_:
                (group / _SOFT).write_text(str(bytes_))


def reach_inner_groups() -> bool:
    """Have the kernel spare what is in groups inside of groups, such as those of an image's systemd (v2).

    systemd sets the option at boot, and lxcfs, which mounts the hierarchy for itself, clears it for all. Returns
    whether it had to be set again. Raises Failed.
    """
    options = cgroup.options(Path("/proc/self/mounts").read_text())
    if RECURSIVE in options:
        return False
    words = ["mount", "-o", f"remount,{','.join(sorted({'nsdelegate', RECURSIVE, *options}))}", str(MOUNT)]
    try:
        command.run(words, timeout=_LONGEST)
    except CommandFailed as error:
        raise Failed(f"guarantees of memory do not reach inner groups: {error.stderr.strip()}") from error
    return True


def _spare(group: Path, bytes_: int) -> None:
    """Write another value only: at each write the kernel computes the protection of all groups again."""
    bytes_ = min(bytes_ // mmap.PAGESIZE * mmap.PAGESIZE, _ALL)
    if _spared(group) != bytes_:
        (group / _SPARED).write_text(str(bytes_))


def _spared(group: Path) -> int:
    """The bytes of a group that the kernel spares; 0 if it has just ended."""
    with suppress(OSError):
        text = read_file(group / _SPARED).strip()
        return _ALL if text == b"max" else int(text)
    return 0


@contextmanager
def unless_ended() -> Iterator[None]:
    """Leave out a group that has just ended."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise


def take(wanted: Mapping[str, Take], later: Mapping[str, Take] = MappingProxyType({})) -> dict[str, int]:
    """Take memory from groups, by the names of slivers; the bytes that the kernel took. Raises Failed or OSError.

    later: other slivers, from which memory is taken in the time that is left.
    """
    if not wanted and not later:
        return {}
    return _take_v2(wanted, later) if cgroup.version() == "v2" else _take_v1({**wanted, **later})


@contextmanager
def swap_allowed(groups: Sequence[Path]) -> Iterator[None]:
    """Let the kernel move memory of groups to swap by itself (v2). Afterwards each keeps what it has there."""
    limits = [limit for group in groups if (limit := group / "memory.swap.max").exists()]
    try:
        for limit in limits:
            with unless_ended():
                limit.write_text("max")
        yield
    finally:
        for limit in limits:
            with unless_ended():
                limit.write_bytes(read_file(limit.with_name("memory.swap.current")))


def restore(group: Path, usual: int) -> bool:
    """Set a limit that is lower than usual (v1), as `take` leaves it if its program was killed; whether it was.

    Raises OSError.
    """
    now = limit(group) if cgroup.version() == "v1" else None
    if now is None or now >= usual:
        return False
    (group / "memory.limit_in_bytes").write_text(str(usual))
    return True


def _take_v2(*wanted: Mapping[str, Take]) -> dict[str, int]:
    """In parts: the kernel takes all of a part, or what it can of it, however long that lasts.

    Groups have their turns, so that none loses more than others because it is named first.
    """
    deadline, taken = time.monotonic() + _STEP, dict[str, int]()
    for groups in wanted:
        turns = deque((name, one.bytes) for name, one in groups.items() if one.bytes > 0)
        while turns and time.monotonic() < deadline:
            name, left = turns.popleft()
            with unless_ended():
                found = _take_part(groups[name].group, min(_PART, left))
                taken[name] = taken.get(name, 0) + found
                if 0 < found < left:
                    turns.append((name, left - found))
    return taken


def _take_part(group: Path, part: int) -> int:
    """What is on its way to swap counts as well: the kernel has it when it is written."""
    before, there, done = int(read_file(group / "memory.current")), swapped(group), part
    with _room_in_swap(group, part):
        try:
            (group / "memory.reclaim").write_text(str(part))
        except BlockingIOError:  # less was taken
            done = max(0, before - int(read_file(group / "memory.current")))
    return max(done, swapped(group) - there)


def swapped(group: Path) -> int:
    """Bytes that a group has in swap; 0 if the kernel does not count them."""
    with suppress(FileNotFoundError):
        return int(read_file(group / "memory.swap.current"))
    return 0


@contextmanager
def _room_in_swap(group: Path, bytes_: int) -> Iterator[None]:
    """Let a group have more in swap while so much is taken of it: a sliver itself gets no swap beside its limit.

    Twice as much, since what is on its way there has not been taken yet.

    If the agent is killed meanwhile, the sliver can move at most that much there itself. A limit that was lower than
    what it has there, as that of a throttled sliver, is set again.
    """
    limit = group / "memory.swap.max"
    if not limit.exists() or read_file(limit).strip() == b"max":  # the kernel does not count swap, or allows it
        yield
        return
    usual, used = int(read_file(limit)), swapped(group)
    limit.write_text(str(max(usual, used) + 2 * bytes_))
    try:
        yield
    finally:
        limit.write_text(str(usual if usual < used else swapped(group)))


def _take_v1(wanted: Mapping[str, Take]) -> dict[str, int]:
    lines = "".join(f"{one.group} {one.bytes} {one.limit}\n" for one in wanted.values())
    try:
        out = command.run([RECLAIM], input=lines.encode(), timeout=_LONGEST)
    except CommandFailed as error:
        raise Failed(f"memory cannot be taken from slivers: {error.stderr.strip()}") from error
    return {name: int(line) for name, line in zip(wanted, out.split(), strict=True)}

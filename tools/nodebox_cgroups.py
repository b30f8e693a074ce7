"""The cgroups of a box: a subtree `nodebox-NAME` in every cgroup hierarchy of the host.

For libvirt in the box, that subtree is the root (a cgroup namespace), so that the `/machine` partitions of several
boxes are separate. A box is killed through its cgroup, which contains all of its processes and no others.

There are three kinds of hosts: v1 controllers only; v1 with an additional empty v2 mount (hybrid: the v2 mount is used
for killing, and hidden in the box, because libvirt would try to use it); and v2 only.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nodebox_linux import MS_NODEV, MS_NOEXEC, MS_NOSUID, BoxError, mount, wait_until

ROOT = Path("/sys/fs/cgroup")
WANTED = ("cpuset", "cpu", "io", "memory", "pids")  # v2 controllers that limit slivers
LEAF = "host"  # v2: the cgroup of the box's processes, because one that has controllers for children has no processes
_NOT_CONTROLLERS = {"rw", "ro", "xattr", "clone_children", "noprefix", "cpuset_v2_mode", "favordynmods"}


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A cgroup mount of the host. controllers: () for v2."""

    mount: Path
    version: int
    controllers: tuple[str, ...] = ()

    @property
    def options(self) -> str:
        """The options that mount the same hierarchy again."""
        named = len(self.controllers) == 1 and self.controllers[0].startswith("name=")
        return ("none," if named else "") + ",".join(self.controllers)


def parse_mountinfo(text: str) -> list[Hierarchy]:
    """The cgroup hierarchies in a /proc/PID/mountinfo; the first mount of one that is mounted twice."""
    found: dict[tuple[int, tuple[str, ...]], Hierarchy] = {}
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        version = 2 if kind == "cgroup2" else 1
        words = [] if version == 2 else options.split(",")
        controllers = tuple(
            word
            for word in words
            if word not in _NOT_CONTROLLERS
            and not word.startswith(("release_agent=", "cpuset_v2_mode", "favordynmods"))
        )
        found.setdefault((version, controllers), Hierarchy(Path(left.split(" ")[4]), version, controllers))
    return list(found.values())


def parse_membership(text: str) -> dict[tuple[str, ...], str]:
    """Controllers (none for v2) → path of a process, from its /proc/PID/cgroup."""
    paths = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        paths[tuple(controllers.split(",")) if controllers else ()] = path
    return paths


@dataclass(frozen=True, slots=True)
class Place:
    """The directory of the box in one hierarchy and, below it, the one with its processes."""

    hierarchy: Hierarchy
    directory: Path
    members: Path


def plan(name: str, hierarchies: Sequence[Hierarchy], membership: dict[tuple[str, ...], str]) -> list[Place]:
    """The directories of a box in all hierarchies.

    On v1, they are below the cgroup of the creating process, so that its limits apply to the box. On v2 only, they are
    at the top, because the cgroup of the creating process has processes and so no children with controllers.
    """
    hybrid = any(hierarchy.version == 1 for hierarchy in hierarchies)
    places = []
    for hierarchy in hierarchies:
        alone = hierarchy.version == 2 and not hybrid
        own = "" if alone else membership.get(hierarchy.controllers, "/").strip("/")
        directory = hierarchy.mount / own / f"nodebox-{name}"
        places.append(Place(hierarchy, directory, directory / LEAF if alone else directory))
    return places


def visible(hierarchies: Sequence[Hierarchy]) -> list[Hierarchy]:
    """The hierarchies that are mounted in the box: on a hybrid host only those of v1."""
    old = [hierarchy for hierarchy in hierarchies if hierarchy.version == 1]
    return old or list(hierarchies)


def current(name: str) -> list[Place]:
    """The plan for this host and this process."""
    places = plan(
        name,
        parse_mountinfo(Path("/proc/self/mountinfo").read_text()),
        parse_membership(Path("/proc/self/cgroup").read_text()),
    )
    if not places:
        raise BoxError("no cgroups are mounted below /sys/fs/cgroup")
    return places


def create(places: Sequence[Place]) -> None:
    """Create the directories, with the settings that a child needs before a process may join."""
    for place in places:
        place.directory.mkdir(exist_ok=True)
        if "cpuset" in place.hierarchy.controllers:
            for file in ("cpuset.cpus", "cpuset.mems"):
                (place.directory / file).write_text((place.directory.parent / file).read_text())
        if place.members != place.directory:
            _delegate(place.directory.parent)


def delegate(places: Sequence[Place]) -> None:
    """v2: move this process into the leaf, then enable the controllers for the children of the box's cgroup."""
    for place in places:
        if place.members != place.directory:
            place.members.mkdir(exist_ok=True)
            join([place.members])
            _delegate(place.directory)


def _delegate(directory: Path) -> None:
    available = (directory / "cgroup.controllers").read_text().split()
    enabled = (directory / "cgroup.subtree_control").read_text().split()
    for controller in WANTED:
        if controller in available and controller not in enabled:
            try:
                (directory / "cgroup.subtree_control").write_text(f"+{controller}")
            except OSError as error:
                raise BoxError(f"cannot delegate the {controller} controller in {directory}: {error}") from error


def join(directories: Sequence[Path]) -> None:
    """Move this process into cgroups."""
    for directory in directories:
        (directory / "cgroup.procs").write_text("0")


def mount_inside(hierarchies: Sequence[Hierarchy]) -> None:
    """Mount the cgroups of the box at /sys/fs/cgroup of a new sysfs, as on the host."""
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    shown = visible(hierarchies)
    if shown[0].version == 2:
        mount("cgroup2", ROOT, "cgroup2", flags)
        return
    mount("tmpfs", ROOT, "tmpfs", flags, "mode=755,size=1m")
    for hierarchy in shown:
        directory = ROOT / hierarchy.mount.name
        directory.mkdir()
        mount("cgroup", directory, "cgroup", flags, hierarchy.options)
        for controller in hierarchy.controllers:
            if len(hierarchy.controllers) > 1 and controller != directory.name:
                (ROOT / controller).symlink_to(directory.name)


def find(name: str) -> list[Path]:
    """Every cgroup directory of the box, independent of the cgroup of its creating process."""
    hierarchies = parse_mountinfo(Path("/proc/self/mountinfo").read_text())
    return [found for hierarchy in hierarchies for found in _find(hierarchy.mount, f"nodebox-{name}")]


def _find(top: Path, wanted: str) -> Iterator[Path]:
    for directory, children, _ in os.walk(top):
        if wanted in children:
            yield Path(directory, wanted)
        children[:] = [child for child in children if not child.startswith("nodebox-")]


def members(directories: Sequence[Path]) -> set[int]:
    """The processes in and below the directories."""
    pids: set[int] = set()
    for top in directories:
        for directory, _, _ in os.walk(top):
            with contextlib.suppress(OSError):
                pids.update(int(pid) for pid in Path(directory, "cgroup.procs").read_text().split())
    return pids


def kill(directories: Sequence[Path], seconds: float = 30) -> None:
    """Kill all processes in the directories, then remove them. seconds: timeout. Raises BoxError."""
    if os.getpid() in members(directories):
        raise BoxError("this process runs in the box: a box is killed from outside")

    def gone() -> bool:
        for top in directories:
            for state in top.rglob("freezer.state"):  # v1: a frozen process does not die
                with contextlib.suppress(OSError):
                    state.write_text("THAWED")
            with contextlib.suppress(OSError):
                if (top / "cgroup.kill").exists():
                    (top / "cgroup.kill").write_text("1")
        pids = members(directories)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    if not wait_until(gone, seconds):
        raise BoxError(f"processes do not die: {sorted(members(directories))}")

    def removed() -> bool:
        for top in directories:
            for directory, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    Path(directory).rmdir()
        return not any(top.exists() for top in directories)

    if not wait_until(removed, seconds):
        raise BoxError(f"cgroups cannot be removed: {[str(top) for top in directories if top.exists()]}")

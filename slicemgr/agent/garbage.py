"""Find resources with slicemgr's mark that no row names, and remove them on request.

A name that does not parse as one of slicemgr's is never listed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from slicemgr import names
from slicemgr.agent import observe
from slicemgr.agent.images import incoming_dir
from slicemgr.config import Config
from slicemgr.drivers.libvirt import launch
from slicemgr.drivers.libvirt.hypervisor import Hypervisor
from slicemgr.drivers.network import traffic
from slicemgr.drivers.storage.btrfs import Pool
from slicemgr.errors import SlicemgrError
from slicemgr.model import Image, ImageState, Sliver

_LINKS = Path("/sys/class/net")


@dataclass(frozen=True, slots=True)
class Leftover:
    """A resource to remove: its type, its name and the function that removes it."""

    what: str
    name: str
    remove: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The resources that the rows name: all others with slicemgr's mark are left over."""

    slivers: frozenset[str]
    groups: frozenset[int]
    images: frozenset[str]

    @classmethod
    def of(cls, slivers: Collection[Sliver], images: Collection[Image]) -> Wanted:
        """The resources of these rows; an image that is being deleted is not among them."""
        return cls(
            frozenset(one.id for one in slivers),
            frozenset(names.qgroup(one.serial) for one in slivers),
            frozenset(one.sha256 for one in images if one.state is not ImageState.DELETING),
        )


def find(config: Config, hypervisor: Hypervisor, pool: Pool, read_wanted: Callable[[], Wanted]) -> list[Leftover]:
    """List the host's resources, then read the rows. Domains are first, because they use the others.

    The host is read first, because a resource that is created meanwhile has its row before it exists on the host.
    """
    host, groups, links = observe.host(config, hypervisor), pool.groups(), _links()
    bases, disks = _children(config.node.pool / "bases"), _children(config.images_dir)
    wanted = read_wanted()
    found = [
        Leftover("domain", names.domain(sliver), lambda sliver=sliver: hypervisor.kill(sliver))  # type: ignore[misc]
        for sliver in sorted(set(host.domains) - wanted.slivers)
    ]
    found += _slivers(config, pool, host, wanted)
    found += _bases(config, pool, bases, wanted)
    found += _disks(disks, wanted)
    found += [
        Leftover("quota group", f"1/{group & 0xFFFFFFFFFFFF}", lambda group=group: pool.destroy_group(group))  # type: ignore[misc]
        for group in sorted(groups - wanted.groups)
    ]
    found += [
        Leftover("shaper", names.shaper(one), lambda one=one: traffic.clear(one))  # type: ignore[misc]
        for one in sorted(host.shaped - wanted.slivers)
    ]
    found += [Leftover("link", names.link(one), _ends_with_domain) for one in sorted(links - wanted.slivers)]
    return found


def _links() -> set[str]:
    """The slivers that have a link on the host."""
    return set(filter(None, (names.sliver_of_link(entry.name) for entry in _LINKS.iterdir())))


def _ends_with_domain() -> None:
    """Do nothing: a link disappears with its container, which has been removed before."""


def _slivers(config: Config, pool: Pool, host: observe.Host, wanted: Wanted) -> list[Leftover]:
    directories = [
        Leftover(
            "sliver",
            str(names.sliver_dir(config.node.pool, one)),
            lambda one=one: pool.delete_tree(names.sliver_dir(config.node.pool, one), None),  # type: ignore[misc]
        )
        for one in sorted(host.directories - wanted.slivers)
    ]
    launches = [  # with what libvirt leaves behind of the container
        Leftover(
            "file",
            str(names.launch_file(config.node.run_dir, one)),
            lambda one=one: launch.remove(config, one),  # type: ignore[misc]
        )
        for one in sorted(host.launches - wanted.slivers)
    ]
    marks = [observe.mark(config, one, pid) for one, pid in sorted(host.settled.items()) if one not in wanted.slivers]
    files = [Leftover("file", str(path), lambda path=path: path.unlink(missing_ok=True)) for path in marks]  # type: ignore[misc]
    return directories + launches + files


def _bases(config: Config, pool: Pool, there: Sequence[Path], wanted: Wanted) -> list[Leftover]:
    keep = {names.base_dir(config.node.pool, one) for one in wanted.images}
    keep |= {incoming_dir(config.node.pool, one) for one in wanted.images}
    return [
        Leftover("base", str(path), lambda path=path: pool.delete_tree(path, None))  # type: ignore[misc]
        for path in there
        if path not in keep
    ]


def _disks(there: Sequence[Path], wanted: Wanted) -> list[Leftover]:
    return [
        Leftover("disk image", str(path), lambda path=path: path.unlink(missing_ok=True))  # type: ignore[misc]
        for path in there
        if path.name.partition(".")[0] not in wanted.images
    ]


def _children(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def collect(found: Sequence[Leftover], *, apply: bool) -> dict[str, object]:
    """The result of a `gc` operation; with `apply`, after the removal. A failure does not stop the removal."""
    items: list[dict[str, object]] = []
    for one in found:
        removed, detail = False, ""
        if apply:
            try:
                one.remove()
                removed = True
            except (SlicemgrError, OSError) as error:
                detail = str(error)
        items.append({"what": one.what, "name": one.name, "removed": removed, "detail": detail})
    return {"items": items}

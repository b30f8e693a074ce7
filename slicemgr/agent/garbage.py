"""Find resources with slicemgr's mark that no row names, and remove them on request.

A name that does not parse as one of slicemgr's is never listed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypedDict, TypeVar

from slicemgr import names
from slicemgr.agent import kept_disks, observe
from slicemgr.agent.images import incoming_dir
from slicemgr.agent.kept_disks import Kept
from slicemgr.config import Config
from slicemgr.drivers.libvirt import launch
from slicemgr.drivers.libvirt.hypervisor import Hypervisor
from slicemgr.drivers.network import traffic
from slicemgr.drivers.storage.btrfs import Pool, name_of
from slicemgr.errors import SlicemgrError
from slicemgr.model import Image, ImageState, Sliver

_LINKS = Path("/sys/class/net")
T = TypeVar("T", str, int, Path)


class Item(TypedDict):
    """A resource in the result of a `gc` operation. detail: why it was not removed."""

    what: str
    name: str
    removed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Leftover:
    """A resource to remove: its type, its name and the function that removes it.

    remove: returns False if that is possible only after btrfs has freed deleted subvolumes. kept: why it should not be
    removed yet; "": nothing is against it.
    """

    what: str
    name: str
    remove: Callable[[], object]
    kept: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The resources that the rows name: all others with slicemgr's mark are left over."""

    slivers: frozenset[str]
    groups: frozenset[int]
    images: frozenset[str]

    @classmethod
    def of(cls, slivers: Collection[Sliver], images: Collection[Image], kept: Collection[str] = ()) -> Wanted:
        """The resources of these rows; an image that is being deleted is not among them. kept: further images."""
        return cls(
            frozenset(one.id for one in slivers),
            frozenset(names.qgroup(one.serial) for one in slivers),
            frozenset(one.sha256 for one in images if one.state is not ImageState.DELETING) | frozenset(kept),
        )


def find(
    config: Config, hypervisor: Hypervisor, pool: Pool, read_wanted: Callable[[], Wanted], *, agent: bool = True
) -> list[Leftover]:
    """List the host's resources, then read the rows. Domains are first, because they use the others.

    The host is read first, because a resource that is created meanwhile has its row before it exists on the host.
    agent: whether an agent runs. It removes the quota groups of deleted subvolumes itself once btrfs has freed these,
    and the marks of domains that have ended, so they are not listed then.
    """
    host, groups, links = observe.host(config, hypervisor), pool.groups() - {names.qgroup(0)}, _links()
    bases, disks = _children(config.node.pool / "bases"), _children(config.images_dir)
    wanted = read_wanted()
    groups -= wanted.groups
    in_pool, in_run = partial(names.sliver_dir, config.node.pool), partial(names.launch_file, config.node.run_dir)
    marks = {observe.mark(config, one, host.settled[one]) for one in set(host.settled) - wanted.slivers}
    return [
        *_left("domain", set(host.domains) - wanted.slivers, names.domain, hypervisor.kill),
        *_left("sliver", host.directories - wanted.slivers, in_pool, lambda one: pool.delete_tree(in_pool(one))),
        *_left("file", host.launches - wanted.slivers, in_run, partial(launch.remove, config)),
        *_left("file", () if agent else marks, str, _unlink),
        *_left("base", _bases(config, bases, wanted), str, pool.delete_tree),
        *_left("disk image", {one for one in disks if one.name.partition(".")[0] not in wanted.images}, str, _unlink),
        *_left("quota group", pool.in_use(groups) if agent else groups, name_of, pool.destroy_group),
        *_left("shaper", host.shaped - wanted.slivers, names.shaper, traffic.clear),
        *_left("link", links - wanted.slivers, names.link, _ends_with_domain),
        *(_kept(one, pool) for one in kept_disks.found(config.node.pool)),
    ]


def _left(
    what: str, found: Collection[T], name: Callable[[T], object], remove: Callable[[T], object]
) -> Iterator[Leftover]:
    return (Leftover(what, str(name(one)), partial(remove, one)) for one in sorted(found))


def _kept(one: Kept, pool: Pool) -> Leftover:
    remove = partial(pool.delete_tree, one.path)
    return Leftover("kept disk", str(one.path), remove, f"it is kept until {one.until}")


def _links() -> set[str]:
    """The slivers that have a link on the host."""
    return set(filter(None, (names.sliver_of_link(entry.name) for entry in _LINKS.iterdir())))


def _ends_with_domain(sliver: str) -> None:
    """Do nothing: a link disappears with its container, which has been removed before."""


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)


def _bases(config: Config, there: Sequence[Path], wanted: Wanted) -> set[Path]:
    """The directories of images that no row names."""
    keep = {names.base_dir(config.node.pool, one) for one in wanted.images}
    keep |= {incoming_dir(config.node.pool, one) for one in wanted.images}
    return set(there) - keep


def _children(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def collect(
    found: Sequence[Leftover], *, apply: bool, freed: Callable[[], bool] = lambda: False, kept: bool = False
) -> dict[str, list[Item]]:
    """The result of a `gc` operation; with `apply`, after the removal. A failure does not stop the removal.

    kept: remove also what should be kept.

    freed: waits until btrfs has freed deleted subvolumes; whether it has. Called once if a removal depends on it, which
    is then tried again.
    """
    items = [Item(what=one.what, name=one.name, removed=False, detail=one.kept) for one in found]
    if apply:
        both = [(one, item) for one, item in zip(found, items, strict=True) if kept or not one.kept]
        waiting = [(one, item) for one, item in both if not _remove(one, item)]
        if waiting and _is_freed(freed, [item for _, item in waiting]):
            for one, item in waiting:
                _remove(one, item)
    return {"items": items}


def _remove(one: Leftover, item: Item) -> bool:
    """Remove it and record the outcome; False if btrfs must free subvolumes first."""
    try:
        item["removed"] = one.remove() is not False
    except (SlicemgrError, OSError) as error:
        item["detail"] = str(error)
        return True
    item["detail"] = "" if item["removed"] else "btrfs still frees its deleted subvolumes"
    return item["removed"]


def _is_freed(freed: Callable[[], bool], items: Sequence[Item]) -> bool:
    try:
        return freed()
    except (SlicemgrError, OSError) as error:
        for item in items:
            item["detail"] = f"{item['detail']}: {error}"
        return False

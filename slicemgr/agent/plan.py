"""What has to be done so that a sliver becomes what is desired. Pure: no clock, no host, no database.

A create, a repair after a crash, a reboot and a hand-made `virsh destroy` all come through `plan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from slicemgr.model import Desired, Phase, Sliver


class Step(StrEnum):
    """One idempotent change to the host. The value is what progress bars and operations show."""

    DISCARD = "discard"  # snapshots nobody wants any more
    SNAPSHOT = "snapshot"  # those that are wanted and not made yet
    ROOT = "root"  # quota group, sliver subvolume, snapshot of the base or of what it shall begin as
    RESIZE = "resize"  # another disk limit
    IDENTITY = "identity"  # hostname, keys, resolver written into the root
    DOMAIN = "domain"  # virDomainCreateXML
    KEYS = "keys"  # other ssh keys into a sliver that runs; its host key into the rows
    LINK = "link"  # what a link that was made without it lacks: its one neighbour
    SHAPE = "shape"  # the network rates on its link
    PUBLISH = "publish"  # NAT, DNAT and filter rules
    VERIFY = "verify"  # the kernel's limits are the ones asked for
    SSH = "ssh"  # the banner answers
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"  # clean, then by force
    KILL = "kill"  # by force
    WITHDRAW = "withdraw"  # the rules go
    REMOVE = "remove"  # root, subvolume, quota group


class DomainState(StrEnum):
    """The domain as libvirt sees it; a transient domain that is shut off is gone."""

    RUNNING = "running"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class Seen:
    """What the host has of one sliver.

    generation: of the domain. settled: this very domain went through every step up to SSH.
    root: it is complete. disk: the limit in bytes that was applied to it, None if unknown.
    traces: something with the sliver's mark lies in the pool or runtime directory.
    unguarded: the node believes what is sent over its link about neighbours.
    shaped: it has a device for its outgoing rate, which outlives the domain.
    keys: the ssh keys of ours that it has, None if unknown.
    epoch: which of its roots is there. snapshots: their ids. replaced: a root that was replaced lies there still.
    """

    domain: DomainState | None = None
    generation: int = 0
    settled: bool = False
    root: bool = False
    traces: bool = False
    disk: int | None = None
    shaped: bool = False
    keys: tuple[str, ...] | None = None
    epoch: int = 0
    snapshots: frozenset[str] = frozenset()
    replaced: bool = False
    unguarded: bool = False


_START = (Step.IDENTITY, Step.PUBLISH, Step.DOMAIN)
_CHECK = (Step.VERIFY, Step.SSH)


def plan(want: Sliver, seen: Seen) -> tuple[Step, ...]:
    """The steps, in order, that lead from `seen` to what is wanted; () if nothing is to be done."""
    match want.desired:
        case Desired.ABSENT:
            return _away(seen)
        case Desired.STOPPED:
            return (*_snapshots(want, seen), *_rest(want, seen))
        case Desired.RUNNING:
            return (*_snapshots(want, seen), *_run(want, seen, pause=False))
        case Desired.PAUSED:
            return (*_snapshots(want, seen), *_run(want, seen, pause=True))


def _snapshots(want: Sliver, seen: Seen) -> tuple[Step, ...]:
    """A snapshot is of a moment: one that was made and is lost is not made again."""
    unwanted = seen.snapshots - {one.id for one in want.snapshots}
    discard = (Step.DISCARD,) if unwanted or (seen.replaced and seen.root) else ()
    return (*discard, *((Step.SNAPSHOT,) if any(not one.made for one in want.snapshots) else ()))


def _other_root(want: Sliver, seen: Seen) -> bool:
    """Whether the sliver shall go on with another root than the one it has."""
    return seen.root and seen.epoch != want.epoch


def _rest(want: Sliver, seen: Seen) -> tuple[Step, ...]:
    stop = (Step.STOP,) if seen.domain or seen.shaped else ()
    return (*stop, Step.ROOT) if _other_root(want, seen) else (*_resize(want, seen), *stop)


def _away(seen: Seen) -> tuple[Step, ...]:
    """The rules stand as long as the link does: an unpublished link would be treated as a stranger's."""
    kill = (Step.KILL,) if seen.domain else ()
    remove = (Step.REMOVE,) if seen.root or seen.traces or seen.shaped else ()
    return (*kill, Step.WITHDRAW, *remove)


def _run(want: Sliver, seen: Seen, *, pause: bool) -> tuple[Step, ...]:
    last = (Step.PAUSE,) if pause else ()
    other = _other_root(want, seen)
    root = _resize(want, seen) if seen.root and not other else (Step.ROOT,)
    limits = want.limits
    shape = (Step.SHAPE,) if seen.shaped or (limits.net_in, limits.net_out) != (None, None) else ()
    if seen.domain is None:
        return (*root, *_START, *shape, *_CHECK, *last)
    if other:  # what runs is given up: nothing of it is kept
        return (Step.KILL, *root, *_START, *shape, *_CHECK, *last)
    if seen.generation != want.generation:
        return (Step.STOP, *root, *_START, *shape, *_CHECK, *last)
    link = (Step.LINK,) if seen.unguarded else ()
    wake = (Step.RESUME,) if seen.domain is DomainState.PAUSED else ()
    keys = _keys(want, seen)
    if not seen.settled:
        return (*root, *link, *wake, *shape, Step.PUBLISH, *_CHECK, *keys, *last)
    if (limits.net_out is not None) is not seen.shaped:
        return (*root, *link, *wake, *shape, *keys, *last)
    if pause:
        return (*root, *link, *keys, *(() if wake else last))
    return (*root, *link, *wake, *keys)


def _keys(want: Sliver, seen: Seen) -> tuple[Step, ...]:
    """One that does not run gets them as it starts. What host key that was is told again if the report was lost."""
    other = seen.keys is not None and set(seen.keys) != set(want.ssh_keys)
    return (Step.KEYS,) if other or not want.host_key else ()


def _resize(want: Sliver, seen: Seen) -> tuple[Step, ...]:
    return (Step.RESIZE,) if seen.disk is not None and seen.disk != want.limits.disk else ()


def phase_after(desired: Desired) -> Phase:
    """The phase of a sliver whose plan was carried out to its end."""
    return {
        Desired.RUNNING: Phase.RUNNING,
        Desired.PAUSED: Phase.PAUSED,
        Desired.STOPPED: Phase.STOPPED,
        Desired.ABSENT: Phase.STOPPED,
    }[desired]

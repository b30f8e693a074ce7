"""Compute the steps that give a sliver its desired state. Pure: no clock, no host, no database.

Creation, repair after a crash or a reboot, and a manual `virsh destroy` are all handled by `plan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from slicemgr.model import LIVE_LIMITS, SPARE, Desired, Phase, Sliver, SliverType


class Step(StrEnum):
    """One idempotent change to the host. Progress bars and operations show the value."""

    DISCARD = "discard"  # snapshots that are no longer in the rows
    SNAPSHOT = "snapshot"  # snapshots that are requested and do not exist yet
    KEEP = "keep"  # the disk of an earlier copy, or of a slice that the rows do not know, is moved away
    ROOT = "root"  # quota group, sliver subvolume, snapshot of the base or of the sliver's origin
    RESIZE = "resize"  # another disk limit
    IDENTITY = "identity"  # hostname, keys, resolver written into the root
    DOMAIN = "domain"  # virDomainCreateXML
    LIMITS = "limits"  # other limits while it runs
    NAME = "name"  # another host name in a running sliver, which was a spare
    KEYS = "keys"  # other ssh keys in a running sliver; its host key in the rows
    LINK = "link"  # the permanent neighbour of a link that was created without it
    SHAPE = "shape"  # the network rates on its link
    PUBLISH = "publish"  # NAT, DNAT and filter rules
    VERIFY = "verify"  # the limits in effect equal those requested
    SSH = "ssh"  # the sliver sends an ssh banner
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"  # clean, then by force
    KILL = "kill"  # by force
    WITHDRAW = "withdraw"  # remove the rules
    REMOVE = "remove"  # root, subvolume, quota group


class DomainState(StrEnum):
    """The state of a domain in libvirt; a transient domain that is shut off does not exist."""

    RUNNING = "running"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class Observed:
    """The observed state of one sliver.

    generation: of the domain. settled: this domain has completed every step up to SSH.
    root: a complete root exists. disk: the limit in bytes that was applied to it, None if unknown.
    traces: the pool or the runtime directory contains resources of the sliver.
    unguarded: messages over its link can change the node's neighbour entries.
    shaped: it has a device for its outgoing rate, which outlives the domain.
    limits: `Limits.live` as applied to this domain, None if unknown.
    keys: the ssh keys that slicemgr gave it, None if unknown. hostname: the host name that it gave it, likewise.
    epoch: the number of its root. snapshots: their ids. replaced: a root that was replaced still exists.
    """

    domain: DomainState | None = None
    generation: int = 0
    settled: bool = False
    root: bool = False
    traces: bool = False
    disk: int | None = None
    shaped: bool = False
    keys: tuple[str, ...] | None = None
    hostname: str | None = None
    epoch: int = 0
    snapshots: frozenset[str] = frozenset()
    replaced: bool = False
    unguarded: bool = False
    limits: tuple[float, ...] | None = None


_START = (Step.IDENTITY, Step.PUBLISH, Step.DOMAIN)
_CHECK = (Step.VERIFY, Step.SSH)


def plan(want: Sliver, observed: Observed) -> tuple[Step, ...]:
    """The steps, in order, that lead from `observed` to the desired state; () if there is nothing to do."""
    foreign = _of_another(want, observed)
    if foreign and want.spare:
        return ()
    if want.desired is not Desired.ABSENT and (foreign or _earlier_copy(want, observed)):
        return (*((Step.KILL,) if observed.domain else ()), Step.KEEP, *plan(want, Observed()))
    match want.desired:
        case Desired.ABSENT:
            return _away(observed)
        case Desired.STOPPED:
            return (*_snapshots(want, observed), *_rest(want, observed))
        case Desired.RUNNING:
            return (*_snapshots(want, observed), *_run(want, observed, pause=False))
        case Desired.PAUSED:
            return (*_snapshots(want, observed), *_run(want, observed, pause=True))


def _snapshots(want: Sliver, observed: Observed) -> tuple[Step, ...]:
    """A snapshot is of one moment: one that was made and then lost is not made again."""
    unwanted = observed.snapshots - {one.id for one in want.snapshots}
    discard = (Step.DISCARD,) if unwanted or (observed.replaced and observed.root) else ()
    return (*discard, *((Step.SNAPSHOT,) if any(not one.made for one in want.snapshots) else ()))


def _other_root(want: Sliver, observed: Observed) -> bool:
    """Whether the sliver must continue with another root than its current one."""
    return observed.root and observed.epoch != want.epoch


def _earlier_copy(want: Sliver, observed: Observed) -> bool:
    """Whether the root is from before the sliver was rebuilt from its image: a restored one has an origin."""
    return observed.root and not want.origin and observed.epoch < want.epoch


def _of_another(want: Sliver, observed: Observed) -> bool:
    """Whether the root is of a slice that took this spare, and of which the rows know nothing: they are older."""
    return observed.root and observed.hostname not in (None, SPARE, want.hostname)


def _rest(want: Sliver, observed: Observed) -> tuple[Step, ...]:
    stop = (Step.STOP,) if observed.domain or observed.shaped else ()
    return (*stop, Step.ROOT) if _other_root(want, observed) else (*_resize(want, observed), *stop)


def _away(observed: Observed) -> tuple[Step, ...]:
    """The rules remain as long as the link: the packet filter treats a link without rules as foreign."""
    kill = (Step.KILL,) if observed.domain else ()
    remove = (Step.REMOVE,) if observed.root or observed.traces or observed.shaped else ()
    return (*kill, Step.WITHDRAW, *remove)


def _run(want: Sliver, observed: Observed, *, pause: bool) -> tuple[Step, ...]:
    last = (Step.PAUSE,) if pause else ()
    other = _other_root(want, observed)
    root = _resize(want, observed) if observed.root and not other else (Step.ROOT,)
    limits = want.limits
    shape = (Step.SHAPE,) if observed.shaped or (limits.net_in, limits.net_out) != (None, None) else ()
    if observed.domain is None:
        return (*root, *_START, *shape, *_CHECK, *last)
    if other:  # the running domain is discarded with its state
        return (Step.KILL, *root, *_START, *shape, *_CHECK, *last)
    if observed.generation != want.generation:
        return (Step.STOP, *root, *_START, *shape, *_CHECK, *last)
    link = (Step.LINK,) if observed.unguarded else ()
    wake = (Step.RESUME,) if observed.domain is DomainState.PAUSED else ()
    other_limits, keys = _limits(want, observed), (*_name(want, observed), *_keys(want, observed))
    if not observed.settled:
        return (*root, *link, *wake, *shape, Step.PUBLISH, *other_limits, *_CHECK, *keys, *last)
    keys = (*other_limits, *keys)
    if (limits.net_out is not None) is not observed.shaped or (Step.NAME in keys and shape):
        return (*root, *link, *wake, *shape, *keys, *last)
    if pause:
        return (*root, *link, *keys, *(() if wake else last))
    return (*root, *link, *wake, *keys)


def _limits(want: Sliver, observed: Observed) -> tuple[Step, ...]:
    """Before the name: a spare that has become a tenant's is within the tenant's limits when the tenant logs in."""
    if want.spare:
        return ()
    if want.type is SliverType.KVM:  # memory alone; a paused guest gives none back
        frozen = observed.domain is DomainState.PAUSED and want.desired is Desired.PAUSED
        memory = None if observed.limits is None or frozen else observed.limits[LIVE_LIMITS.index("memory")]
        return (Step.LIMITS,) if memory not in (None, want.limits.memory) else ()
    known = observed.limits is not None or observed.hostname == SPARE
    return (Step.LIMITS,) if known and observed.limits != want.limits.live else ()


def _name(want: Sliver, observed: Observed) -> tuple[Step, ...]:
    """Before the keys: a sliver with the name of a spare has never let a user in."""
    return (Step.NAME,) if observed.hostname == SPARE and not want.spare else ()


def _keys(want: Sliver, observed: Observed) -> tuple[Step, ...]:
    """A stopped sliver gets its keys when it starts. A host key is reported again if its row lacks it."""
    other = observed.keys is not None and set(observed.keys) != set(want.ssh_keys)
    return (Step.KEYS,) if other or not want.host_key else ()


def _resize(want: Sliver, observed: Observed) -> tuple[Step, ...]:
    return (Step.RESIZE,) if observed.disk is not None and observed.disk != want.limits.disk else ()


def phase_after(desired: Desired) -> Phase:
    """The phase of a sliver whose plan was carried out to its end."""
    return {
        Desired.RUNNING: Phase.RUNNING,
        Desired.PAUSED: Phase.PAUSED,
        Desired.STOPPED: Phase.STOPPED,
        Desired.ABSENT: Phase.STOPPED,
    }[desired]

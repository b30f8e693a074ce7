"""Which files of an image slivers are made from: the base, the disk image, or both. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from slicemgr.model import Boot, SliverType


@dataclass(frozen=True, slots=True)
class Needs:
    """Which files of an image are needed."""

    base: bool = True
    disk: bool = True


ALL = Needs()


def needs(type: SliverType, boot: Boot) -> Needs:
    """What a sliver is made from. A machine whose kernel QEMU starts has it from the base."""
    if type is SliverType.LXC:
        return Needs(disk=False)
    return Needs(base=boot is Boot.DIRECT)

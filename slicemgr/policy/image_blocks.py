"""The blocks in which nodes exchange the files of images, and who fetches which of them from the service. Pure.

Each block has an owner among the nodes that fetch an image: the one with the smallest hash of block and identity
(rendezvous hashing, Thaler and Ravishankar 1998). Only the owner fetches it from the service, the others from nodes
that have it. A node that leaves gives only its own blocks to others, so nodes that do not agree on who is there, for a
moment or because one is behind NAT, fetch few blocks twice.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

SIZE = 4 << 20  # bytes of a block; the last one may be shorter
_ENOUGH = 3  # nodes that do not reach another one: then it counts as unreachable
_HEXADECIMAL = re.compile("[0-9a-f]+")
BASE = "base"  # the format of a stream of a base; those of disk images are qcow2 and raw
MOST = 1 << 16  # blocks of an image, 256 GiB


@dataclass(frozen=True, slots=True)
class Peer:
    """A node that has an image or fetches it, as the hub names it. complete: it has all of it."""

    identity: str
    address: str
    port: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Shared:
    """A file that nodes exchange now. size: in bytes. peers: all of them, also the node itself.

    image: the sha256 of the image of whose base it is the stream; "": it is a disk image.
    """

    sha256: str
    format: str
    size: int
    peers: tuple[Peer, ...]
    image: str = ""


def count(size: int) -> int:
    """The number of blocks of a file."""
    return -(-size // SIZE)


def length(size: int, block: int) -> int:
    """The bytes of one block of a file of `size` bytes."""
    return min(SIZE, size - block * SIZE)


def owner(sha256: str, block: int, identities: Iterable[str]) -> str:
    """Who fetches a block from the service. identities: of the nodes that fetch the image, at least one."""

    def rank(identity: str) -> bytes:
        return hashlib.sha256(f"{sha256}\n{block}\n{identity}".encode()).digest()

    return min(identities, key=rank)


def fetchers(
    own: str, peers: Iterable[Peer], unreached: Collection[str], by: Mapping[str, Collection[str]]
) -> set[str]:
    """The nodes among which this one shares out the blocks.

    unreached: those that do not answer it. by: identity → the nodes that do not answer that one. A node that no other
    fetching node can reach has nothing to give, and owns no block.
    """
    others = {one.identity for one in peers if not one.complete and one.identity != own} - set(unreached)
    heard = [found for identity, found in by.items() if identity in others]
    if heard and len(heard) >= min(len(others), _ENOUGH) and all(own in found for found in heard):
        return others
    return others | {own}


def bitmap(blocks: Iterable[int]) -> str:
    """Blocks as a hexadecimal number, block 0 the lowest bit."""
    value = 0
    for one in blocks:
        value |= 1 << one
    return f"{value:x}"


def blocks(text: str, number: int) -> set[int]:
    """The opposite of `bitmap` for a file of `number` blocks. ValueError for anything else."""
    if len(text) > number // 4 + 1 or not _HEXADECIMAL.fullmatch(text):
        raise ValueError("not a set of blocks")
    value = int(text, 16)
    if value >> number:
        raise ValueError("more blocks than the file has")
    return {one for one in range(number) if value >> one & 1}

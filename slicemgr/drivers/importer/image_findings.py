"""Parse and check the importer's output as hostile: the image may have compromised it. Pure.

A name that is used in a kernel command line or in XML, or that is displayed, must match a pattern here, or is refused
or escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from slicemgr import human
from slicemgr.drivers.importer.disk_layout import SECTOR
from slicemgr.errors import Failed, invalid

NO_ROOT = "has no root filesystem"

_DEVICE = re.compile(r"/dev(?:/[A-Za-z0-9_][A-Za-z0-9_+.-]{0,126}){1,2}")
_SUBVOLUME = re.compile(r"[A-Za-z0-9@_.][A-Za-z0-9@_.+-]{0,254}(?:/[A-Za-z0-9@_.][A-Za-z0-9@_.+-]{0,254}){0,7}")
_UUID = re.compile(r"[0-9A-Za-z-]{1,64}")
_TYPE = re.compile(r"[0-9A-Fa-fx-]{1,40}")
_MOST_PARTITIONS = 128
_SHOWN = 80  # characters, at most, of an untrusted name in an error
_LONGEST_ERROR = 300


@dataclass(frozen=True, slots=True)
class RootDevice:
    """The location of a root file system. subvolume, uuid: "" if there is none or it is unknown."""

    device: str
    subvolume: str
    uuid: str


@dataclass(frozen=True, slots=True)
class DiskFindings:
    """The findings on a disk. sector: its first. names: of all roots, for display. root: if there is exactly one."""

    sector: bytes
    partition_types: tuple[str, ...]
    names: tuple[str, ...]
    count: int
    root: RootDevice | None


def shown(text: str, limit: int = _SHOWN) -> str:
    """An untrusted text for an error or a log: one line of at most `limit` characters, control characters escaped."""
    whole = human.printable(text).strip()
    return whole if len(whole) <= limit else f"{whole[: limit - 1]}…"


def disk(line: str) -> DiskFindings:
    """Parse the importer's first line. Raises Refused for a root with a forbidden name, Failed for other errors."""
    said = _object(line)
    try:
        sector = bytes.fromhex(_text(said["sector"]))
        types, roots, count = _list(said["partition_types"]), _list(said["roots"]), said["root_count"]
        if len(sector) > SECTOR or len(types) > _MOST_PARTITIONS or type(count) is not int or count < len(roots):
            raise ValueError
        names = tuple(shown(_text(_mapping(one)["name"])) for one in roots)
        only = _mapping(roots[0]) if count == 1 else None
        fields = None if only is None else tuple(_text(only[name]) for name in ("device", "subvolume", "uuid"))
    except (KeyError, IndexError, ValueError) as error:
        raise _not_understood() from error
    good_types = tuple(one for one in types if isinstance(one, str) and _TYPE.fullmatch(one))
    return DiskFindings(sector, good_types, names, count, None if fields is None else _root(*fields))


def used_bytes(line: str) -> int:
    """Parse the importer's second line: the space that the files use, in bytes, at least 1. Raises Failed."""
    amount = _object(line).get("bytes")
    if type(amount) is not int or not 0 <= amount < 1 << 63:
        raise _not_understood()
    return max(1, amount)


def complete(line: str) -> None:
    """Parse the importer's last line. Raises Failed unless it states that the stream is complete."""
    if _object(line).get("complete") is not True:
        raise _not_understood()


def broken(text: str) -> Failed:
    """The error of a failed import, with the end of a program's output."""
    return Failed(f"the image's files cannot be read: {shown(text.strip()[-_LONGEST_ERROR:], _LONGEST_ERROR)}")


def _root(device: str, subvolume: str, uuid: str) -> RootDevice:
    if not _DEVICE.fullmatch(device) or ".." in device.split("/"):
        raise invalid("file", f"has its root on {shown(device)!a}", "a partition or a logical volume is needed")
    if subvolume and (not _SUBVOLUME.fullmatch(subvolume) or ".." in subvolume.split("/")):
        raise invalid(
            "file",
            f"has its root in the btrfs subvolume {shown(subvolume)!a}",
            "a kernel's command line takes names of the letters a-z, digits and @ _ . + - only",
        )
    return RootDevice(device, subvolume, uuid if _UUID.fullmatch(uuid) else "")


def _object(line: str) -> Mapping[str, object]:
    """A line parsed as a JSON object. Raises Failed if it is not one, or if it reports an error of the importer."""
    try:
        said = _mapping(json.loads(line))
    except (ValueError, RecursionError) as error:
        raise _not_understood() from error
    if "error" in said:
        raise broken(str(said["error"]))
    return said


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ValueError
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ValueError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _not_understood() -> Failed:
    return Failed("the image's files cannot be read: the response of the importer is invalid")

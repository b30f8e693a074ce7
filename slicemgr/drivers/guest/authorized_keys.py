"""root's authorized_keys: lines that the testbed wrote are replaced, lines that the tenant wrote are kept.

The lines that the testbed has written are recorded beside the root, where the tenant cannot change the record.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from slicemgr import names
from slicemgr.drivers.guest.rootfs import Root
from slicemgr.drivers.storage import atomic_file
from slicemgr.errors import Failed

_LARGEST = 1 << 20
_LARGEST_PASSWD = 1 << 20
_LONGEST_HOME = 1024


@dataclass(frozen=True, slots=True)
class Note:
    """The record. put: every line that slicemgr ever wrote. now: the lines that the sliver currently has."""

    put: tuple[str, ...]
    now: tuple[str, ...]

    def gone(self, want: Collection[str]) -> tuple[str, ...]:
        """The lines of slicemgr that must not be in the file."""
        return tuple(one for one in self.put if one not in want)


def read_note(pool: Path, sliver: str) -> Note | None:
    """The record; None if no lines have been written yet or the record is not readable."""
    try:
        raw = json.loads(names.keys_file(pool, sliver).read_text())
        return Note(tuple(raw["put"]), tuple(raw["now"]))
    except (FileNotFoundError, ValueError, KeyError):
        return None


def write_note(pool: Path, sliver: str, put: Sequence[str], now: Sequence[str]) -> None:
    """Record the lines that slicemgr ever wrote (`put`) and those that the sliver has (`now`)."""
    text = json.dumps({"put": list(dict.fromkeys(put)), "now": list(now)})
    atomic_file.write(names.keys_file(pool, sliver), text)


def merged(content: bytes, put: Collection[str], want: Sequence[str]) -> bytes:
    """The file with `want` in place of the lines `put`; all other lines are kept. Pure."""
    ours = {line.strip().encode() for line in (*put, *want)}
    kept = [line for line in content.splitlines() if line.strip() not in ours]
    return b"".join(line + b"\n" for line in (*kept, *(line.strip().encode() for line in want)))


def write(root: Root, want: Sequence[str], put: Collection[str] | None) -> None:
    """Write the file. put: lines written before; None: none, and the image's lines are replaced. Raises Failed."""
    home = home_of_root(root.read("etc/passwd", _LARGEST_PASSWD))
    if not root.exists(home):
        root.mkdir(home, 0o700)
    root.own_directory(f"{home}/.ssh", 0o700)
    path = f"{home}/.ssh/authorized_keys"
    there = b"" if put is None else root.read(path, _LARGEST) or b""
    if len(there) == _LARGEST:
        raise Failed(f"{path} is larger than any list of keys", hint="make it smaller")
    root.write(path, merged(there, put or (), want), mode=0o600)


def home_of_root(passwd: bytes | None) -> str:
    """root's home directory by the /etc/passwd of the sliver; `/root` if that has no usable entry."""
    for line in (passwd or b"").decode("utf-8", "replace").splitlines():
        fields = line.split(":")
        if len(fields) >= 7 and fields[0] == "root":
            parts = fields[5].split("/")
            usable = fields[5].startswith("/") and len(fields[5]) <= _LONGEST_HOME and fields[5].isprintable()
            return fields[5] if usable and ".." not in parts and max(map(len, parts)) <= 255 else "/root"
    return "/root"

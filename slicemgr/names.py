"""All names on the host, derived from ids, so that nothing about the host is stored.

All host objects carry the mark `sm`: an object whose name does not parse here belongs to others and is never touched. A
slice's tag is 8 characters of ALPHABET; the links of one slice share a prefix, so that one firewall rule covers a whole
slice. An interface name has at most 15 characters.
"""

from __future__ import annotations

import re
import secrets
import uuid
from pathlib import Path

MARK = "sm"
ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # 32 characters, none easily confused with another
TAG_LENGTH = 8
MAX_INDEX = 999
CHAIN_PREFIX = "SLICEMGR"
CONSOLE_LOG, KERNEL, INITRD = "console.log", "kernel", "initrd"  # of a virtual machine, in its directory
RECORD = "record.json"  # in the directory of a sliver
DISK, FIRMWARE_VARIABLES = "disk.qcow2", "nvram.fd"  # the disk in a virtual machine's snapshot

_SLIVER_ID = re.compile(rf"([{ALPHABET}]{{{TAG_LENGTH}}})-(0|[1-9][0-9]{{0,2}})")
_NAMESPACE = uuid.UUID("6f2c3f0e-2b0b-5c8e-9a55-1d3c5f6a7b81")


def new_tag() -> str:
    """A random tag (40 bits); the database's unique constraint detects a collision."""
    return "".join(secrets.choice(ALPHABET) for _ in range(TAG_LENGTH))


def sliver_id(tag: str, index: int) -> str:
    return f"{tag}-{index}"


def is_sliver_id(text: str) -> bool:
    return _SLIVER_ID.fullmatch(text) is not None


def domain(sliver: str) -> str:
    """The libvirt domain's name."""
    return f"{MARK}-{sliver}"


def sliver_of_domain(name: str) -> str | None:
    """The sliver whose domain is called `name`; None if the domain is not of slicemgr."""
    sliver = name.removeprefix(f"{MARK}-")
    return sliver if sliver != name and is_sliver_id(sliver) else None


def domain_uuid(sliver: str) -> str:
    return str(uuid.uuid5(_NAMESPACE, sliver))


def link_prefix(tag: str) -> str:
    """The common prefix of the host-side links of one slice."""
    return f"{MARK}{tag}-"


def link(sliver: str) -> str:
    """The host-side veth or tap (at most 2 + 8 + 1 + 3 = 14 characters)."""
    return f"{MARK}{sliver}"


def sliver_of_link(name: str) -> str | None:
    sliver = name.removeprefix(MARK)
    return sliver if sliver != name and is_sliver_id(sliver) else None


def shaper(sliver: str) -> str:
    """The ifb device that holds the sliver's outgoing rate (at most 3 + 8 + 1 + 3 = 15 characters)."""
    return f"{MARK}i{sliver}"


def sliver_of_shaper(name: str) -> str | None:
    sliver = name.removeprefix(f"{MARK}i")
    return sliver if sliver != name and is_sliver_id(sliver) else None


def mac(sliver: str) -> str:
    """A locally administered unicast MAC address."""
    tail = uuid.uuid5(_NAMESPACE, f"mac {sliver}").bytes[:5]
    return ":".join(f"{byte:02x}" for byte in (0x52, *tail))


def qgroup(serial: int) -> int:
    """The btrfs quota group of a sliver: level 1, `1/serial`."""
    return (1 << 48) | serial


def sliver_dir(pool: Path, sliver: str) -> Path:
    """The sliver's own subvolume; its root, key and disks are inside."""
    return pool / "slivers" / sliver


def root_dir(pool: Path, sliver: str) -> Path:
    return sliver_dir(pool, sliver) / "root"


def unfinished_root(pool: Path, sliver: str) -> Path:
    """A container's root while it is created or removed."""
    return sliver_dir(pool, sliver) / "root.new"


def disk_file(pool: Path, sliver: str) -> Path:
    """A virtual machine's root: an overlay on its image."""
    return sliver_dir(pool, sliver) / DISK


def new_snapshot() -> str:
    """A new snapshot id, in the form of a tag."""
    return new_tag()


def is_snapshot_id(text: str) -> bool:
    return len(text) == TAG_LENGTH and set(text) <= set(ALPHABET)


def snapshots_dir(pool: Path, sliver: str) -> Path:
    """Inside the sliver's own subvolume, so that snapshots are charged to the sliver and deleted with it."""
    return sliver_dir(pool, sliver) / "snapshots"


def snapshot_dir(pool: Path, sliver: str, snapshot: str) -> Path:
    """A read-only subvolume: the root of a container, the directory with the disk of a virtual machine."""
    return snapshots_dir(pool, sliver) / snapshot


def origin(sliver: str, snapshot: str) -> str:
    """The origin of a root that is not created from the image."""
    return f"{sliver}/{snapshot}"


def seed_file(pool: Path, sliver: str) -> Path:
    """The disk with which cloud-init configures a virtual machine."""
    return sliver_dir(pool, sliver) / "seed.img"


def limit_file(pool: Path, sliver: str) -> Path:
    """The file with the disk limit that was applied last, in bytes."""
    return sliver_dir(pool, sliver) / "limit"


def keys_file(pool: Path, sliver: str) -> Path:
    """The file with the SSH keys that were installed in the sliver."""
    return sliver_dir(pool, sliver) / "keys.json"


def hostname_file(pool: Path, sliver: str) -> Path:
    """The file with the host name that was written into the sliver."""
    return sliver_dir(pool, sliver) / "hostname"


def record_file(pool: Path, sliver: str) -> Path:
    """The file with the sliver's row, for a database that lost it."""
    return sliver_dir(pool, sliver) / RECORD


def kept_dir(pool: Path) -> Path:
    """The directory of disks that are kept of slivers which this node no longer has."""
    return pool / "kept"


def image_file(images: Path, sha256: str, format: str) -> Path:
    return images / f"{sha256}.{format}"


def base_dir(pool: Path, sha256: str) -> Path:
    return pool / "bases" / sha256


def launch_file(run_dir: Path, sliver: str) -> Path:
    """The file that the launcher reads before it executes libvirt_lxc."""
    return run_dir / "launch" / domain(sliver)

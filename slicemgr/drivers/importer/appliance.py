"""libguestfs' appliance: a kernel and a root file system, built before any untrusted image is read.

supermin builds the appliance from the packages of this node, confined as an importer is, but without an image. The
result belongs to root and importers get it read-only, so no image can change the appliance that reads the next one.
The appliance is built again when the node's packages or kernels change.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
from pathlib import Path

from slicemgr.drivers.command import CommandFailed
from slicemgr.drivers.importer import confinement
from slicemgr.drivers.importer.confinement import Bounds, User, View
from slicemgr.errors import Failed

_FILES = ("kernel", "initrd", "root")
_MARK = "README.fixed"  # libguestfs recognizes a complete appliance by this file
_RECIPE = Path("/usr/lib/x86_64-linux-gnu/guestfs/supermin.d")
_PACKAGES = Path("/var/lib/dpkg")
_KERNELS = Path("/boot")
PLACE = "/appliance"  # its path in an importer's view
_BUILD_SECONDS = 600.0
_BOUNDS = Bounds(memory=3 << 30, data=2 << 30, cpu=600, file=8 << 30, files=1024, scratch=1 << 30)


def ensure(cache: Path, who: User) -> Path:
    """The directory of the appliance, built if necessary. cache: a directory of root. Raises Failed."""
    cache.mkdir(mode=0o755, parents=True, exist_ok=True)
    complete = cache / _version()
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (complete / _MARK).exists():
            for old in cache.iterdir():
                if old.is_dir():  # for other packages, or unfinished because its builder was killed
                    shutil.rmtree(old)
            unfinished = cache / f"{complete.name}.new"
            _build(unfinished, who)
            unfinished.rename(complete)
    return complete


def _version() -> str:
    """A digest that changes with the packages and kernels that the appliance is built from. Raises Failed."""
    digest = hashlib.sha256()
    try:
        for path in (_PACKAGES / "status", *sorted(_RECIPE.iterdir()), *sorted(_KERNELS.glob("vmlinu*"))):
            found = path.stat()
            digest.update(f"{path} {found.st_mtime_ns} {found.st_size}\n".encode())
    except OSError as error:
        hint = "apt-get install libguestfs-tools linux-image-cloud-amd64"
        raise Failed(f"libguestfs' appliance cannot be built: {error}", hint=hint) from error
    return digest.hexdigest()[:16]


def _build(target: Path, who: User) -> None:
    """Build the appliance from files that all users may read, and make root its owner. Raises Failed."""
    target.mkdir(mode=0o700)
    os.chown(target, who.uid, who.gid)
    line = ["supermin", "--build", "-f", "ext2", "--copy-kernel", "--host-cpu", "x86_64", str(_RECIPE), "-o", "/made/d"]
    reads = {str(path): path for path in (Path("/etc"), _KERNELS, _PACKAGES)}
    try:
        confinement.run(line, who, _BOUNDS, View(reads, {"/made": target}), timeout=_BUILD_SECONDS)
    except CommandFailed as error:
        hint = "`slicectl doctor` checks what it is built of"
        raise Failed(f"libguestfs' appliance cannot be built: {error.stderr.strip()[-300:]}", hint=hint) from error
    for name in _FILES:
        _take(target / "d" / name, target / name)
    shutil.rmtree(target / "d")
    os.chown(target, 0, 0)
    target.chmod(0o755)
    (target / _MARK).write_text("Built by slicemgr from the packages of this node.\n")


def _take(source: Path, target: Path) -> None:
    """Make root the owner of a regular file. Raises Failed if it is not a regular file."""
    source.rename(target)
    fd = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise Failed(f"libguestfs' appliance cannot be built: {target.name} is not a plain file")
        os.fchown(fd, 0, 0)
        os.fchmod(fd, 0o644)
    finally:
        os.close(fd)

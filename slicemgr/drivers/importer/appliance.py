"""libguestfs' appliance, a kernel and a root file system, built once and not by whoever reads a stranger's image.

supermin builds it from the packages of this node, confined as an importer is, but without any image. Then it is root's:
an importer sees it read-only, so no image can change what the next one is read with. It is built anew when the node's
packages or kernels change.
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
_MARK = "README.fixed"  # by which libguestfs knows a directory with an appliance that is complete
_RECIPE = Path("/usr/lib/x86_64-linux-gnu/guestfs/supermin.d")
_PACKAGES = Path("/var/lib/dpkg")
_KERNELS = Path("/boot")
PLACE = "/appliance"  # where an importer sees it
_BUILD_SECONDS = 600.0
_BOUNDS = Bounds(memory=3 << 30, data=2 << 30, cpu=600, file=8 << 30, files=1024, scratch=1 << 30)


def ensure(cache: Path, who: User) -> Path:
    """The directory with the appliance, built if need be. cache: root's directory. Raises Failed."""
    cache.mkdir(mode=0o755, parents=True, exist_ok=True)
    complete = cache / _version()
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (complete / _MARK).exists():
            for old in cache.iterdir():
                if old.is_dir():  # of other packages, or of a builder that was killed
                    shutil.rmtree(old)
            unfinished = cache / f"{complete.name}.new"
            _build(unfinished, who)
            unfinished.rename(complete)
    return complete


def _version() -> str:
    """Changes with the packages and the kernels that it is made of. Raises Failed."""
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
    """supermin reads what everybody may read; its result becomes root's."""
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
    """Give a plain file to root. Raises Failed if it is anything else."""
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

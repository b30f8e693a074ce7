"""The files of published experiments: reading them from the uploaded archive, and finding them.

Debian 12's tarfile has no extraction filters, and none is needed: a member is read, never extracted. Its name must be
one of the names in a report, and its content goes into a file that this module creates. Owner, mode and links are
ignored.
"""

from __future__ import annotations

import logging
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from slicemgr.config import Config
from slicemgr.errors import Failed, invalid
from slicemgr.policy import experiments

log = logging.getLogger(__name__)
_CHUNK = 1 << 20
_ARRIVING = ".arriving-"
Files = list[dict[str, Any]]  # name and size in bytes of each


@contextmanager
def unpacked(config: Config, archive: Path) -> Iterator[tuple[Path, Files]]:
    """Read the files of a tar archive into a temporary folder, which is removed at the end unless it was renamed.

    Refused, with the name of the file, for anything but a complete report within its limits. Failed if they cannot be
    written.
    """
    folder: Path | None = None
    try:
        folder = Path(tempfile.mkdtemp(dir=config.experiments_dir, prefix=_ARRIVING))
        files = _unpack(archive, folder, config.web.max_report.bytes)
    except OSError as error:
        if folder is not None:
            remove(folder)
        raise Failed(f"the report cannot be stored: {error.strerror or error}", hint="nothing was stored") from error
    except BaseException:
        if folder is not None:
            remove(folder)
        raise
    try:
        yield folder, files
    finally:
        remove(folder)


def _unpack(archive: Path, folder: Path, most: int) -> Files:
    files: Files = []
    try:
        with tarfile.open(archive, "r:") as tar:  # uncompressed, so its content is not larger than the upload
            for member in tar:
                if name := _checked(member, [one["name"] for one in files]):
                    files.append({"name": name, "size": member.size})
                    _check_room(files, most)
                    _write(tar, member, folder / name)
    except (tarfile.TarError, ValueError) as error:
        raise invalid("file", f"is not a tar archive: {error}", "send an uncompressed tar archive") from error
    names = [one["name"] for one in files]
    experiments.check_files(names)
    return sorted(files, key=lambda one: (one["name"] != experiments.REPORT, one["name"]))


def _checked(member: tarfile.TarInfo, taken: list[str]) -> str:
    """The file name of a member; "" for the folder itself."""
    name = member.name.removeprefix("./")
    if member.isdir() and name in ("", "."):
        return ""
    if not experiments.fits(name):
        raise invalid("file", f"contains {member.name[:80]!r}", f"only {experiments.KNOWN}, in no folder")
    if not member.isreg() or member.issparse():
        raise invalid("file", f"contains {name}, which is not a regular file")
    if name in taken:
        raise invalid("file", f"contains {name} twice")
    return name


def _check_room(files: Files, most: int) -> None:
    if len(files) > experiments.MOST_FILES:
        raise invalid("file", "contains too many files", f"at most {experiments.MOST_FILES}")
    if sum(one["size"] for one in files) > most:
        raise invalid("file", "is too large", f"the files can have at most {most} bytes in total (web.max_report)")


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    source = tar.extractfile(member)
    assert source is not None, "send regular files only"
    # Readable for a later `web.user`, too: the mode of the parent folder keeps others out.
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        _copy(source, file)
        file.flush()
        os.fsync(file.fileno())


def _copy(source: IO[bytes], target: IO[bytes]) -> None:
    while chunk := source.read(_CHUNK):
        target.write(chunk)


def place(config: Config, id: str) -> Path:
    """The folder of an experiment."""
    return config.experiments_dir / id


def remove(folder: Path) -> None:
    """Delete a folder with its content. `sweep` retries what cannot be removed now."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("%s was not removed: %s", folder, error)


def sweep(config: Config, known: set[str]) -> list[Path]:
    """Remove folders without an experiment (left by a process that was killed); the removed paths."""
    if not config.experiments_dir.is_dir():
        return []
    left = [folder for folder in config.experiments_dir.iterdir() if folder.name not in known]
    for folder in left:
        remove(folder)
    return left

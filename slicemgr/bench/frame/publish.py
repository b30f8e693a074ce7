"""The archive of a run folder for publication: only the files of the report, and reproducible byte by byte."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from slicemgr.errors import Failed, invalid
from slicemgr.policy import experiments


def files_of(folder: Path) -> list[Path]:
    """The files of a run folder that are published. Raises Refused, with a hint, if the report is incomplete."""
    if not folder.is_dir():
        wrong = "is not a folder" if folder.exists() else "does not exist"
        raise invalid("FOLDER", f"{folder} {wrong}", "the folder of a run of `slicectl bench`")
    found = [
        path
        for path in sorted(folder.iterdir())
        if experiments.fits(path.name) and path.is_file() and not path.is_symlink()
    ]
    names = [path.name for path in found]
    if experiments.RUN not in names:
        hint = "`slicectl bench scale --output FOLDER` makes one"
        raise invalid("FOLDER", f"{folder} is no run: it has no {experiments.RUN}", hint)
    if experiments.REPORT not in names:
        hint = f"`slicectl bench report {folder}` makes it"
        raise invalid("FOLDER", f"{folder} has no {experiments.REPORT}", hint)
    if len(found) > experiments.MOST_FILES:
        raise invalid("FOLDER", f"{folder} has {len(found)} files of a report", f"at most {experiments.MOST_FILES}")
    experiments.read_run(*((folder / name).read_bytes() for name in (experiments.RUN, experiments.REPORT)))
    return found


@contextmanager
def archive(folder: Path) -> Iterator[tuple[IO[bytes], int]]:
    """The archive, open at its beginning, and its size in bytes. Raises Refused, or Failed if a file is unreadable."""
    with tempfile.TemporaryFile() as target:
        try:
            _pack(files_of(folder), target)
        except OSError as error:
            raise Failed(f"cannot read {error.filename or folder}: {error.strerror or error}") from error
        size = target.tell()
        target.seek(0)
        yield target, size


def _pack(files: list[Path], target: IO[bytes]) -> None:
    """Omits times and owners, so that the same report gives the same archive for every user."""
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in files:
            with path.open("rb") as file:
                member = tarfile.TarInfo(path.name)
                member.size = path.stat().st_size
                tar.addfile(member, file)

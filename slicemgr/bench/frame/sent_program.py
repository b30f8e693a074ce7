"""A program of this machine with its libraries, for slivers whose image lacks it and that reach no package mirror.

The loader of this machine starts the program with the libraries of this machine, so that the versions of the image do
not matter. The image needs sh, tar and gzip, and a processor that runs the program.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from slicemgr.drivers import command

_LDD_SECONDS = 60.0
_LIBRARY = re.compile(r"^\s+(?:(\S+) => )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)
_LAUNCHER = """#!/bin/sh
here=${{0%/*}}
exec "$here/lib/{loader}" --library-path "$here/lib" "$here/lib/{name}" "$@"
"""


@dataclass(frozen=True, slots=True)
class SentProgram:
    """name: of the program. archive: a tar file, compressed by gzip, with the launcher `name` and the folder `lib`.

    trial: the option with which the program does nothing but end with success; "": it has none.
    """

    name: str
    archive: bytes
    trial: str = "--version"

    def unpack(self, place: str) -> str:
        """The shell command that unpacks the archive from its standard input into `place`, and tries it."""
        folder = shlex.quote(place)
        trial = f" && {folder}/{self.name} {self.trial}" if self.trial else ""
        return f"mkdir -p {folder} && tar -xzf - -C {folder}{trial}"


def find(name: str, installed: str = "", trial: str = "--version") -> SentProgram | None:
    """The program of this machine; None if it is not installed, or is not linked to shared libraries by ldd's list.

    installed: the name of its file here, if that is another. trial: see `SentProgram`.
    """
    path = shutil.which(installed or name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if path is None:
        return None
    try:
        listed = command.run(["ldd", path], timeout=_LDD_SECONDS).decode(errors="replace")
    except command.CommandFailed:  # a script, a static program, or a system without ldd
        return None
    libraries = {own or Path(file).name: Path(file) for own, file in _LIBRARY.findall(listed)}
    loaders = [own for own in libraries if own.startswith("ld-linux")]
    if len(loaders) != 1:
        return None
    launcher = _LAUNCHER.format(loader=loaders[0], name=name).encode()
    return SentProgram(name, _packed(name, launcher, {**libraries, name: Path(path)}), trial)


def static(file: Path) -> SentProgram:
    """A program that is linked statically."""
    return SentProgram(file.name, _archive([(file.name, file.read_bytes())]), "")


def _packed(name: str, launcher: bytes, files: dict[str, Path]) -> bytes:
    return _archive(_contents(name, launcher, files))


def _archive(contents: Iterable[tuple[str, bytes]]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz", compresslevel=1) as archive:
        for path, content in contents:
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return target.getvalue()


def _contents(name: str, launcher: bytes, files: dict[str, Path]) -> Iterator[tuple[str, bytes]]:
    yield name, launcher
    for own, file in files.items():
        yield f"lib/{own}", file.read_bytes()

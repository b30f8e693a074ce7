"""A program of this machine that is sent to a sliver: it brings its libraries and its loader."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slicemgr.bench.frame import sent_program


def unpacked(program: sent_program.SentProgram, place: Path) -> subprocess.CompletedProcess[bytes]:
    words = ["env", "-i", "PATH=/usr/bin:/bin", "sh", "-c", program.unpack(str(place))]
    return subprocess.run(words, input=program.archive, capture_output=True, timeout=60)


def test_it_runs_with_the_libraries_that_came_with_it(tmp_path: Path) -> None:
    program = sent_program.find("cat")
    assert program is not None
    place = tmp_path / "a place"
    done = unpacked(program, place)
    assert done.returncode == 0 and b"coreutils" in done.stdout, done.stderr
    maps = subprocess.run([place / "cat", "/proc/self/maps"], capture_output=True, text=True, check=True, timeout=60)
    files = {line.split(maxsplit=5)[5] for line in maps.stdout.splitlines() if ".so" in line}
    assert any(Path(file).name.startswith("libc.so") for file in files)
    assert all(file.startswith(f"{place}/lib/") for file in files)


def test_the_control_runs_with_those_of_the_system(tmp_path: Path) -> None:
    maps = subprocess.run(["cat", "/proc/self/maps"], capture_output=True, text=True, check=True, timeout=60)
    assert str(tmp_path) not in maps.stdout and "libc.so" in maps.stdout


def test_an_archive_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    program = sent_program.find("cat")
    assert program is not None
    cut = sent_program.SentProgram("cat", program.archive[: len(program.archive) // 2])
    assert unpacked(cut, tmp_path).returncode != 0


@pytest.mark.parametrize("name", ["no-such-program", "ldd"])
def test_what_cannot_be_sent(name: str) -> None:
    """A program that is not installed, and a script."""
    assert sent_program.find(name) is None

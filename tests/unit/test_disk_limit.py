"""The command that shows a container its disk limit, run by each shell that an image may have."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from slicemgr.drivers.libvirt.launch import INIT_DIR

SHELLS = (("dash",), ("bash", "--posix"), ("busybox", "sh"))
GIB = 1 << 30


def shown(place: Path, *arguments: str, **counts: int) -> tuple[int, str, str]:
    """Exit status, output and first line of the errors, which must be the same under all shells."""
    shutil.copy(INIT_DIR / "disk-limit", place)
    (place / "disk").mkdir(exist_ok=True)
    for name, count in counts.items():
        (place / "disk" / name).write_text(f"{count}\n")
    results = set()
    for shell in SHELLS:
        words = [*shell, place / "disk-limit", *arguments]
        done = subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        results.add((done.returncode, done.stdout, done.stderr.partition("\n")[0]))
    (result,) = results
    return result


def test_what_is_in_memory_counts_as_used(tmp_path: Path) -> None:
    status, text, error = shown(tmp_path, max_exclusive=4 * GIB, exclusive=GIB, rsv_data=GIB)
    assert (status, error) == (0, "")
    assert text.splitlines() == ["limit      4096 MiB", "used       2048 MiB (50 %)", "available  2048 MiB"]


def test_nothing_is_available_beyond_the_limit(tmp_path: Path) -> None:
    _, text, _ = shown(tmp_path, max_exclusive=GIB, exclusive=GIB, rsv_data=4096)
    assert text.splitlines()[-1] == "available  0 MiB"


def test_without_counts_it_names_another_place(tmp_path: Path) -> None:
    status, text, error = shown(tmp_path)
    assert (status, text) == (1, "") and "slicectl show" in error
    status, text, error = shown(tmp_path, max_exclusive=0, exclusive=GIB, rsv_data=0)
    assert (status, text) == (1, "") and "no limit" in error


def test_arguments_are_refused(tmp_path: Path) -> None:
    status, text, error = shown(tmp_path, "-h")
    assert (status, text) == (2, "") and error.startswith("Usage: ")

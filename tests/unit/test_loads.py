"""The programs that experiments send: run as they are in a sliver, by a Python without slicemgr."""

from __future__ import annotations

import ast
import json
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paper_loads import CPU, FILES, MEMORY

from slicemgr import loads
from slicemgr.loads import disk, sysbench

PROGRAMS = [path for path in Path(loads.__file__).parent.glob("*.py") if path.stem != "__init__"]
# A fake sysbench if it is not installed: prints its output, and records its arguments.
STANDS_FOR_SYSBENCH = """#!/bin/sh
echo "$@" >> {asked}
case "$*" in
--version) echo "sysbench {version}" ;;
*prepare) [ -z "{fails}" ] || {{ echo "FATAL: error 28: {fails}"; exit 1; }} ;;
*run) cat {said} ;;
esac
"""


def run(program: str, *words: str, cwd: Path, path: str = "/usr/bin:/bin") -> dict[str, Any]:
    text = Path(loads.__file__).with_name(program).read_bytes()
    argv = ["python3", "-I", "-", *words]
    done = subprocess.run(argv, input=text, capture_output=True, cwd=cwd, env={"PATH": path}, timeout=120)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_they_need_nothing_but_python(path: Path) -> None:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
    assert found <= sys.stdlib_module_names


@pytest.mark.parametrize("size", [151_600, 536_600])
def test_a_database_has_the_size_and_every_table(size: int, tmp_path: Path) -> None:
    assert run("disk.py", "make", "sqlite", str(size), "7", cwd=tmp_path) == {}
    path = tmp_path / disk.DATABASE
    assert size <= path.stat().st_size <= size + 6 * disk.PAGE
    before = _rows(path)
    assert set(before) == set(disk.TABLES) and all(before.values())
    found = run("disk.py", "measure", "sqlite", str(size), "7", cwd=tmp_path)
    assert found["bytes"] >= size and all(found[name] > 0 for name in ("read", "write", "sync"))
    after = _rows(path)
    assert after == {**before, **{f"{name}_copy": rows for name, rows in before.items()}}


def _rows(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    connection = sqlite3.connect(path)
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
    found = {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in names}
    connection.close()
    return found


def test_the_same_seed_makes_the_same_data(tmp_path: Path) -> None:
    made = []
    for place, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / place).mkdir()
        run("disk.py", "make", "sqlite", "151600", seed, cwd=tmp_path / place)
        run("disk.py", "make", "files", "3", seed, cwd=tmp_path / place)
        files = [path.read_bytes() for path in sorted((tmp_path / place / disk.FILES).iterdir())]
        made.append((_rows(tmp_path / place / disk.DATABASE), files))
    assert made[0] == made[1] and made[0][0] != made[2][0] and made[0][1] != made[2][1]


def test_small_files_are_alphanumeric_none_like_another(tmp_path: Path) -> None:
    assert run("disk.py", "make", "files", "20", "1", cwd=tmp_path) == {}
    files = {path.name: path.read_bytes() for path in (tmp_path / disk.FILES).iterdir()}
    assert len(files) == len(set(files.values())) == 20
    assert all(len(one) == disk.PAGE and one.isalnum() for one in files.values())
    with tarfile.open(tmp_path / disk.ARCHIVE, "r:") as archive:
        assert len([one for one in archive.getmembers() if one.isfile()]) == 20
    found = run("disk.py", "measure", "files", "20", "1", cwd=tmp_path)
    assert all(found[name] > 0 for name in ("read", "write", "sync"))
    unpacked = {path.name: path.read_bytes() for path in (tmp_path / disk.COPY / disk.FILES).iterdir()}
    assert unpacked == files


@pytest.mark.parametrize("what", ["sqlite", "files"])
def test_nothing_is_left(what: str, tmp_path: Path) -> None:
    assert "read" in run(
        "disk.py", "make,measure,remove", what, "70000" if what == "sqlite" else "5", "1", cwd=tmp_path
    )
    assert list(tmp_path.iterdir()) == []


def test_what_goes_wrong_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / disk.DATABASE).write_text("this is no database, and long enough to be read as one" * 100)
    assert "not a database" in str(run("disk.py", "measure,remove", "sqlite", "70000", "1", cwd=tmp_path)["failed"])
    assert list(tmp_path.iterdir()) == []
    (tmp_path / disk.COPY).touch()
    assert "File exists" in str(run("disk.py", "make,measure", "files", "3", "1", cwd=tmp_path)["failed"])


@pytest.mark.parametrize(("what", "size"), [("sqlite", "900000"), ("files", "100")])
def test_a_full_disk_is_no_failure(what: str, size: str, tmp_path: Path) -> None:
    """A small private file system of the program, which is removed with it."""
    script = 'mount -t tmpfs -o size=300k none "$1" && cd "$1" && shift && python3 -I - "$@" && ls'
    argv = ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh"]
    text = Path(disk.__file__).read_text()
    argv += [str(tmp_path), "make,measure,remove", what, size, "1"]
    done = subprocess.run(argv, input=text, capture_output=True, text=True)
    assert done.stdout == '{"missing": "its disk is full"}\n', done.stderr


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder that is not in memory, as `tmp_path` can be."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


def test_reading_begins_without_the_page_cache(on_disk: Path) -> None:
    """After `evict`, the kernel reports no cached pages of the file; before, it reports some."""
    path = on_disk / "file"
    path.write_bytes(b"x" * (1 << 20))
    with path.open("rb") as file:
        file.read()
    program = Path(disk.__file__).read_text().rpartition("if __name__")[0]
    program += """
def resident(path):
    import mmap
    with open(path, "r+b") as file:
        area = mmap.mmap(file.fileno(), 0)
        pages = (len(area) + 4095) // 4096
        states = (ctypes.c_ubyte * pages)()
        start = (ctypes.c_char * len(area)).from_buffer(area)
        assert ctypes.CDLL(None).mincore(ctypes.byref(start), ctypes.c_size_t(len(area)), states) == 0
        del start
        return sum(one & 1 for one in states)
settle()
before = resident("file")
evict(iter([Path("file")]))
print(before, resident("file"))
"""
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, cwd=on_disk)
    before, after = map(int, done.stdout.split())
    assert before == 256 and after < before / 4, done.stderr


# --- sysbench ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("test", "said", "expected"),
    [
        ("cpu", CPU, {"seconds": 1.012, "events": 876, "events_per_second": 865.15}),
        ("threads", CPU, {"seconds": 1.012, "events": 876}),
        ("memory", MEMORY, {"seconds": 1.0096, "events": 2854420, "operations": 2854420, "mib_per_second": 2757.37}),
        ("fileio", FILES, {"seconds": 1.0144, "events": 102973, "read": 417.53, "written": 278.32}),
    ],
)
def test_what_sysbench_says(test: str, said: str, expected: dict[str, float]) -> None:
    assert sysbench.parse(test, said) == expected
    with pytest.raises(ValueError, match=f"sysbench {test} printed no"):
        sysbench.parse(test, said.replace("total", "tot"))


def test_the_commands_are_the_tables() -> None:
    assert sysbench.words("cpu", 0, 1 << 30, 1) == ["cpu", "--cpu-max-prime=20000", "--time=10", "--rand-seed=1"]
    assert sysbench.words("threads", 0, 1 << 30, 1)[:3] == ["threads", "--thread-locks=1", "--time=20"]
    assert sysbench.words("memory", 3, 1 << 30, 1)[:3] == ["memory", "--threads=4", "--time=3"]
    files = sysbench.words("fileio", 0, 1 << 30, 1)
    assert {"--threads=16", "--file-test-mode=rndrw", "--file-total-size=1073741824", "--time=10"} <= set(files)


def _stand(folder: Path, said: str, *, version: str = "1.0.20", fails: str = "") -> str:
    """The PATH of a program that replaces sysbench."""
    (folder / "said").write_text(said)
    text = STANDS_FOR_SYSBENCH.format(asked=folder / "asked", said=folder / "said", version=version, fails=fails)
    (folder / "sysbench").write_text(text)
    (folder / "sysbench").chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_files_are_made_and_removed_around_the_test(tmp_path: Path) -> None:
    path = _stand(tmp_path, FILES)
    found = run("sysbench.py", "fileio", "1", str(16 << 20), "5", cwd=tmp_path, path=path)
    assert found["written"] == 278.32 and found["version"] == "1.0.20"
    verbs = [line.split()[-1] for line in (tmp_path / "asked").read_text().splitlines()]
    assert verbs == ["--version", "prepare", "run", "cleanup"]


def test_sysbench_that_is_not_there_too_old_or_has_no_room(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    (nothing / "python3").symlink_to(sys.executable)
    found = run("sysbench.py", "cpu", "1", "1", "1", cwd=tmp_path, path=str(nothing))
    assert found["missing"] == "sysbench is not installed" and "apt-get install -y sysbench" in found["adds"]
    old = run("sysbench.py", "cpu", "1", "1", "1", cwd=tmp_path, path=_stand(tmp_path, CPU, version="0.4.12"))
    assert "0.4.12" in old["missing"]
    full = _stand(tmp_path, FILES, fails="No space left on device")
    assert run("sysbench.py", "fileio", "1", "1", "1", cwd=tmp_path, path=full) == {"missing": "its disk is full"}
    broken = _stand(tmp_path, FILES, fails="it broke")
    assert "it broke" in run("sysbench.py", "fileio", "1", "1", "1", cwd=tmp_path, path=broken)["failed"]
    assert (tmp_path / "asked").read_text().splitlines()[-1].endswith("cleanup")

"""Measure one SQLite database, or many small files, as the thesis on INGInious did; print seconds.

    disk.py make,measure,remove sqlite BYTES SEED
    disk.py make,measure,remove files COUNT SEED

It works in the current directory. The actions may be run one at a time. Before a measurement, the pages of the data,
and no others, are dropped from the page cache.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import shutil
import string
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PAGE = 4096  # bytes of a small file, and of a page of the database
DATABASE, FILES, ARCHIVE, COPY = Path("data.db"), Path("files"), Path("files.tar"), Path("copy")
# TPC-C's nine tables: rows per round, text columns, and characters per column.
TABLES = {
    "warehouse": (1, 8, 10),
    "district": (1, 8, 10),
    "customer": (3, 16, 30),
    "history": (3, 3, 12),
    "new_orders": (1, 2, 5),
    "orders": (3, 5, 8),
    "order_line": (30, 6, 12),
    "stock": (10, 12, 24),
    "item": (10, 3, 24),
}
_ROUND = sum(rows * (columns * width + 8) for rows, columns, width in TABLES.values())
_POOL = 1 << 20
_LETTERS = (string.ascii_letters + string.digits).encode()
_ALPHANUMERIC = bytes(_LETTERS[one % len(_LETTERS)] for one in range(256))
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
Found = dict[str, object]


class Missing(Exception):
    """It cannot be measured here. what: the requirement; adds: the command that installs it, or ""."""

    def __init__(self, what: str, adds: str = "") -> None:
        super().__init__(what)
        self.what, self.adds = what, adds


def text(chooser: random.Random, length: int) -> bytes:
    """Random letters and digits as bytes."""
    return chooser.randbytes(length).translate(_ALPHANUMERIC)


# --- a database -------------------------------------------------------------------------------------------------------


@contextmanager
def database() -> Iterator[Any]:
    """A connection without implicit transactions. Errors are raised as OSError, a missing SQLite as Missing."""
    try:
        import sqlite3
    except ImportError as error:
        raise Missing("this Python has no SQLite", "apt-get install python3") from error
    try:
        connection = sqlite3.connect(DATABASE, isolation_level=None)
        try:
            yield connection
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise OSError(errno.ENOSPC if "disk is full" in str(error) else errno.EIO, str(error)) from error


def make_database(size: int, seed: int) -> None:
    """Add rounds of rows until the database has `size` bytes, or more if a page of each table needs more."""
    chooser = random.Random(seed)
    pool = text(chooser, _POOL).decode()

    def row(number: int, columns: int, width: int) -> list[object]:
        starts = (chooser.randrange(_POOL - width) for _ in range(columns))
        return [number, *(pool[start : start + width] for start in starts)]

    with database() as connection:
        for pragma in (f"page_size = {PAGE}", "journal_mode = OFF", "synchronous = OFF"):
            connection.execute(f"PRAGMA {pragma}")
        for name, (_, columns, _width) in TABLES.items():
            names = ", ".join(f"c{one} TEXT" for one in range(columns))
            connection.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, {names})")
        counts = dict.fromkeys(TABLES, 0)
        connection.execute("BEGIN")
        while (left := size - connection.execute("PRAGMA page_count").fetchone()[0] * PAGE) > 0:
            rounds = max(1, left // _ROUND // 2)
            for name, (rows, columns, width) in TABLES.items():
                first, count = counts[name], rounds * rows
                marks = ", ".join("?" * (columns + 1))
                made = (row(number, columns, width) for number in range(first, first + count))
                connection.executemany(f"INSERT INTO {name} VALUES ({marks})", made)
                counts[name] += count
        connection.execute("COMMIT")


def read_database() -> None:
    """Read all rows of every table, convert them to text and discard it."""
    with database() as connection, Path(os.devnull).open("w") as nowhere:
        for name in TABLES:
            for row in connection.execute(f"SELECT * FROM {name}"):
                nowhere.write("|".join(map(str, row)) + "\n")


def write_database() -> None:
    """Copy every table, each in its own transaction, with SQLite's default durability."""
    with database() as connection:
        for name in TABLES:
            connection.execute(f"CREATE TABLE {name}_copy AS SELECT * FROM {name}")


# --- many files -------------------------------------------------------------------------------------------------------


def make_files(count: int, seed: int) -> None:
    """Create `count` files of one page, and an archive of them."""
    chooser = random.Random(seed)
    FILES.mkdir()
    for number in range(count):
        (FILES / f"{number:06}").write_bytes(text(chooser, PAGE))
    tar("-cf", str(ARCHIVE), str(FILES))


def read_files() -> None:
    """Read all files, one after the other, in the order of the directory."""
    with os.scandir(FILES) as found:
        for one in found:
            with open(one.path, "rb") as file:  # noqa: PTH123  # a Path for each would be measured, too
                file.read()


def write_files() -> None:
    """Unpack the archive into a new directory."""
    COPY.mkdir()
    tar("-xf", str(ARCHIVE), "-C", str(COPY))


def tar(*words: str) -> None:
    """Run tar. Raises Missing without the program, OSError if it fails."""
    program = shutil.which("tar")
    if program is None:
        raise Missing("there is no tar", "apt-get install tar")
    done = subprocess.run([program, *words], capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        full = any(os.strerror(one) in line for one in _NO_ROOM for line in said)
        raise OSError(errno.ENOSPC if full else errno.EIO, said[0] if said else "tar failed")


# --- both -------------------------------------------------------------------------------------------------------------


def evict(paths: Iterator[Path]) -> None:
    """Drop the files' pages from the page cache, except those that are not on the disk yet."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def settle() -> None:
    """Wait until all data written to this file system is on its disk."""
    descriptor = os.open(".", os.O_RDONLY)
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if library.syncfs(descriptor):
            raise OSError(ctypes.get_errno(), "syncfs")
    finally:
        os.close(descriptor)


def seconds(work: Callable[[], None]) -> float:
    """The duration of `work` in seconds."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def make(what: str, size: int, seed: int) -> Found:
    """Create the data and wait until it is on the disk. size: bytes of the database, or number of files."""
    if what == "sqlite":
        make_database(size, seed)
    else:
        make_files(size, seed)
    settle()
    return {}


def measure(what: str, _size: int, _seed: int) -> Found:
    """read, write: seconds. sync: further seconds until the written data is on the disk. bytes: of the database."""
    if what == "sqlite":
        with database() as connection:
            found: Found = {"version": connection.execute("SELECT sqlite_version()").fetchone()[0]}
        found["bytes"] = DATABASE.stat().st_size
        sources, read, write = [DATABASE], read_database, write_database
    else:
        found, read, write = {}, read_files, write_files
        sources = [ARCHIVE, *FILES.iterdir()]
    evict(iter(sources))
    found["read"] = seconds(read)
    evict(iter(sources))
    found["write"] = seconds(write)
    found["sync"] = seconds(settle)
    return found


def remove(_what: str, _size: int, _seed: int) -> Found:
    """Remove all data of earlier actions."""
    for path in (FILES, COPY):
        shutil.rmtree(path, ignore_errors=True)
    for path in (DATABASE, ARCHIVE, Path(f"{DATABASE}-journal")):
        path.unlink(missing_ok=True)
    return {}


def run(actions: str, what: str, size: int, seed: int) -> Found:
    """Run the actions, separated by commas; the results, or `missing` or `failed`."""
    known = {"make": make, "measure": measure, "remove": remove}
    found: Found = {}
    try:
        for action in actions.split(","):
            found.update(known[action](what, size, seed))
    except Missing as missing:
        return {"missing": missing.what, "adds": missing.adds}
    except OSError as error:
        return {"missing": "its disk is full"} if error.errno in _NO_ROOM else {"failed": str(error)}
    finally:
        if "remove" in actions:
            remove(what, size, seed)
    return found


if __name__ == "__main__":
    _actions, _what, _size, _seed = sys.argv[1:]
    sys.stdout.write(json.dumps(run(_actions, _what, int(_size), int(_seed))) + "\n")

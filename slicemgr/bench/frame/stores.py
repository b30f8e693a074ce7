"""The stores for YCSB's workloads (`loads.ycsb`): a program of this machine, sent to a sliver and started there.

A store listens on a UNIX socket, keeps nothing beyond its end, and runs without privileges. The image needs python3,
and setpriv and setsid of util-linux.

What records take was measured in a container with 50 000 and 200 000 records (Redis 7.0.15, memcached 1.6.18,
FerretDB 1.18.0, on amd64). For the first two it is resident memory of the process; of FerretDB it is the size of its
database, which the page cache holds.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slicemgr.bench.frame import sent_program
from slicemgr.bench.frame.sent_program import SentProgram
from slicemgr.errors import Code, Refused
from slicemgr.loads import ycsb

RECORD = 1000  # bytes of a record, as in YCSB: 10 fields of 100 bytes
_NOBODY = 65534  # the user without privileges
_MIB = 1 << 20
_WITHOUT_SCANS = tuple(one for one in ycsb.WORKLOADS if ycsb.WORKLOADS[one].first != "scan")
_ROOM = 5 / 4  # of what the records take: the limit of a store, so that inserts and fragmentation fit, too


@dataclass(frozen=True, slots=True)
class Store:
    """name: in `loads.ycsb`. program: its name in the sliver. files: its names on this machine, the first one first.

    options: of the program, for the folder and for the most bytes of memory. remedy: the hint if it is missing here.
    base: bytes of memory without a record, measured. each: bytes of memory for each record of `RECORD` bytes, measured.
    """

    name: str
    program: str
    files: tuple[str, ...]
    options: Callable[[str, int], list[str]]
    remedy: str
    base: int
    each: int
    workloads: tuple[str, ...] = tuple(ycsb.WORKLOADS)

    def sent(self) -> SentProgram:
        """The program for slivers. Raises Refused if it is not installed here."""
        for file in self.files:
            path = shutil.which(file)
            if path is not None and file == self.program and _is_static(Path(path)):
                return sent_program.static(Path(path))
            if (linked := sent_program.find(self.program, file)) is not None:
                return linked
        raise Refused(Code.UNAVAILABLE, f"{self.program} is not installed on this machine", hint=self.remedy)

    def records_for(self, memory: int) -> int:
        """How many records fill so many bytes of memory, at least 1."""
        return max(1, (memory - self.base) // self.each)

    def address(self, folder: str) -> str:
        """The argument ADDRESS of `loads.ycsb`."""
        return _socket(folder)

    def start(self, programs: str, folder: str, memory: int, *, drop: bool = True) -> str:
        """The shell command that starts the store in the background. It returns before the store answers: `load` waits.

        programs: the folder that has the program. folder: a new folder for its socket, its process ID in `pid`, its
        output in `log` and its files. memory: bytes that its records may fill. drop: whether it gives up
        the privileges of root.
        """
        place = shlex.quote(folder)
        words = shlex.join([f"{programs}/{self.program}", *self.options(folder, int(_ROOM * memory))])
        own = f"chown {_NOBODY}:{_NOBODY} {place} && " if drop else ""
        user = f"setpriv --reuid={_NOBODY} --regid={_NOBODY} --clear-groups " if drop else ""
        begun = f"cd {place} && {{ {user}setsid {words} </dev/null >log 2>&1 & echo $! >pid; }}"
        return f"mkdir -p -m 700 {place} && {own}{begun}"


def _is_static(path: Path) -> bool:
    """Whether a file is a program that names no loader; linkers put its path into the first page."""
    with path.open("rb") as file:
        page = file.read(4096)
    return page.startswith(b"\x7fELF") and b"/ld-" not in page


def _socket(folder: str) -> str:
    return f"{folder}/socket"


def _redis(folder: str, memory: int) -> list[str]:
    stored = ["--save", "", "--appendonly", "no", "--dir", folder]
    return ["--port", "0", "--unixsocket", _socket(folder), "--maxmemory", str(memory), *stored]


def _memcached(folder: str, memory: int) -> list[str]:
    return ["-s", _socket(folder), "-m", str(max(64, memory // _MIB)), "-t", "1", "-U", "0"]


def _ferretdb(folder: str, _memory: int) -> list[str]:
    """Its records are in the page cache, which has no limit of its own."""
    files = ["--handler=sqlite", f"--sqlite-url=file:{folder}/", f"--state-dir={folder}"]
    quiet = ["--telemetry=disable", "--debug-addr=-", "--log-level=error"]
    return [*files, "--listen-addr=", f"--listen-unix={_socket(folder)}", *quiet]


STORES: Mapping[str, Store] = {
    one.name: one
    for one in (
        Store(
            "redis",
            "redis-server",
            ("redis-check-rdb", "redis-server"),  # one file with two names, and redis-tools has the first one only
            _redis,
            "apt install redis-tools",
            base=12 * _MIB,
            each=2030,  # INFO reports 1995: a field of more than 64 bytes makes a record a table, not a list
        ),
        Store(
            "memcached",
            "memcached",
            ("memcached",),
            _memcached,
            "apt install memcached",
            base=5 * _MIB,
            each=1200,  # the slab has chunks of 1184; the rest is the table of keys
            workloads=_WITHOUT_SCANS,
        ),
        Store(
            "document",
            "ferretdb",
            ("ferretdb",),
            _ferretdb,
            "build FerretDB v1.18.0 with CGO_ENABLED=0, and put ferretdb on PATH",  # later ones do not use their index
            base=48 * _MIB,  # of it 5 MiB for the log of changes that SQLite keeps
            each=2090,
            workloads=_WITHOUT_SCANS,  # it reads all records to find those of a range
        ),
    )
}

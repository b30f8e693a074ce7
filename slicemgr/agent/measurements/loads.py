"""Measure on the node itself for `slicectl bench io` and `sysbench`: roots created in three ways, and the node's speed.

No program of an image is executed: a root consists of its files, and the program is slicemgr's own (`slicemgr.loads`).
The node's Python runs it as a user of its own, without capabilities, in a mount namespace that removes its mounts
however it ends. These roots are not those of a container, because the kernel maps no ids on overlayfs.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from slicemgr import loads, names
from slicemgr.config import Config
from slicemgr.drivers import command
from slicemgr.drivers.storage.btrfs import Pool
from slicemgr.errors import Code, Failed, Refused
from slicemgr.human import size
from slicemgr.model import IDS_PER_SLIVER, MIB, Image

SQLITE, FILES = "sqlite", "files"
SNAPSHOT, OVERLAY, COPY = "snapshot", "overlay", "copy"
_WORK_SPACE = names.sliver_id("measured", names.MAX_INDEX)  # fixed: a later measurement removes leftovers
_USER = 64999 * IDS_PER_SLIVER  # outside the range that allocation uses
_RESERVE = 1024 * MIB  # bytes of the pool that must remain free
_OF_FILE = 8192  # bytes of disk for a small file with its part of the archive
_LONGEST = 3600.0  # seconds, at most, of one program
_CLEANED = 60.0
_INTERVAL = 0.05
_LAYERS = "lowerdir=pattern,upperdir=upper,workdir=work"
# $1: the work space. $2: the layers that overlayfs mounts at `root`, or "". $3: the program's directory, mounted at $4.
_STAGE = """set -e
cd -- "$1"
if [ -n "$2" ]; then mount -t overlay overlay -o "nosuid,nodev,$2" root; fi
mount --bind -- "$3" "$4"
cd -- "$4"
shift 4
exec "$@"
"""


class Measurer:
    """Does one measurement at a time. stop: set when the agent is stopping, which ends the program too."""

    def __init__(self, config: Config, pool: Pool, stop: threading.Event) -> None:
        self._pool = pool
        self._mount_point = config.node.run_dir / "measured"  # the mount point of the program's directory
        self._stop = stop
        self._busy = threading.Lock()

    def io(self, images: Sequence[Image], params: Mapping[str, Any]) -> dict[str, object]:
        """Seconds for creating a root with the data, and for reading and writing them. Raises Refused or Failed."""
        image = next((one for one in images if one.sha256 == params["image"]), None)
        base = names.base_dir(self._pool.path, str(params["image"]))
        if image is None or not self._pool.is_subvolume(base):
            raise Refused(Code.NOT_FOUND, "there is no such image with a Linux system", field="image")
        what, amount = str(params["what"]), int(params["size"])
        self._check_room(3 * amount * (_OF_FILE if what == FILES else 1), image.virtual_size)
        words = (what, str(amount), str(params["seed"]))
        data = f".slicemgr-{secrets.token_hex(8)}"
        with self._work_space() as space:
            pattern = space / "pattern"
            self._pool.snapshot(base, pattern)
            self._directory(pattern / data)
            made = self._run("disk.py", ("make", *words), space, f"pattern/{data}")
            if "missing" in made:
                return made
            self._pool.sync()
            try:
                seconds = self._root(str(params["root"]), space)
            except command.CommandFailed as error:
                if params["root"] != OVERLAY:
                    raise Failed(f"the root cannot be created: {error}") from error
                return {"missing": f"this kernel cannot mount overlayfs on the pool: {error.stderr.strip()}"}
            self._pool.sync()
            layers = _LAYERS if params["root"] == OVERLAY else ""
            found = self._run("disk.py", ("measure", *words), space, f"root/{data}", layers)
        return {**found, "make": seconds} if "missing" not in found else found

    def sysbench(self, params: Mapping[str, Any]) -> dict[str, object]:
        """One test on the node, in a directory of the pool. Raises Refused or Failed."""
        self._check_room(int(params["size"]), 0)
        words = [str(params[name]) for name in ("test", "seconds", "size", "seed")]
        with self._work_space() as space:
            self._directory(space / "files")
            return self._run("sysbench.py", words, space, "files")

    def _check_room(self, data: int, copy: int) -> None:
        free = self._pool.space().free
        if free < data + copy + _RESERVE:
            message = f"the pool has {size(free)} free, and this may take {size(data + copy)}"
            raise Refused(Code.CONFLICT, message, hint=f"{size(_RESERVE)} more must remain free; use a smaller size")

    def is_busy(self) -> bool:
        """Whether a measurement is running."""
        return self._busy.locked()

    @contextmanager
    def _work_space(self) -> Iterator[Path]:
        """A subvolume for all files, which only root can open. Raises Refused while another measurement runs."""
        if not self._busy.acquire(blocking=False):
            hint = "wait until the operation has ended, see `slicectl op list`"
            raise Refused(Code.CONFLICT, "a measurement is running on this node", hint=hint)
        space = names.sliver_dir(self._pool.path, _WORK_SPACE)
        with ExitStack() as undo:
            undo.callback(self._busy.release)
            self._pool.delete_tree(space, None)  # of an agent that was killed
            undo.callback(self._pool.wait_cleaned, _CLEANED)  # the next measurement must not include this cleanup
            undo.callback(self._pool.delete_tree, space, None)
            self._pool.create_subvolume(space)
            space.chmod(0o700)
            yield space

    @staticmethod
    def _directory(path: Path) -> None:
        path.mkdir(mode=0o700)
        os.chown(path, _USER, _USER, follow_symlinks=False)

    def _root(self, kind: str, space: Path) -> float:
        """Create the root; the time in seconds. Raises CommandFailed."""
        begun = time.monotonic()
        match kind:
            case "snapshot":
                self._pool.snapshot(space / "pattern", space / "root")
            case "copy":
                self._pool.create_subvolume(space / "root")
                words = ["cp", "-a", "--reflink=never", "--", f"{space}/pattern/.", f"{space}/root"]
                command.run(words, timeout=_LONGEST)
            case _:
                for name in ("upper", "work", "root"):
                    (space / name).mkdir()
                self._mount_point.mkdir(exist_ok=True)
                command.run(staged(["true"], space, "root", self._mount_point, _LAYERS), timeout=60)
        return time.monotonic() - begun

    def _run(
        self, program: str, words: Collection[str], space: Path, directory: str, layers: str = ""
    ) -> dict[str, object]:
        """The result of a program of `loads`. directory: its working directory, below the work space."""
        self._mount_point.mkdir(exist_ok=True)
        argv = staged(confined(["python3", "-I", "-", *words]), space, directory, self._mount_point, layers)
        file = Path(loads.__file__).with_name(program)
        with file.open("rb") as text, command.converse(argv, timeout=_LONGEST, stdin=text) as talk:
            while not talk.ended:
                if self._stop.wait(_INTERVAL):
                    raise Failed("the agent is stopping", hint="try again when it has restarted")
            return result(_last_line(talk))


def _last_line(talk: command.Conversation) -> str:
    """The last line of output of a program that ended with status 0. Raises Failed."""
    last = ""
    try:
        while True:
            last = talk.line() or last
    except command.CommandFailed as ended:
        if ended.status != 0:
            raise Failed(f"the measuring program failed: {ended}") from ended
    return last


def result(line: str) -> dict[str, object]:
    """The result in a program's line. Raises Failed if it reports an error or is not a result."""
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Failed("the measuring program printed no result")
    if "failed" in found:
        raise Failed(str(found["failed"]))
    return found


def confined(words: Sequence[str], *, locks: bool = False) -> list[str]:
    """The command line that runs a program as a user of its own, and ends it with the agent.

    locks: whether it may keep the kernel from moving its memory to swap.
    """
    user, capabilities = str(_USER), "-all,+ipc_lock" if locks else "-all"
    confine = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--no-new-privs"]
    confine += ["--bounding-set", capabilities, "--inh-caps", capabilities, "--ambient-caps", capabilities]
    return [*confine, "--pdeathsig", "KILL", *words]


def staged(words: Sequence[str], space: Path, directory: str, mount_point: Path, layers: str = "") -> list[str]:
    """The command line that runs a program with `directory`, below `space`, mounted at `mount_point`."""
    unshare = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _STAGE, "sh"]
    return [*unshare, str(space), layers, directory, str(mount_point), *words]

"""The sandbox in which peers run: namespaces of their own on the node, with the same pool.

Docker, LXD and the others bring bridges, firewall rules, daemons, sockets and mounts. All of this is confined to
namespaces for network, mounts and processes. Their first process, the keeper, ends with slicectl; the kernel then ends
every program inside and removes links, rules and mounts. The sandbox has its own empty /run, /dev/shm and /var and a
copy of /etc, so it neither sees nor disturbs a daemon that runs on the node. Files in one directory of the pool and
empty control groups remain, both named by the run's prefix: `remove` deletes them.

One link connects the node and the sandbox, and each side acts as a remote host for the other: clients in the sandbox
reach slices, clients on the node reach peers, both through one link and one address translation.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from slicemgr.bench.frame import cleanup
from slicemgr.drivers import command
from slicemgr.errors import Code, Failed

NODE_SIDE, PEER_SIDE = "198.18.0.1", "198.18.0.2"  # from the range that RFC 2544 reserves for benchmarks
CGROUPS = Path("/sys/fs/cgroup")
PROGRAMS = ("unshare", "nsenter", "setsid", "ip", "tar", "btrfs")
Words = Sequence[str | Path]
_SUBVOLUME = 256  # inode number of the top directory of each subvolume
_TAIL = 500  # characters of a log that an error quotes
_SHORT = 60.0  # timeout of a short program in seconds

# $1: the pool. The pool and the control groups are mounted again over what is hidden. The keeper inherits programs
# whose parents have ended, and ignores SIGCHLD, so that the kernel reaps them. It prints its process ID on the node.
_KEEPER = """
set -eu
read -r pid rest < /proc/self/stat
mount --rbind "$1" /mnt
mount -t tmpfs -o mode=755,nosuid,nodev tmpfs /run
mkdir -m 1777 /run/lock
mkdir /run/cgroup
mount --rbind /sys/fs/cgroup /run/cgroup
mount -t sysfs sysfs /sys
mount --rbind /run/cgroup /sys/fs/cgroup
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /dev/shm
cp -a /etc /run/etc
mount --bind /run/etc /etc
mount -t tmpfs -o mode=755 tmpfs /var
mkdir -p /var/lib /var/log /var/cache
mkdir -m 1777 /var/tmp
ln -s /run /var/run
ln -s /run/lock /var/lock
mkdir -p "$1"
mount --rbind /mnt "$1"
mount -t proc proc /proc
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
echo "$pid"
exec env --ignore-signal=CHLD cat
"""
_UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--propagation", "private", "--kill-child")
_START = 'echo $$ > "$0.pid"; exec "$@" < /dev/null > "$0.log" 2>&1'
_READY = 'until "$@" > /dev/null 2>&1; do [ ! -s "$0.pid" ] || kill -0 "$(cat "$0.pid")" || exit 1; sleep 0.1; done'
_UNLINK = 'ip link delete "$0" 2> /dev/null || true'
_STOP = 'kill -KILL "$1"; while kill -0 "$1"; do sleep 0.005; done 2> /dev/null'


def directory(pool: Path, prefix: str) -> Path:
    """The directory of the files of a run's peers. Raises ValueError if the prefix is not that of a run."""
    if not prefix.startswith(cleanup.COMMON) or not prefix.removeprefix(cleanup.COMMON).strip("-"):
        raise ValueError(f"{prefix!r} is no run's prefix")
    return pool / prefix.rstrip("-")


class Sandbox:
    """A context manager. Raises Failed with the message of the kernel or of a program."""

    def __init__(self, pool: Path, prefix: str, seconds: float) -> None:
        """seconds: the time after which everything that runs in it is killed."""
        self.prefix = prefix
        self.directory = directory(pool, prefix)
        self._pool = pool
        self._seconds = seconds
        self._stack = ExitStack()
        self._keeper = 0
        self._env = {"HOME": f"{self.directory}/home", "TMPDIR": f"{self.directory}/tmp"}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._forget)
            try:
                for one in (self.directory, self.directory / "home", self.directory / "tmp"):
                    one.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                raise Failed(f"cannot make {self.directory}: {error.strerror}") from error
            words = [*_UNSHARE, "sh", "-c", _KEEPER, "bench-peers", str(self._pool)]
            try:
                keeper = stack.enter_context(command.converse(words, timeout=self._seconds))
                self._keeper = int(keeper.line())
            except command.CommandFailed as error:
                raise Failed(f"cannot make namespaces for the peers: {error}") from error
            self._link()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def end(self) -> None:
        """Kill everything that runs in it; may be called from any thread and from a signal handler."""
        if self._keeper:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._keeper, signal.SIGKILL)

    def words(self, argv: Words) -> list[str]:
        """A command that runs in the sandbox."""
        return ["nsenter", "--target", str(self._keeper), "--mount", "--net", "--pid", "--", *map(str, argv)]

    def run(self, argv: Words, seconds: float = _SHORT, input: bytes | None = None) -> bytes:
        """Run a command; its standard output. Raises Failed."""
        try:
            return command.run(self.words(argv), timeout=seconds, input=input, env=self._env)
        except command.CommandFailed as error:
            raise _failed(argv, error) from error

    def start(self, name: str, argv: Words, env: Sequence[str] = ()) -> None:
        """Start a program and do not wait for it: a daemon, a container. env: additional NAME=VALUE."""
        base = str(self.directory / name)
        self.run(["setsid", "--fork", "env", *env, "sh", "-c", _START, base, *argv])

    def ready(self, name: str, argv: Words) -> None:
        """Wait until a command succeeds. Raises Failed if the program that was started by this name ends before."""
        try:
            self.run(["sh", "-c", _READY, self.directory / name, *argv])
        except Failed as error:
            raise Failed(f"{name} does not come up: {self.log(name) or error}") from error

    def stop(self, name: str) -> None:
        """Kill the program that was started by this name, and wait until it has ended."""
        self.run(["sh", "-c", _STOP, "sh", (self.directory / f"{name}.pid").read_text().strip()])
        for end in ("pid", "log"):
            (self.directory / f"{name}.{end}").unlink(missing_ok=True)

    def log(self, name: str) -> str:
        """The last characters of a started program's output; "" if there is none."""
        try:
            return (self.directory / f"{name}.log").read_text(errors="replace")[-_TAIL:].strip()
        except OSError:
            return ""

    def _link(self) -> None:
        """The kernel deletes the link some time after the last process has ended: delete one that is left first."""
        name = self.directory.name
        self._unlink()
        outer = ["ip", "link", "add", name, "type", "veth", "peer", "name", "uplink", "netns", str(self._keeper)]
        for words in (
            outer,
            ["ip", "address", "add", f"{NODE_SIDE}/30", "dev", name],
            ["ip", "link", "set", name, "up"],
        ):
            try:
                command.run(words, timeout=_SHORT)
            except command.CommandFailed as error:
                raise _failed(words, error) from error
        inner = f"address add {PEER_SIDE}/30 dev uplink\nlink set uplink up\nroute add default via {NODE_SIDE}\n"
        self.run(["ip", "-batch", "-"], input=inner.encode())

    def _unlink(self) -> None:
        with contextlib.suppress(command.CommandFailed):
            command.run(["sh", "-c", _UNLINK, self.directory.name], timeout=_SHORT)

    def _forget(self) -> None:
        """Clear the state after the keeper has ended."""
        self._keeper = 0
        self._unlink()


def remove(pool: Path, prefix: str) -> None:
    """Delete the files, subvolumes and empty control groups of a run's peers, if there are any. Raises Failed."""
    path = directory(pool, prefix)
    try:
        if path.is_dir() and not path.is_symlink():
            _delete(path)
    except (OSError, command.CommandFailed) as error:
        raise Failed(f"{path} could not be deleted: {error}", hint="does something still run in it?") from error
    for group in _groups(path.name):
        for each, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                Path(each).rmdir()


def charged(prefix: str) -> int | None:
    """Bytes of memory that the control groups of a run's peers are charged with; None if they have none of their own.

    The working set, kernel memory included: the inactive page cache is not counted.
    """
    name = prefix.rstrip("-")
    unified = (CGROUPS / "cgroup.controllers").exists()
    top, file = (CGROUPS, "memory.current") if unified else (CGROUPS / "memory", "memory.usage_in_bytes")
    found = []
    for group in top.glob(f"*{name}*"):
        with contextlib.suppress(OSError):
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            idle = int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
            found.append(max(0, int((group / file).read_text()) - idle))
    return sum(found) if found else None


def inside(mark: str) -> int:
    """The ID of a process with its own network namespace whose control group path contains `mark`. Raises Failed."""
    own = Path("/proc/self/ns/net").readlink()
    for one in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            named = one.name.isdigit() and mark in (one / "cgroup").read_text().replace("\\x2d", "-")
            if named and (one / "ns" / "net").readlink() != own:
                return int(one.name)
    raise Failed(f"no process of {mark} was found", hint="does slicectl run on the node itself?")


def _delete(tree: Path) -> None:
    """Delete a tree depth first; a subvolume without others is deleted as a whole, because it may have many files."""
    if tree.lstat().st_ino == _SUBVOLUME and _delete_subvolume(tree):
        return
    with os.scandir(tree) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _delete(Path(entry))
            else:
                Path(entry).unlink()
    if tree.lstat().st_ino != _SUBVOLUME or not _delete_subvolume(tree):
        tree.rmdir()


def _delete_subvolume(path: Path) -> bool:
    try:
        command.run(["btrfs", "subvolume", "delete", path], timeout=_SHORT)
    except command.CommandFailed:
        return False
    return True


def _groups(name: str) -> list[Path]:
    return [one for pattern in (f"*{name}*", f"*/*{name}*") for one in CGROUPS.glob(pattern) if one.is_dir()]


def _failed(argv: Words, error: command.CommandFailed) -> Failed:
    said = error.stderr.strip()[-_TAIL:] or "no message"
    status = "ran too long" if error.status is None else f"exit status {error.status}"
    code = Code.TIMEOUT if error.status is None else Code.FAILED
    return Failed(f"{' '.join(map(str, argv[:2]))}: {status}: {said}", code=code)

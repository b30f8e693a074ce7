"""Limit the capture rings of packet sockets, which the kernel charges to no cgroup: per sliver, over all sockets.

A BPF program checks every setsockopt() of slivers. It gets the kernel's copy of the argument, adds the size of the ring
to the sum granted to the sliver's network namespace, and above the limit fails the call with ENOMEM, upon which libpcap
requests a smaller ring. No process needs to run: the program and its maps are pinned in a BPF file system, and the
launcher attaches the program to each sliver's cgroup. The kernel does not run it for 32-bit calls: a seccomp filter
denies rings to those.

The kernel runs no program when a ring is freed. So the agent measures the existing rings (sock_diag) and returns the
rest of the granted sum. While no agent runs, nothing is returned: slivers can then have fewer rings, never more.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slicemgr.drivers import command
from slicemgr.drivers.kernel import bpf
from slicemgr.drivers.kernel.bpf import DW, R0, R1, R2, R3, R4, R6, R7, R8, R9, R10, Program, W
from slicemgr.errors import Failed

SYSTEM_MOUNT = Path("/sys/fs/bpf")  # systemd mounts it
OWN_MOUNT = "bpf"  # in the runtime directory, if the system has none

_PROGRAM, _LIMIT, _GRANTED, _RETURNED = "setsockopt", "limit", "granted", "returned"
_NAMESPACES = 1 << 16
_SOL_PACKET, _RX_RING, _TX_RING = 263, 5, 13
SMALLEST = 64 << 10  # bytes; the least that a ring counts, to cover the kernel's own overhead
_LONGEST = 4096  # bytes of an option's value that a program can access
_ATTEMPTS = 8  # to update an account that other calls change at the same time
_VALUE, _VALUE_END, _LEVEL, _NAME, _LENGTH = 8, 16, 24, 28, 32  # fields of struct bpf_sockopt
_COOKIE, _ZERO = -8, -16  # on the stack: the key of an account, a new account
_NUMBER = struct.Struct("=Q")


@dataclass(frozen=True, slots=True)
class Maps:
    """File descriptors of the maps: the limit, and by namespace cookie the bytes granted and returned."""

    limit: int
    granted: int
    returned: int


def install(run_dir: Path, limit: int) -> Path:
    """Load the program if it is not loaded, and set each sliver's limit in bytes; the program's path for the launcher.

    Raises Failed with the kernel's reason if it does not support the program.
    """
    try:
        directory = _file_system(run_dir) / "slicemgr" / _version()
        directory.parent.mkdir(mode=0o700, exist_ok=True)
        with _locked(run_dir):
            if not (directory / _PROGRAM).exists():
                _load(directory)
            with bpf.Map.pinned(directory / _LIMIT, 4, _NUMBER.size) as limits:
                limits[bytes(4)] = _NUMBER.pack(limit)
    except (OSError, command.CommandFailed) as error:
        reason = error.strerror if isinstance(error, OSError) else error.stderr.strip()
        raise Failed(
            f"capture rings cannot be bounded: {reason}", hint="use Linux 5.18 or newer with CONFIG_CGROUP_BPF"
        ) from error
    return directory / _PROGRAM


def program(run_dir: Path) -> Path | None:
    """The path at which the program is pinned; None if it is not loaded."""
    for mount in (SYSTEM_MOUNT, run_dir / OWN_MOUNT):
        path = mount / "slicemgr" / _version() / _PROGRAM
        with contextlib.suppress(OSError):
            if path.exists():
                return path
    return None


def programs(run_dir: Path) -> list[Path]:
    """The pinned programs: this release's, and those of other releases that slivers may still use."""
    found = program(run_dir)
    return [] if found is None else sorted(found.parent.parent.glob(f"*/{_PROGRAM}"))


def remove(run_dir: Path) -> None:
    """Remove the pinned programs, and the file system that was mounted for them. Raises Failed."""
    own = run_dir / OWN_MOUNT
    try:
        for mount in (SYSTEM_MOUNT, own):
            if (mount / "slicemgr").exists():
                shutil.rmtree(mount / "slicemgr")
        if own.is_mount():
            command.run(["umount", own], timeout=10)
    except OSError as error:
        raise Failed(f"cannot remove the BPF programs: {error}") from error
    except command.CommandFailed as error:
        raise Failed(f"cannot unmount {own}: {error.stderr.strip()}") from error


class Accounts:
    """The bytes granted to and returned by network namespaces, by the kernel's cookie of the namespace.

    Only the program changes the first, and only the agent the second. Raises OSError if the program is not loaded.
    """

    def __init__(self, program: Path) -> None:
        self._granted = bpf.Map.pinned(program.parent / _GRANTED, _NUMBER.size, _NUMBER.size)
        self._returned = bpf.Map.pinned(program.parent / _RETURNED, _NUMBER.size, _NUMBER.size)

    def __enter__(self) -> Accounts:
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._granted, self._returned):
            os.close(one.descriptor)

    def granted(self) -> dict[int, int]:
        """Bytes granted to each namespace since it was created, by cookie."""
        return _numbers(self._granted)

    def returned(self) -> dict[int, int]:
        """Bytes of those that were returned, by cookie."""
        return _numbers(self._returned)

    def give_back(self, cookie: int, returned: int) -> None:
        """Set the total of bytes returned by a namespace."""
        self._returned[_NUMBER.pack(cookie)] = _NUMBER.pack(returned)

    def forget(self, cookie: int) -> None:
        """Remove the account of a namespace that has ended."""
        for one in (self._granted, self._returned):
            with contextlib.suppress(FileNotFoundError):
                del one[_NUMBER.pack(cookie)]


def _numbers(numbers: bpf.Map) -> dict[int, int]:
    found = {}
    for key in numbers:
        with contextlib.suppress(FileNotFoundError):
            found[_NUMBER.unpack(key)[0]] = _NUMBER.unpack(numbers[key])[0]
    return found


@functools.cache
def _version() -> str:
    """A digest of the program: another release loads its own beside the one that running slivers use."""
    return hashlib.sha256(judge(Maps(1, 2, 3)).encode()).hexdigest()[:12]


def _file_system(run_dir: Path) -> Path:
    own = run_dir / OWN_MOUNT
    for path in (SYSTEM_MOUNT, own):
        if path.is_mount():
            return path
    own.mkdir(mode=0o700, exist_ok=True)
    command.run(["mount", "-t", "bpf", "-o", "mode=700", "bpf", own], timeout=10)
    return own


@contextlib.contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    descriptor = os.open(run_dir, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _load(directory: Path) -> None:
    """Load and pin the program and its maps. The program, which the launcher opens, is pinned last."""
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(mode=0o700)
    size, hashed = _NUMBER.size, (bpf.HASH, _NUMBER.size, _NUMBER.size, _NAMESPACES)
    with (
        bpf.Map.create(bpf.ARRAY, 4, size, 1, "ring_limit") as limit,
        bpf.Map.create(*hashed, "ring_granted", bpf.NO_PREALLOCATION) as granted,
        bpf.Map.create(*hashed, "ring_returned", bpf.NO_PREALLOCATION) as returned,
    ):
        code = judge(Maps(limit.descriptor, granted.descriptor, returned.descriptor))
        program = bpf.load(bpf.CGROUP_SOCKOPT, code, "capture_rings", bpf.ATTACH_SETSOCKOPT)
        for one, name in ((limit, _LIMIT), (granted, _GRANTED), (returned, _RETURNED)):
            bpf.pin(one.descriptor, directory / name)
        bpf.pin(program, directory / _PROGRAM)
        os.close(program)


def judge(maps: Maps) -> Program:
    """The program for setsockopt(). It returns 1 to allow the call and 0 to deny it. Pure."""
    code = Program()
    code.move(R6, R1)
    code.load(W, R2, R6, _LEVEL)
    code.jump_if_value(bpf.JNE, R2, _SOL_PACKET, "other")
    code.load(W, R2, R6, _NAME)
    code.jump_if_value(bpf.JEQ, R2, _RX_RING, "ring")
    code.jump_if_value(bpf.JEQ, R2, _TX_RING, "ring")
    code.label("other")  # length 0 makes the kernel use the caller's value, of which the program got a part only
    code.load(W, R2, R6, _LENGTH)
    code.jump_if_value(bpf.JLE, R2, _LONGEST, "allow")
    code.set(R2, 0)  # Linux before 6.4 does not accept a constant there
    code.store(W, R6, R2, _LENGTH)
    code.label("allow")
    code.set(R0, 1)
    code.end()

    code.label("ring")
    code.load(W, R2, R6, _LENGTH)
    code.jump_if_value(bpf.JGT, R2, _LONGEST, "refuse")
    code.load(DW, R2, R6, _VALUE)
    code.load(DW, R3, R6, _VALUE_END)
    code.move(R4, R2)
    code.add_value(R4, 8)
    code.jump_if(bpf.JGT, R4, R3, "refuse")
    code.load(W, R7, R2, 0)  # size of a block in bytes, number of blocks
    code.load(W, R8, R2, 4)
    code.compute(bpf.MUL, R7, R8)
    code.jump_if_value(bpf.JEQ, R7, 0, "allow")  # frees a ring
    code.jump_if_value(bpf.JGT, R7, SMALLEST, "grant")
    code.set(R7, SMALLEST)
    code.label("grant")
    _grant(code, maps)
    code.label("refuse")
    code.set(R1, -errno.ENOMEM)
    code.call(bpf.CALL_SET_RETVAL)
    code.set(R0, 0)
    code.end()
    return code


def _grant(code: Program, maps: Maps) -> None:
    """Add R7 to the bytes granted and jump to "allow"; if that exceeds the limit, continue after this code.

    The sum never includes a denied request, not even temporarily, because the agent may read it at any time.
    """
    code.move(R1, R6)
    code.call(bpf.CALL_NETNS_COOKIE)
    code.store(DW, R10, R0, _COOKIE)
    code.set(R9, 0)
    code.call_map(bpf.CALL_LOOKUP, maps.returned, _COOKIE)
    code.jump_if_value(bpf.JEQ, R0, 0, "nothing returned")
    code.load(DW, R9, R0)
    code.label("nothing returned")
    code.map(R1, maps.limit, value=True)
    code.load(DW, R1, R1)
    code.jump_if(bpf.JGT, R7, R1, "refuse")
    code.compute(bpf.ADD, R9, R1)  # R9 = the largest sum that may be granted
    code.call_map(bpf.CALL_LOOKUP, maps.granted, _COOKIE)
    code.jump_if_value(bpf.JNE, R0, 0, "account")
    code.store_value(DW, R10, 0, _ZERO)
    code.map(R1, maps.granted)
    for register, position in ((R2, _COOKIE), (R3, _ZERO)):
        code.move(register, R10)
        code.add_value(register, position)
    code.set(R4, 1)  # BPF_NOEXIST: another call may have created it
    code.call(bpf.CALL_UPDATE)
    code.call_map(bpf.CALL_LOOKUP, maps.granted, _COOKIE)
    code.jump_if_value(bpf.JEQ, R0, 0, "refuse")
    code.label("account")
    code.move(R8, R0)
    code.load(DW, R0, R8)
    for _ in range(_ATTEMPTS):
        code.move(R2, R0)
        code.move(R3, R0)
        code.compute(bpf.ADD, R3, R7)
        code.jump_if(bpf.JGT, R3, R9, "refuse")
        code.compare_exchange(R8, R3)
        code.jump_if(bpf.JEQ, R0, R2, "allow")

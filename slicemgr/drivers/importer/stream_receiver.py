"""Write the files of a btrfs send stream of version 1 into a directory. A separate program that is never imported.

It is used instead of `btrfs receive`, which needs CAP_SYS_ADMIN where the pool is not the top of its file system, and
with it can set `trusted` attributes and read the metadata of all subvolumes. This program needs the capabilities of
tar. It follows no symbolic link, opens regular files only, and takes no path with `..`.

argv: the directory, which is a new subvolume. Standard input: the stream, of one whole subvolume. The checksums of
commands are not compared: the caller compares the sha256 of the file. Form: linux/fs/btrfs/send.h.
"""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import struct
import sys
from collections.abc import Callable
from typing import BinaryIO

_HEAD = b"btrfs-stream\0" + struct.pack("<I", 1)
_COMMAND = struct.Struct("<IHI")  # length of the fields, number, checksum
_FIELD = struct.Struct("<HH")  # kind, length
_TIME = struct.Struct("<QI")
_LARGEST = 1 << 17  # bytes of a command
_UUID, _SIZE, _MODE, _UID, _GID, _RDEV, _MTIME, _ATIME = 1, 4, 5, 6, 7, 8, 10, 11
_NAME, _VALUE, _PATH, _TO, _LINK, _OFFSET, _DATA = 13, 14, 15, 16, 17, 18, 19
_CLONE_UUID, _CLONE_PATH, _CLONE_OFFSET, _CLONE_LENGTH = 20, 22, 23, 24
_SUBVOLUME, _WRITE, _END = 1, 15, 21
_ATTRIBUTES = (b"user.", b"security.capability", b"system.posix_acl_access", b"system.posix_acl_default")
_CLONE_RANGE = 0x4020940D  # FICLONERANGE of linux/fs.h
_CLONE_ARGUMENT = struct.Struct("=qQQQ")

Fields = dict[int, bytes]


class Wrong(Exception):
    """The stream is not one that is accepted."""


class Receiver:
    def __init__(self, target: str) -> None:
        self._root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        self._uuid: bytes | None = None
        self._written: tuple[bytes, int] | None = None  # the file of the last command, if that wrote
        self._held: list[int] = []  # descriptors of the present command
        self._commands: dict[int, Callable[[Fields], None]] = {
            3: lambda f: self._make(f, stat.S_IFREG),
            4: self._directory,
            5: lambda f: self._make(f, stat.S_IFMT(_number(f, _MODE))),
            6: lambda f: self._make(f, stat.S_IFIFO),
            7: lambda f: self._make(f, stat.S_IFSOCK),
            8: lambda f: os.symlink(f[_LINK], self._at(f[_PATH])),
            9: lambda f: os.rename(self._at(f[_PATH]), self._at(f[_TO])),
            10: lambda f: os.link(self._at(f[_LINK]), self._at(f[_PATH]), follow_symlinks=False),
            11: lambda f: os.unlink(self._at(f[_PATH])),
            12: lambda f: os.rmdir(self._at(f[_PATH])),
            13: self._attribute,
            14: lambda f: os.removexattr(self._at(f[_PATH]), _allowed(f[_NAME]), follow_symlinks=False),
            _WRITE: self._write,
            16: self._clone,
            17: self._truncate,
            18: self._mode,
            19: lambda f: os.chown(self._at(f[_PATH]), _number(f, _UID), _number(f, _GID), follow_symlinks=False),
            20: self._times,
        }

    def receive(self, stream: BinaryIO) -> None:
        if stream.read(len(_HEAD)) != _HEAD:
            raise Wrong("it is not a btrfs send stream of version 1")
        while True:
            number, fields = _next(stream)
            if number == _END:
                break
            if number == _SUBVOLUME:
                if self._uuid is not None:
                    raise Wrong("it has several subvolumes")
                self._uuid = fields[_UUID]
                continue
            perform = self._commands.get(number)
            if perform is None or self._uuid is None:
                raise Wrong(f"command {number} is not accepted")
            if number != _WRITE:
                self._finish()
            try:
                perform(fields)
            finally:
                while self._held:
                    os.close(self._held.pop())
        self._finish()
        if self._uuid is None or stream.read(1):
            raise Wrong("it is not that of one subvolume")

    def _at(self, path: bytes) -> bytes:
        """The path with which a call reaches the entry: its directory was opened without following a link."""
        if not path:
            return b"/proc/self/fd/%d/." % self._root
        *parents, name = path.split(b"/")
        if any(one in (b"", b".", b"..") or b"\0" in one for one in (*parents, name)):
            raise Wrong("a path leads out of it")
        directory = self._root
        for one in parents:
            directory = self._hold(os.open(one, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory))
        return b"/proc/self/fd/%d/%s" % (directory, name)

    def _hold(self, descriptor: int) -> int:
        self._held.append(descriptor)
        return descriptor

    def _file(self, path: bytes) -> int:
        """A descriptor of a regular file, which the caller closes."""
        descriptor = os.open(self._at(path), os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise Wrong("it writes to another file than a regular one")
        return descriptor

    def _finish(self) -> None:
        """Close the file that was written."""
        if self._written is not None:
            os.close(self._written[1])
            self._written = None

    def _make(self, fields: Fields, kind: int) -> None:
        device = _number(fields, _RDEV) if kind in (stat.S_IFCHR, stat.S_IFBLK) else 0
        os.mknod(self._at(fields[_PATH]), kind | 0o600, device)

    def _directory(self, fields: Fields) -> None:
        os.mkdir(self._at(fields[_PATH]), 0o700)

    def _attribute(self, fields: Fields) -> None:
        os.setxattr(self._at(fields[_PATH]), _allowed(fields[_NAME]), fields[_VALUE], follow_symlinks=False)

    def _write(self, fields: Fields) -> None:
        path = fields[_PATH]
        if self._written is None or self._written[0] != path:
            self._finish()
            self._written = (path, self._file(path))
        at, left = _number(fields, _OFFSET), memoryview(fields[_DATA])
        while left:
            done = os.pwrite(self._written[1], left, at)
            left, at = left[done:], at + done

    def _clone(self, fields: Fields) -> None:
        if fields[_CLONE_UUID] != self._uuid:
            raise Wrong("it needs another subvolume")
        source = self._hold(self._file(fields[_CLONE_PATH]))
        target = self._hold(self._file(fields[_PATH]))
        numbers = (_number(fields, one) for one in (_CLONE_OFFSET, _CLONE_LENGTH, _OFFSET))
        fcntl.ioctl(target, _CLONE_RANGE, _CLONE_ARGUMENT.pack(source, *numbers))

    def _truncate(self, fields: Fields) -> None:
        os.ftruncate(self._hold(self._file(fields[_PATH])), _number(fields, _SIZE))

    def _mode(self, fields: Fields) -> None:
        entry = self._hold(os.open(self._at(fields[_PATH]), os.O_PATH | os.O_NOFOLLOW))
        os.chmod(f"/proc/self/fd/{entry}", _number(fields, _MODE) & 0o7777)

    def _times(self, fields: Fields) -> None:
        times = (seconds * 10**9 + rest for seconds, rest in map(_TIME.unpack, (fields[_ATIME], fields[_MTIME])))
        os.utime(self._at(fields[_PATH]), ns=(next(times), next(times)), follow_symlinks=False)


def _next(stream: BinaryIO) -> tuple[int, Fields]:
    head = stream.read(_COMMAND.size)
    if len(head) != _COMMAND.size:
        raise Wrong("it ends early")
    length, number, _ = _COMMAND.unpack(head)
    body = stream.read(length) if length <= _LARGEST else b""
    if len(body) != length:
        raise Wrong("it ends early")
    fields, at = {}, 0
    while at < length:
        kind, size = _FIELD.unpack_from(body, at)
        at += _FIELD.size
        fields[kind] = body[at : at + size]
        at += size
    return number, fields


def _number(fields: Fields, kind: int) -> int:
    return int.from_bytes(fields[kind], "little")


def _allowed(name: bytes) -> bytes:
    if not name.startswith(_ATTRIBUTES):
        raise Wrong("it sets an attribute that no image may have")
    return name


def main() -> int:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # a file over the limit ends the program
    os.umask(0)
    try:
        Receiver(sys.argv[1]).receive(sys.stdin.buffer)
    except (Wrong, KeyError, struct.error) as error:
        sys.stderr.write(f"the stream is refused: {error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"{os.strerror(error.errno or 0)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

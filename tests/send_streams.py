"""Btrfs send streams that no kernel would write, for tests. Form: linux/fs/btrfs/send.h."""

from __future__ import annotations

import struct

SUBVOL, MKFILE, MKDIR, MKNOD, SYMLINK, SET_XATTR, WRITE, TRUNCATE, END = 1, 3, 4, 5, 8, 13, 15, 17, 21
_UUID, _TRANSID, _INO, _SIZE, _MODE, _RDEV = 1, 2, 3, 4, 5, 8
_XATTR_NAME, _XATTR_DATA, _PATH, _LINK, _OFFSET, _DATA = 13, 14, 15, 17, 18, 19
_CASTAGNOLI = 0x82F63B78


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_CASTAGNOLI if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


def _checksum(data: bytes) -> int:
    value = 0
    for byte in data:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 255]
    return value


def command(number: int, *fields: tuple[int, bytes]) -> bytes:
    body = b"".join(struct.pack("<HH", kind, len(data)) + data for kind, data in fields)
    checksum = _checksum(struct.pack("<IHI", len(body), number, 0) + body)
    return struct.pack("<IHI", len(body), number, checksum) + body


def _u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def subvolume(name: str) -> bytes:
    return command(SUBVOL, (_PATH, name.encode()), (_UUID, bytes(range(16))), (_TRANSID, _u64(7)))


def directory(path: str) -> bytes:
    return command(MKDIR, (_PATH, path.encode()), (_INO, _u64(300)))


def file(path: str, content: bytes = b"") -> bytes:
    made = command(MKFILE, (_PATH, path.encode()), (_INO, _u64(301)))
    return made + (write(path, content) if content else b"")


def write(path: str, content: bytes) -> bytes:
    return command(WRITE, (_PATH, path.encode()), (_OFFSET, _u64(0)), (_DATA, content))


def size(path: str, value: int) -> bytes:
    return command(TRUNCATE, (_PATH, path.encode()), (_SIZE, _u64(value)))


def symlink(path: str, target: str) -> bytes:
    return command(SYMLINK, (_PATH, path.encode()), (_INO, _u64(302)), (_LINK, target.encode()))


def device(path: str, mode: int, number: int) -> bytes:
    fields = ((_PATH, path.encode()), (_INO, _u64(303)), (_RDEV, _u64(number)), (_MODE, _u64(mode)))
    return command(MKNOD, *fields)


def attribute(path: str, name: str, value: bytes) -> bytes:
    return command(SET_XATTR, (_PATH, path.encode()), (_XATTR_NAME, name.encode()), (_XATTR_DATA, value))


def stream(*commands: bytes, version: int = 1) -> bytes:
    return b"btrfs-stream\0" + struct.pack("<I", version) + b"".join(commands) + command(END)

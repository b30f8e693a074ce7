"""The bpf(2) system call, and the instructions that slicemgr's own programs consist of.

The programs are short, so neither a compiler nor a library is needed. Numbers are those of linux/bpf.h. Every call
raises OSError. For a program that the kernel's verifier rejects, the error contains the last lines of its log.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator
from pathlib import Path

HASH, ARRAY = 1, 2  # kinds of maps
NO_PREALLOCATION = 1  # a flag of maps
CGROUP_SOCKOPT = 25  # a kind of program
ATTACH_SETSOCKOPT = 22

_NUMBERS = {"x86_64": 321, "aarch64": 280}  # of bpf(2)
_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _MAP_DELETE, _MAP_NEXT = 0, 1, 2, 3, 4
_PROG_LOAD, _OBJ_PIN, _OBJ_GET = 5, 6, 7
_ATTRIBUTES = 160  # bytes of union bpf_attr that are passed; unused ones are zero
_LOG_SIZE = 1 << 16
_NAME = 15  # characters of a name

# Registers: R0 holds the result of a call, R1 to R5 its arguments; calls preserve R6 to R9; R10 is the frame pointer.
R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 = range(11)
W, DW = 0x00, 0x18  # sizes: 32 and 64 bits
JEQ, JGT, JNE, JLE = 0x10, 0x20, 0x50, 0xB0  # conditions, of unsigned numbers
ADD, SUB, MUL = 0x00, 0x10, 0x20
CALL_LOOKUP, CALL_UPDATE, CALL_NETNS_COOKIE, CALL_SET_RETVAL = 1, 2, 122, 187

_libc = ctypes.CDLL(None, use_errno=True)


class Program:
    """Instructions with labels. Each method except `label`, `call_map`, `map` and `encode` appends one instruction."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int, int, int, int]] = []
        self._labels: dict[str, int] = {}
        self._jumps: dict[int, str] = {}

    def label(self, name: str) -> None:
        self._labels[name] = len(self._code)

    def move(self, target: int, source: int) -> None:
        self._add(0xBF, target, source)

    def set(self, target: int, value: int) -> None:
        self._add(0xB7, target, value=value)

    def map(self, target: int, descriptor: int, value: bool = False) -> None:
        """Load the map into `target`, or with `value` the address of the first value of an array."""
        self._add(0x18, target, 2 if value else 1, value=descriptor)
        self._add(0)

    def load(self, size: int, target: int, source: int, offset: int = 0) -> None:
        self._add(0x61 | size, target, source, offset)

    def store(self, size: int, target: int, source: int, offset: int = 0) -> None:
        self._add(0x63 | size, target, source, offset)

    def store_value(self, size: int, target: int, value: int, offset: int = 0) -> None:
        self._add(0x62 | size, target, 0, offset, value)

    def compute(self, operation: int, target: int, source: int) -> None:
        self._add(0x0F | operation, target, source)

    def add_value(self, target: int, value: int) -> None:
        self._add(0x07, target, value=value)

    def compare_exchange(self, target: int, source: int, offset: int = 0) -> None:
        """Store 64 bits if the memory equals R0; R0 gets the previous value."""
        self._add(0xDB, target, source, offset, 0xF1)

    def jump_if(self, condition: int, left: int, right: int, label: str) -> None:
        """Jump if the comparison of two registers holds."""
        self._jumps[len(self._code)] = label
        self._add(0x0D | condition, left, right)

    def jump_if_value(self, condition: int, left: int, value: int, label: str) -> None:
        self._jumps[len(self._code)] = label
        self._add(0x05 | condition, left, value=value)

    def call(self, function: int) -> None:
        self._add(0x85, value=function)

    def call_map(self, function: int, descriptor: int, key: int) -> None:
        """Call a function with a map and the address of a key, which is at offset `key` of the stack."""
        self.map(R1, descriptor)
        self.move(R2, R10)
        self.add_value(R2, key)
        self.call(function)

    def end(self) -> None:
        self._add(0x95)

    def encode(self) -> bytes:
        """The program in the kernel's format."""
        encoded = []
        for index, (code, target, source, offset, value) in enumerate(self._code):
            if index in self._jumps:
                offset = self._labels[self._jumps[index]] - index - 1
            encoded.append(struct.pack("=BBhi", code, source << 4 | target, offset, value))
        return b"".join(encoded)

    def _add(self, code: int, target: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> None:
        self._code.append((code, target, source, offset, value))


class Map:
    """The file descriptor of a map. key, value: sizes in bytes."""

    def __init__(self, descriptor: int, key: int, value: int) -> None:
        self.descriptor = descriptor
        self._key, self._value = key, value

    @classmethod
    def create(cls, kind: int, key: int, value: int, entries: int, name: str, flags: int = 0) -> Map:
        """Create a map of at most `entries` keys. key, value: sizes in bytes. name: 15 characters are kept."""
        attributes = struct.pack("=IIIIIII16s", kind, key, value, entries, flags, 0, 0, name[:_NAME].encode())
        return cls(_call(_MAP_CREATE, attributes), key, value)

    @classmethod
    def pinned(cls, path: Path, key: int, value: int) -> Map:
        """Open a pinned map. key, value: sizes in bytes."""
        return cls(pinned(path), key, value)

    def __enter__(self) -> Map:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def __getitem__(self, key: bytes) -> bytes:
        """The value of a key. Raises FileNotFoundError if there is no such key."""
        value = ctypes.create_string_buffer(self._value)
        self._do(_MAP_LOOKUP, key, value)
        return value.raw

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self._do(_MAP_UPDATE, key, ctypes.create_string_buffer(value, self._value))

    def __delitem__(self, key: bytes) -> None:
        self._do(_MAP_DELETE, key, None)

    def __iter__(self) -> Iterator[bytes]:
        """Every key. If a key is removed during the iteration, the kernel restarts: keys may repeat."""
        key, following = None, ctypes.create_string_buffer(self._key)
        while True:
            try:
                self._do(_MAP_NEXT, key, following)
            except FileNotFoundError:
                return
            yield following.raw
            key = following.raw

    def _do(self, command: int, key: bytes | None, value: ctypes.Array[ctypes.c_char] | None) -> None:
        held = None if key is None else ctypes.create_string_buffer(key, self._key)
        addresses = (0 if one is None else ctypes.addressof(one) for one in (held, value))
        _call(command, struct.pack("=IIQQQ", self.descriptor, 0, *addresses, 0))


def load(kind: int, program: Program, name: str, attach: int) -> int:
    """Load a program of a kind for the attach type `attach`; its file descriptor."""
    code = program.encode()
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    log = ctypes.create_string_buffer(_LOG_SIZE)

    def attributes(level: int) -> bytes:
        where = (level, _LOG_SIZE, ctypes.addressof(log)) if level else (0, 0, 0)
        addresses = (ctypes.addressof(instructions), ctypes.addressof(licence))
        head = (kind, len(code) // 8, *addresses, *where, 0, 0, name[:_NAME].encode())
        return struct.pack("=IIQQIIQII16sII", *head, 0, attach)

    try:
        return _call(_PROG_LOAD, attributes(0))
    except OSError as error:
        try:
            return _call(_PROG_LOAD, attributes(1))
        except OSError:
            reason = log.value.decode(errors="replace").strip().splitlines()[-3:]
            raise OSError(error.errno, "; ".join([os.strerror(error.errno or 0), *reason])) from error


def pin(descriptor: int, path: Path) -> None:
    """Name a map or program in a BPF file system, which keeps it until the name is removed."""
    name = ctypes.create_string_buffer(os.fsencode(path))
    _call(_OBJ_PIN, struct.pack("=QI", ctypes.addressof(name), descriptor))


def pinned(path: Path) -> int:
    """The file descriptor of the map or program with that name."""
    name = ctypes.create_string_buffer(os.fsencode(path))
    return _call(_OBJ_GET, struct.pack("=QI", ctypes.addressof(name), 0))


def _call(command: int, attributes: bytes) -> int:
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"bpf(2) has no known number on {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes, max(_ATTRIBUTES, len(attributes)))
    result = int(_libc.syscall(ctypes.c_long(number), ctypes.c_long(command), buffer, ctypes.c_long(len(buffer))))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result

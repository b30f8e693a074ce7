"""The core workloads of YCSB (Cooper et al., SoCC 2010) against a store; the result is one line of JSON.

    ycsb.py load STORE ADDRESS RECORDS BYTES SEED                    waits until the store answers, and inserts records
    ycsb.py run STORE ADDRESS WORKLOAD RECORDS BYTES SECONDS SEED PAUSE
                                                                     the operations of a workload from a to f

STORE: redis, memcached, or document for a server with MongoDB's protocol. ADDRESS: HOST:PORT, or the path of a UNIX
socket. BYTES: of each record, which has 10 fields. `run` prints the time at which it began, and for each second
operations per second of serving time in `each_second` and `p99`, the microseconds within which 99 % of them ended;
`counts` of each kind of operation, `misses` of records that the store has lost, and `errors` that it returned.
A workload that inserts needs records that were loaded since the last one that did. PAUSE: for how many times as long
as the operations took it pauses, so that the speed depends on memory, and hardly on who else uses the processor; 4 if
it is omitted.

With `ready` before `run`, the program writes the line `"ready"`, begins with the next line that it reads, and writes
the time, then a list of rate and p99 for each second. If the store is gone, its exit status is that of a program which
was killed.

`failed` in the result: the store is gone, is silent, or sends what it should not. A wrong argument is exit status 2.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import math
import random
import socket
import struct
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

FIELDS = 10
THETA = 0.99  # the skew of YCSB's zipfian distribution
LONGEST_SCAN = 100  # records
_PATIENCE = 60.0  # seconds for one operation: without memory it waits for a disk
_LARGEST = 16 << 20  # bytes of the replies to one request
_LINE = 1024  # bytes of a line of a reply
_ELEMENTS = 1000  # of one array of a reply
_DEPTH = 8  # of a document or an array of a reply
_MOST_BYTES = 100_000  # of a record: less than a tenth of what memcached accepts
_TEXT = 1 << 20  # bytes from which records are cut
_LOADED = 100_000  # bytes that are inserted at once
_AT_ONCE = 64  # operations without a pause
_KILLED = 137  # the exit status of a program that the kernel has killed
_LONG = 0.05  # seconds after which a pause begins before all of those
_LONGEST_PAUSE = 0.25  # seconds: so each second is measured, also with slow operations


class Refusal(Exception):
    """The store returned an error. The connection can be used further."""


class Broken(Exception):
    """The store is gone, is silent, or sent what it should not. The connection cannot be used further."""


# --- workloads --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Workload:
    """Two kinds of operations, and the share of the first. latest: new records are the most popular."""

    first: str
    share: float
    second: str
    latest: bool = False


WORKLOADS = {
    "a": Workload("read", 0.50, "update"),
    "b": Workload("read", 0.95, "update"),
    "c": Workload("read", 1.00, "read"),
    "d": Workload("read", 0.95, "insert", latest=True),
    "e": Workload("scan", 0.95, "insert"),
    "f": Workload("read", 0.50, "modify"),
}


@dataclass(frozen=True, slots=True)
class Operation:
    """record: its number. detail: the length of a scan in records; the field that is written."""

    kind: str
    record: int
    detail: int = 0


class Zipfian:
    """Ranks from 0, the most frequent, below `count`, by the closed form of Gray et al. (SIGMOD 1994)."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._zeta = math.fsum(1 / rank**THETA for rank in range(1, count + 1))
        self._second = 1 + 0.5**THETA
        self._power = 1 / (1 - THETA)
        least = 1 - self._second / self._zeta
        self._eta = (1 - (2 / count) ** (1 - THETA)) / least if count > 2 else 1.0

    def rank(self, uniform: float) -> int:
        """uniform: from 0, below 1."""
        scaled = uniform * self._zeta
        if scaled < 1 or self._count == 1:
            return 0
        if scaled < self._second or self._count == 2:
            return 1
        return min(self._count - 1, int(self._count * (self._eta * uniform - self._eta + 1) ** self._power))


def scattering(count: int) -> int:
    """The factor that scatters ranks over all records: rank * factor % count is a permutation."""
    return next(one for one in itertools.count(max(1, int(0.618 * count))) if math.gcd(one, count) == 1)


def operations(name: str, records: int, seed: int) -> Iterator[Operation]:
    """The operations of a workload without end. records: that the store has before."""
    workload, chooser, zipfian = WORKLOADS[name], random.Random(seed), Zipfian(records)
    factor, newest = scattering(records), records - 1
    while True:
        kind = workload.first if chooser.random() < workload.share else workload.second
        rank = zipfian.rank(chooser.random())
        if kind == "insert":
            newest += 1
            yield Operation(kind, newest)
            continue
        record = newest - rank if workload.latest else rank * factor % records
        match kind:
            case "scan":
                yield Operation(kind, record, chooser.randint(1, LONGEST_SCAN))
            case "read":
                yield Operation(kind, record)
            case _:
                yield Operation(kind, record, chooser.randrange(FIELDS))


def key(record: int) -> bytes:
    """Its order has nothing to do with that of the numbers, and no two records have the same."""
    return b"user%020d" % (record * 0x9E3779B97F4A7C15 % (1 << 64))


class Contents:
    """Records of printable bytes, cut from a text that hardly compresses."""

    def __init__(self, size: int, seed: int) -> None:
        self._chooser, self._size = random.Random(seed), size // FIELDS * FIELDS
        self._text = base64.b64encode(self._chooser.randbytes(_TEXT // 4 * 3))

    def record(self) -> bytes:
        at = int(self._chooser.random() * (_TEXT - self._size))
        return self._text[at : at + self._size]


# --- connections ------------------------------------------------------------------------------------------------------


class Connection:
    """Requests and their replies over TCP or a UNIX socket. All raise Broken; see `_PATIENCE`, `_LARGEST`, `_LINE`."""

    def __init__(self, address: str, patience: float = _PATIENCE) -> None:
        self._patience = patience
        self._buffer, self._at = b"", 0
        self._end, self._room = 0.0, 0
        try:
            if address.startswith("/"):
                self._socket = socket.socket(socket.AF_UNIX)
                self._socket.settimeout(patience)
                self._socket.connect(address)
            else:
                host, _, port = address.rpartition(":")
                self._socket = socket.create_connection((host, int(port)), patience)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            self.close()
            raise Broken(f"no connection to {address}: {error}") from error

    def close(self) -> None:
        if hasattr(self, "_socket"):
            self._socket.close()

    def send(self, request: bytes) -> None:
        """The replies to the request before must have been read."""
        if self._at < len(self._buffer):
            raise Broken("the store sent more than a reply")
        self._end, self._room = time.monotonic() + self._patience, _LARGEST
        try:
            self._socket.settimeout(self._patience)
            self._socket.sendall(request)
        except OSError as error:
            raise self._lost(error) from error

    def line(self) -> bytes:
        """The next line without its end."""
        while (end := self._buffer.find(b"\r\n", self._at)) < 0 and len(self._buffer) - self._at <= _LINE:
            self._receive()
        if not 0 <= end - self._at <= _LINE:
            raise Broken("the store sent a line that is too long")
        line, self._at = self._buffer[self._at : end], end + 2
        return line

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if count > _LARGEST:
            raise Broken(f"the store announced {count} bytes, more than {_LARGEST}")
        while len(self._buffer) - self._at < count:
            self._receive()
        self._at += count
        return self._buffer[self._at - count : self._at]

    def block(self, count: int) -> bytes:
        """The next `count` bytes, which the end of a line follows."""
        content = self.take(count + 2)
        if not content.endswith(b"\r\n"):
            raise Broken("the store sent a value of another length")
        return content[:-2]

    def _receive(self) -> None:
        try:
            self._socket.settimeout(max(1e-3, self._end - time.monotonic()))
            data = self._socket.recv(1 << 16)
        except OSError as error:
            raise self._lost(error) from error
        self._room -= len(data)
        if not data:
            raise Broken("the store closed the connection")
        if self._room < 0:
            raise Broken(f"the store sent more than {_LARGEST} bytes")
        if time.monotonic() > self._end:  # though a byte arrives now and then
            raise self._lost(TimeoutError())
        self._buffer, self._at = self._buffer[self._at :] + data, 0

    def _lost(self, error: OSError) -> Broken:
        if isinstance(error, TimeoutError):
            return Broken(f"the store did not answer within {self._patience:g} s")
        return Broken(f"the connection to the store is lost: {error}")


def number(digits: bytes) -> int:
    """A decimal number of a reply, not below 0. Raises Broken."""
    if not digits.isdigit() or len(digits) > 19:
        raise Broken(f"the store sent {digits[:20]!r} instead of a number")
    return int(digits)


class Store(Protocol):
    """read, update and scan return whether the store has the record. All raise Refusal or Broken."""

    def __init__(self, connection: Connection) -> None: ...

    def ping(self) -> None: ...

    def insert(self, records: Sequence[tuple[bytes, bytes]]) -> None: ...

    def read(self, name: bytes) -> bool: ...

    def update(self, name: bytes, field: int, record: bytes) -> bool:
        """Write the field of `record`; a store without fields writes all of it."""
        ...

    def scan(self, name: bytes, count: int) -> bool:
        """Read up to `count` records in the order of their keys, from this one."""
        ...


def fields(record: bytes) -> list[bytes]:
    size = len(record) // FIELDS
    return [record[at : at + size] for at in range(0, size * FIELDS, size)]


# --- Redis ------------------------------------------------------------------------------------------------------------

_NAMES = [b"field%d" % one for one in range(FIELDS)]
_INDEX = b"_indices"


class Redis:
    """A record is a hash. A sorted set of all keys is the index for scans."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def ping(self) -> None:
        if self._replies([b"PING"]) != [b"PONG"]:
            raise Broken("the store is not Redis")

    def insert(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        commands = []
        for name, record in records:
            pairs = zip(_NAMES, fields(record), strict=True)
            commands += [[b"HSET", name, *itertools.chain.from_iterable(pairs)], [b"ZADD", _INDEX, b"0", name]]
        self._numbers(*commands)

    def read(self, name: bytes) -> bool:
        return self._has_fields(self._replies([b"HGETALL", name])[0])

    def update(self, name: bytes, field: int, record: bytes) -> bool:
        return self._numbers([b"HSET", name, _NAMES[field], fields(record)[field]]) == [0]  # 1: a new field

    def scan(self, name: bytes, count: int) -> bool:
        (names,) = self._replies([b"ZRANGEBYLEX", _INDEX, b"[" + name, b"+", b"LIMIT", b"0", b"%d" % count])
        if not isinstance(names, list) or len(names) > count or not all(isinstance(one, bytes) for one in names):
            raise Broken("Redis sent no list of keys")
        found = [self._has_fields(reply) for reply in self._replies(*([b"HGETALL", one] for one in names))]
        return bool(found) and all(found)

    def _has_fields(self, reply: object) -> bool:
        if not isinstance(reply, list) or len(reply) not in (0, 2 * FIELDS):
            raise Broken("Redis sent no record")
        return bool(reply)

    def _numbers(self, *commands: Sequence[bytes]) -> list[object]:
        replies = self._replies(*commands)
        if not all(isinstance(one, int) for one in replies):
            raise Broken("Redis sent no number")
        return replies

    def _replies(self, *commands: Sequence[bytes]) -> list[object]:
        parts = []
        for words in commands:
            parts.append(b"*%d\r\n" % len(words))
            parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
        self._connection.send(b"".join(parts))
        replies = [self._reply() for _ in commands]
        for one in replies:
            if isinstance(one, Refusal):
                raise one
        return replies

    def _reply(self, depth: int = 0) -> object:
        line = self._connection.line()
        kind, rest = line[:1], line[1:]
        match kind:
            case b"$":
                return None if rest == b"-1" else self._connection.block(number(rest))
            case b":":
                return -number(rest[1:]) if rest.startswith(b"-") else number(rest)
            case b"+":
                return rest
            case b"-":
                return Refusal(printable(rest))
            case b"*" if number(rest) <= _ELEMENTS and depth < _DEPTH:
                return [self._reply(depth + 1) for _ in range(int(rest))]
        raise Broken(f"Redis sent {line[:20]!r}")


# --- memcached --------------------------------------------------------------------------------------------------------


class Memcached:
    """A record is a value without fields, so an update writes all of it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def ping(self) -> None:
        self._connection.send(b"version\r\n")
        if not self._line().startswith(b"VERSION "):
            raise Broken("the store is not memcached")

    def insert(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        self._connection.send(b"".join(self._written(b"set", *one) for one in records))
        refused = None
        for _ in records:
            try:
                self._stored()
            except Refusal as error:
                refused = error
        if refused is not None:
            raise refused

    def read(self, name: bytes) -> bool:
        self._connection.send(b"get %b\r\n" % name)
        line = self._line()
        if line == b"END":
            return False
        words = line.split(b" ")
        if len(words) != 4 or words[:2] != [b"VALUE", name]:
            raise Broken(f"memcached sent {line[:20]!r}")
        self._connection.block(number(words[3]))
        if self._line() != b"END":
            raise Broken("memcached sent more than a record")
        return True

    def update(self, name: bytes, field: int, record: bytes) -> bool:
        self._connection.send(self._written(b"replace", name, record))
        return self._stored()

    def scan(self, name: bytes, count: int) -> bool:
        raise Broken("memcached has no scans")

    def _written(self, verb: bytes, name: bytes, record: bytes) -> bytes:
        return b"%b %b 0 0 %d\r\n%b\r\n" % (verb, name, len(record), record)

    def _stored(self) -> bool:
        line = self._line()
        if line not in (b"STORED", b"NOT_STORED"):
            raise Broken(f"memcached sent {line[:20]!r}")
        return line == b"STORED"

    def _line(self) -> bytes:
        line = self._connection.line()
        if line.startswith(b"SERVER_ERROR"):
            raise Refusal(printable(line))
        return line


# --- documents --------------------------------------------------------------------------------------------------------

_MESSAGE = 2013  # the operation code of OP_MSG
_HEAD = struct.Struct("<iiiiI")  # length, number of the request, of the one that is answered, operation code, flags
_SCALARS = {0x01: struct.Struct("<d"), 0x09: struct.Struct("<q"), 0x10: struct.Struct("<i"), 0x12: struct.Struct("<q")}
_INT32 = struct.Struct("<i")


def to_bson(document: dict[str, Any]) -> bytes:
    """Raises ValueError for what BSON cannot have, TypeError for what is not needed here."""
    content = b"".join(_element(name, value) for name, value in document.items())
    return _INT32.pack(len(content) + 5) + content + b"\0"


def _element(name: str, value: object) -> bytes:
    if "\0" in name:
        raise ValueError("a name with a zero byte")
    match value:
        case None:
            kind, content = 0x0A, b""
        case bool():
            kind, content = 0x08, bytes([value])
        case int() if -(1 << 31) <= value < 1 << 31:
            kind, content = 0x10, _INT32.pack(value)
        case int() if -(1 << 63) <= value < 1 << 63:
            kind, content = 0x12, struct.pack("<q", value)
        case int():
            raise ValueError("an integer of more than 64 bits")
        case float():
            kind, content = 0x01, struct.pack("<d", value)
        case str():
            text = value.encode()
            kind, content = 0x02, _INT32.pack(len(text) + 1) + text + b"\0"
        case bytes():
            kind, content = 0x05, _INT32.pack(len(value)) + b"\0" + value
        case dict():
            kind, content = 0x03, to_bson(value)
        case list():
            kind, content = 0x04, to_bson({str(at): one for at, one in enumerate(value)})
        case _:
            raise TypeError(f"{type(value).__name__} is not encoded")
    return bytes([kind]) + name.encode() + b"\0" + content


def from_bson(data: bytes) -> dict[str, Any]:
    """Raises Broken."""
    reader = _Reader(data)
    try:
        found = reader.document(0)
    except (struct.error, UnicodeDecodeError) as error:
        raise Broken(f"the store sent a document that is not BSON: {error}") from error
    if reader.at != len(data):
        raise Broken("the store sent more than a document")
    return found


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def document(self, depth: int) -> dict[str, Any]:
        begin = self.at
        length = self._int32()
        if depth > _DEPTH or length < 5 or begin + length > len(self._data):
            raise Broken("the store sent a document of a wrong length or depth")
        found = {}
        while kind := self._take(1)[0]:
            end = self._data.find(b"\0", self.at)
            if end < 0:
                raise Broken("the store sent a name without an end")
            name = self._take(end - self.at + 1)[:-1].decode()
            found[name] = self._value(kind, depth)
        if self.at != begin + length:
            raise Broken("the store sent a document of another length")
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if form := _SCALARS.get(kind):
            return form.unpack(self._take(form.size))[0]
        match kind:
            case 0x02:
                text = self._take(self._int32())
                if not text.endswith(b"\0"):
                    raise Broken("the store sent a string without an end")
                return text[:-1].decode()
            case 0x03:
                return self.document(depth + 1)
            case 0x04:
                return list(self.document(depth + 1).values())
            case 0x05:
                return self._take(self._int32() + 1)[1:]
            case 0x07:  # the number of an object
                return self._take(12)
            case 0x08:
                return self._take(1) != b"\0"
            case 0x0A:
                return None
            case 0x11:  # a time of replication
                return self._take(8)
        raise Broken(f"the store sent a value of the type {kind:#x}")

    def _int32(self) -> int:
        return int(_INT32.unpack(self._take(4))[0])

    def _take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self._data):
            raise Broken("the store sent a document that is cut off")
        self.at += count
        return self._data[self.at - count : self.at]


class Document:
    """A record is a document with its key as `_id`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._asked = 0

    def ping(self) -> None:
        self._ask({"ping": 1})

    def insert(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        documents = [{"_id": name.decode(), **self._named(record)} for name, record in records]
        if self._ask({"insert": "usertable", "ordered": True, "documents": documents}).get("n") != len(records):
            raise Refusal("not all documents were inserted")

    def read(self, name: bytes) -> bool:
        return bool(self._find({"filter": {"_id": name.decode()}, "limit": 1}, 1))

    def update(self, name: bytes, field: int, record: bytes) -> bool:
        change = {f"field{field}": fields(record)[field].decode()}
        updates = [{"q": {"_id": name.decode()}, "u": {"$set": change}}]
        return bool(self._ask({"update": "usertable", "updates": updates}).get("n") == 1)

    def scan(self, name: bytes, count: int) -> bool:
        more = {"filter": {"_id": {"$gte": name.decode()}}, "sort": {"_id": 1}, "limit": count, "batchSize": count}
        return bool(self._find(more, count))

    def _named(self, record: bytes) -> dict[str, str]:
        return {f"field{at}": one.decode() for at, one in enumerate(fields(record))}

    def _find(self, how: dict[str, Any], most: int) -> list[object]:
        cursor = self._ask({"find": "usertable", **how, "singleBatch": True}).get("cursor")
        batch = cursor.get("firstBatch") if isinstance(cursor, dict) else None
        if not isinstance(batch, list) or len(batch) > most:
            raise Broken("the store sent no documents")
        if not all(isinstance(one, dict) and len(one) == FIELDS + 1 for one in batch):
            raise Broken("the store sent another document")
        return batch

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        self._asked += 1
        body = b"\0" + to_bson({**command, "$db": "ycsb"})
        self._connection.send(_HEAD.pack(_HEAD.size + len(body), self._asked, 0, _MESSAGE, 0) + body)
        length, _, answered, code, flags = _HEAD.unpack(self._connection.take(_HEAD.size))
        if (answered, code, flags) != (self._asked, _MESSAGE, 0) or length <= _HEAD.size:
            raise Broken("the store sent no reply of MongoDB's protocol")
        content = self._connection.take(length - _HEAD.size)
        if content[0]:
            raise Broken("the store sent a reply of several parts")
        found = from_bson(content[1:])
        if found.get("ok") != 1 or found.get("writeErrors"):
            raise Refusal(printable(str(found.get("errmsg") or found.get("writeErrors") or "no reason").encode()))
        return found


# --- commands ---------------------------------------------------------------------------------------------------------

STORES: dict[str, type[Store]] = {"redis": Redis, "memcached": Memcached, "document": Document}


def printable(text: bytes) -> str:
    return "".join(one if one.isprintable() else "?" for one in text[:200].decode(errors="replace"))


class Seconds:
    """What was served in each second."""

    def __init__(self, seconds: int) -> None:
        self._served = [0] * seconds
        self._serving = [0.0] * seconds
        self._took = [array("d") for _ in range(seconds)]
        self._last, self._known = (0.0, 0.0), 0

    def add(self, begin: float, end: float, count: int) -> None:
        """begin, end: seconds since the start. It takes time of each second between them, and counts in the last."""
        for second in range(int(begin), min(int(end) + 1, len(self._served))):
            self._serving[second] += min(end, second + 1) - max(begin, second)
            self._took[second].append(end - begin)
        if end < len(self._served):
            self._served[int(end)] += count

    def until(self, now: float) -> Iterator[tuple[float, float]]:
        """Operations per second of serving time, and p99 in microseconds, of each second that has ended since the last
        call. A second without any is as the one before. now: seconds since the start.
        """
        for second in range(self._known, min(int(now), len(self._served))):
            took = self._took[second]
            if self._serving[second] > 0:
                most = sorted(took)[len(took) * 99 // 100] * 1e6
                self._last = round(self._served[second] / self._serving[second], 1), round(most, 1)
            self._known = second + 1
            yield self._last


def load(store: Store, records: int, size: int, seed: int) -> dict[str, object]:
    contents, at_once = Contents(size, seed), max(1, min(_ELEMENTS, _LOADED // size))
    for first in range(0, records, at_once):
        numbers = range(first, min(records, first + at_once))
        store.insert([(key(one), contents.record()) for one in numbers])
    return {"loaded": records}


def perform(store: Store, operation: Operation, record: bytes) -> bool:
    """Whether the store has the record. Raises Refusal, Broken."""
    name = key(operation.record)
    match operation.kind:
        case "read":
            return store.read(name)
        case "update":
            return store.update(name, operation.detail, record)
        case "insert":
            store.insert([(name, record)])
            return True
        case "scan":
            return store.scan(name, operation.detail)
        case _:
            return store.read(name) and store.update(name, operation.detail, record)


@dataclass(frozen=True)
class Run:
    """The arguments of `run`. size: bytes of a record."""

    workload: str
    records: int
    size: int
    seconds: int
    seed: int
    pause: float = 4


def rates(store: Store, how: Run, totals: Counter[str]) -> Iterator[tuple[float, float]]:
    """Operations per second of serving time, and p99 in microseconds, of each second when it has ended.

    totals: gets the number of operations by kind, of `misses` and of `errors`. Raises Broken.
    """
    contents, clock = Contents(how.size, how.seed), time.perf_counter
    stream, served = operations(how.workload, how.records, how.seed), Seconds(how.seconds)
    begun = clock()
    while clock() - begun < how.seconds:
        busy = 0.0
        for operation in itertools.islice(stream, _AT_ONCE):
            record, done = contents.record(), 1
            before = clock()
            try:
                found = perform(store, operation, record)
            except Refusal:
                found, done = True, 0
            after = clock()
            served.add(before - begun, after - begun, done)
            totals.update({operation.kind: done, "misses": not found, "errors": not done})
            busy += after - before
            if busy > _LONG:
                break
        time.sleep(min(how.pause * busy, _LONGEST_PAUSE))
        yield from served.until(clock() - begun)
    yield from served.until(how.seconds)


def run(store: Store, how: Run) -> dict[str, object]:
    at, totals = time.time(), Counter[str]()
    each_second, p99 = zip(*rates(store, how, totals), strict=True)
    misses, errors = totals.pop("misses", 0), totals.pop("errors", 0)
    counts = {kind: count for kind, count in totals.items() if count}
    return {"at": at, "each_second": each_second, "p99": p99, "counts": counts, "misses": misses, "errors": errors}


def converse(store: Store, how: Run) -> None:
    """As `run`, line by line."""

    def say(found: object) -> None:
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()

    say("ready")
    sys.stdin.readline()
    say({"at": time.time()})
    for one in rates(store, how, Counter()):
        say(one)


@contextlib.contextmanager
def connected(kind: str, address: str, wait: float = 0.0) -> Iterator[Store]:
    """wait: seconds within which the store must answer; 0: it must answer at once. Raises Broken."""
    end = time.monotonic() + wait
    while True:
        try:
            connection = Connection(address)
            try:
                store = STORES[kind](connection)
                store.ping()
            except (Broken, Refusal):
                connection.close()
                raise
        except (Broken, Refusal) as error:
            if time.monotonic() > end:
                raise Broken(str(error)) from error
            time.sleep(0.1)
        else:
            break
    try:
        yield store
    finally:
        connection.close()


def main(words: Sequence[str]) -> dict[str, object] | None:
    """The result; None if it was written line by line. Raises ValueError for wrong arguments."""
    waits, how = words[:1] == ["ready"], None
    match words[waits:]:
        case ["load", kind, address, *rest] if len(rest) == 3 and not waits:
            records, size, seed = map(int, rest)
            seconds = 1
        case ["run", kind, address, workload, *rest] if len(rest) in (4, 5):
            records, size, seconds, seed = map(int, rest[:4])
            if workload not in WORKLOADS:
                raise ValueError(f"there is no workload {workload!r}: one of {', '.join(WORKLOADS)}")
            how = Run(workload, records, size, seconds, seed, *map(float, rest[4:]))
        case _:
            raise ValueError("load STORE ADDRESS RECORDS BYTES SEED, or run … WORKLOAD RECORDS BYTES SECONDS SEED")
    if kind not in STORES:
        raise ValueError(f"there is no store {kind!r}: one of {', '.join(STORES)}")
    if kind == "memcached" and how is not None and how.workload == "e":
        raise ValueError("memcached has no scans, so workload e cannot run: choose another one of a to f")
    if not address.startswith("/") and not address.rpartition(":")[2].isdigit():
        raise ValueError(f"{address!r} is no address: HOST:PORT, or the path of a UNIX socket")
    if records < 1 or seconds < 1 or not FIELDS <= size <= _MOST_BYTES:
        raise ValueError(f"at least 1 record and 1 second, and {FIELDS} to {_MOST_BYTES} bytes in each record")
    try:
        with connected(kind, address, 0.0 if how else _PATIENCE) as store:
            if how is None:
                return load(store, records, size, seed)
            if not waits:
                return run(store, how)
            converse(store, how)
            return None
    except (Broken, Refusal) as error:
        if waits:
            sys.stderr.write(f"{kind}: {error}\n")
            sys.exit(_KILLED)
        return {"failed": f"{kind}: {error}"}


if __name__ == "__main__":
    try:
        result = main(sys.argv[1:])
    except ValueError as error:
        sys.stderr.write(f"ycsb: {error}\n")
        sys.exit(2)
    if result is not None:
        sys.stdout.write(json.dumps(result) + "\n")

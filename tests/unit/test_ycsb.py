"""YCSB's core workloads: their operations, the stores that are really started, and replies that are refused."""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicemgr.bench.frame import stores, timed_load
from slicemgr.errors import Refused
from slicemgr.loads import ycsb

PROGRAM = Path(ycsb.__file__)
RECORDS = 2000
MIB = 1 << 20


def some(workload: str, count: int = 20_000, records: int = RECORDS, seed: int = 1) -> list[ycsb.Operation]:
    return list(itertools.islice(ycsb.operations(workload, records, seed), count))


# --- workloads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "shares"),
    [
        ("a", {"read": 0.5, "update": 0.5}),
        ("b", {"read": 0.95, "update": 0.05}),
        ("c", {"read": 1.0}),
        ("d", {"read": 0.95, "insert": 0.05}),
        ("e", {"scan": 0.95, "insert": 0.05}),
        ("f", {"read": 0.5, "modify": 0.5}),
    ],
)
def test_the_mix_is_the_published_one(workload: str, shares: dict[str, float]) -> None:
    counts = collections.Counter(one.kind for one in some(workload))
    assert {kind: count / counts.total() for kind, count in counts.items()} == pytest.approx(shares, abs=0.02)


@pytest.mark.parametrize("workload", ycsb.WORKLOADS)
def test_the_seed_determines_the_operations(workload: str) -> None:
    assert some(workload) == some(workload) != some(workload, seed=2)


@given(st.sampled_from(sorted(ycsb.WORKLOADS)), st.integers(1, 300), st.integers())
def test_every_record_was_inserted_before(workload: str, records: int, seed: int) -> None:
    known = records
    for one in some(workload, 200, records, seed):
        if one.kind == "insert":
            assert one.record == known
            known += 1
        assert 0 <= one.record < known
        assert (1 <= one.detail <= ycsb.LONGEST_SCAN) if one.kind == "scan" else (0 <= one.detail < ycsb.FIELDS)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 1000, 100_000])
def test_ranks_are_zipfian(count: int) -> None:
    """The share of each of the first ranks is that of the definition, and none is out of range."""
    zipfian, tries = ycsb.Zipfian(count), 50_000
    ranks = collections.Counter(zipfian.rank((one + 0.5) / tries) for one in range(tries))
    assert min(ranks) == 0 and max(ranks) < count
    assert zipfian.rank(1 - 2**-53) == count - 1
    total = sum(1 / rank**ycsb.THETA for rank in range(1, count + 1))
    exact = [1 / rank**ycsb.THETA / total for rank in range(1, min(count, 2) + 1)]  # the closed form has these exactly
    assert [ranks[rank] / tries for rank in range(len(exact))] == pytest.approx(exact, abs=1e-3)
    for most in (10, 100, 1000):
        wanted = sum(1 / rank**ycsb.THETA for rank in range(1, min(count, most) + 1)) / total
        assert sum(ranks[rank] for rank in range(most)) / tries == pytest.approx(wanted, abs=0.03)


@given(st.integers(1, 5000))
def test_scattered_ranks_are_a_permutation(count: int) -> None:
    factor = ycsb.scattering(count)
    assert len({rank * factor % count for rank in range(count)}) == count


def test_popular_records_are_scattered_and_the_latest_ones_are_the_last() -> None:
    popular = [one for one, _ in collections.Counter(one.record for one in some("c")).most_common(20)]
    quarters = {4 * one // RECORDS for one in popular}
    assert quarters == {0, 1, 2, 3}
    newest, near = RECORDS - 1, []
    for one in some("d"):
        if one.kind == "insert":
            newest = one.record
        else:
            near.append(newest - one.record < 100)
    assert sum(near) / len(near) > 0.5


@given(st.sets(st.integers(0, 1 << 40), min_size=2))
def test_keys_differ_and_have_one_length(records: set[int]) -> None:
    keys = {ycsb.key(one) for one in records}
    assert len(keys) == len(records) and {len(one) for one in keys} == {24}


@given(st.integers(ycsb.FIELDS, 5000), st.integers())
def test_records_have_their_size_and_are_printable(size: int, seed: int) -> None:
    record = ycsb.Contents(size, seed).record()
    assert len(record) == size // ycsb.FIELDS * ycsb.FIELDS and record.decode().isprintable()
    parts = ycsb.fields(record)
    assert len(parts) == ycsb.FIELDS and b"".join(parts) == record


# --- figures ----------------------------------------------------------------------------------------------------------


def test_a_second_has_the_rate_of_what_was_served_in_it() -> None:
    served = ycsb.Seconds(3)
    for begin in (0.0, 0.2, 1.0):
        served.add(begin, begin + 0.1, 1)
    first, *rest = served.until(1)
    assert not rest and first == pytest.approx((10.0, 1e5), rel=1e-3)
    rest += served.until(3)
    assert [rate for rate, _ in rest] == [10.0, 10.0], "nothing was served in the last second"


def test_an_operation_that_takes_seconds_lowers_each_of_them() -> None:
    served = ycsb.Seconds(4)
    served.add(0.0, 0.5, 1)
    served.add(0.5, 2.5, 1)
    served.add(3.5, 9.0, 1)  # ends after the last second
    assert list(served.until(4)) == [(1.0, 2e6), (0.0, 2e6), (2.0, 2e6), (0.0, 5.5e6)]


def test_an_error_is_served_but_not_counted() -> None:
    served = ycsb.Seconds(1)
    served.add(0.0, 0.25, 0)
    served.add(0.25, 0.5, 1)
    assert [rate for rate, _ in served.until(1)] == [2.0]


# --- stores that run --------------------------------------------------------------------------------------------------


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that a process without privileges reaches, and whose name leaves room for that of a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as found:
        Path(found).chmod(0o711)
        yield Path(found)


@pytest.fixture(params=["redis", "memcached"])
def running(request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[stores.Store, str]]:
    """A store as it runs in a sliver, and its address."""
    store = stores.STORES[request.param]
    with Started(store, folder, 32 * MIB) as address:
        yield store, address


class Started:
    """The sent program, started by the shell command for slivers; ended with its context."""

    def __init__(self, store: stores.Store, folder: Path, memory: int) -> None:
        self._store, self._folder, self._memory = store, folder, memory

    def __enter__(self) -> str:
        sent, programs, place = self._store.sent(), f"{self._folder}/programs", f"{self._folder}/a store"
        subprocess.run(["sh", "-c", sent.unpack(programs)], input=sent.archive, check=True, capture_output=True)
        line = self._store.start(programs, place, self._memory, drop=os.geteuid() == 0)
        subprocess.run(["sh", "-c", line], check=True, timeout=60)
        self.process = int(Path(place, "pid").read_text())
        return self._store.address(place)

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGKILL)
        end = time.monotonic() + 60
        while Path(f"/proc/{self.process}/status").exists() and time.monotonic() < end:
            if "State:\tZ" in Path(f"/proc/{self.process}/status").read_text():
                break
            time.sleep(0.01)


def run(*words: object) -> dict[str, Any]:
    argv = ["python3", "-I", "-", *map(str, words)]
    done = subprocess.run(argv, input=PROGRAM.read_bytes(), capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_all_workloads_of_a_store(running: tuple[stores.Store, str]) -> None:
    store, address = running
    assert run("load", store.name, address, RECORDS, 1000, 1) == {"loaded": RECORDS}
    for workload in store.workloads:
        found = run("run", store.name, address, workload, RECORDS, 1000, 1, 1)
        assert len(found["each_second"]) == len(found["p99"]) == 1 and found["each_second"][0] > 0
        assert (found["misses"], found["errors"]) == (0, 0)
        kinds = {ycsb.WORKLOADS[workload].first, ycsb.WORKLOADS[workload].second}
        assert found["counts"].keys() <= kinds and sum(found["counts"].values()) > 0


def test_a_store_has_what_was_inserted_and_misses_the_rest(running: tuple[stores.Store, str]) -> None:
    store, address = running
    contents = ycsb.Contents(1000, 1)
    with ycsb.connected(store.name, address, wait=60) as client:
        client.insert([(b"user1", contents.record()), (b"user2", contents.record())])
        assert client.read(b"user1") and client.update(b"user2", 3, contents.record())
        assert not client.read(b"user3")
        assert not client.update(b"user4", 3, contents.record())
        if "e" in store.workloads:
            assert client.scan(b"user1", 10) and not client.scan(b"user9", 10)


def test_a_store_runs_without_privileges_and_listens_nowhere_else(running: tuple[stores.Store, str]) -> None:
    store, address = running
    with ycsb.connected(store.name, address, wait=60):
        pass
    process = Path("/proc", Path(address).with_name("pid").read_text().strip())
    inodes = {str(one.readlink()).removeprefix("socket:[").rstrip("]") for one in (process / "fd").iterdir()}
    tables = [Path(process, "net", name).read_text() for name in ("tcp", "tcp6", "udp", "udp6")]
    assert not inodes & {line.split()[9] for table in tables for line in table.splitlines()[1:]}
    (users,) = [line for line in (process / "status").read_text().splitlines() if line.startswith("Uid:")]
    assert "0" not in users.split()[1:]


def test_a_full_store_refuses_records(folder: Path) -> None:
    """memcached evicts instead: its records are missed."""
    with Started(stores.STORES["redis"], folder, 4 * MIB) as address:
        found = run("load", "redis", address, 5000, 1000, 1)
        assert found["failed"].startswith("redis: OOM")
        found = run("run", "redis", address, "a", 100, 1000, 1, 1)
        assert found["errors"] > 0 and found["counts"]["read"] > 0


def test_evicted_records_are_missed(folder: Path) -> None:
    with Started(stores.STORES["memcached"], folder, 1) as address:  # it gets the least that it works with
        assert run("load", "memcached", address, 80_000, 1000, 1) == {"loaded": 80_000}
        found = run("run", "memcached", address, "a", 80_000, 1000, 1, 1)
        assert found["misses"] > 0 and found["errors"] == 0


def test_a_store_that_ends_is_a_failure(folder: Path) -> None:
    server = Started(stores.STORES["redis"], folder, 32 * MIB)
    with server as address:
        run("load", "redis", address, 100, 1000, 1)
        timer = threading.Timer(0.7, os.kill, (server.process, signal.SIGKILL))
        timer.start()
        found = run("run", "redis", address, "c", 100, 1000, 30, 1)
        assert "connection" in found["failed"]
        assert "no connection" in run("run", "redis", address, "c", 100, 1000, 1, 1)["failed"]


def test_a_client_that_waits_writes_line_by_line_and_counts_as_killed_with_its_store(folder: Path) -> None:
    server = Started(stores.STORES["redis"], folder, 32 * MIB)
    with server as address:
        run("load", "redis", address, 100, 1000, 1)
        arguments = ("run", "redis", address, "b", 100, 1000, 30, 1, 20)
        with timed_load.start("low", ["sh", "-c"], "ycsb.py", arguments, ("each_second", "p99"), 60.0) as load:
            load.wait()
            load.begin()
            time.sleep(2.5)
            os.kill(server.process, signal.SIGKILL)
            found = load.series(30)
    assert found["killed"] and found["each_second"][0] > 0 and found["p99"][1] > 0
    assert found["each_second"][4:] == [0.0] * 26


# --- the table of stores ----------------------------------------------------------------------------------------------


def test_every_store_of_the_client_is_in_the_table() -> None:
    assert stores.STORES.keys() == ycsb.STORES.keys()
    assert "e" not in stores.STORES["memcached"].workloads


@pytest.mark.parametrize("store", stores.STORES.values(), ids=lambda one: one.name)
def test_a_missing_program_is_refused_with_its_remedy(store: stores.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    store = replace(store, files=("no-such-program",))
    with pytest.raises(Refused, match=f"{store.program} is not installed") as refused:
        store.sent()
    assert store.remedy == refused.value.hint


def test_a_static_program_is_sent_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, tmp_path / "cat")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    store = replace(stores.STORES["document"], program="cat", files=("cat",))
    sent = store.sent()
    argv = ["sh", "-c", sent.unpack(str(tmp_path / "sent"))]
    subprocess.run(argv, input=sent.archive, check=True)
    assert (tmp_path / "sent" / "cat").read_bytes() == Path(busybox).read_bytes()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert store.sent().trial == "--version"  # the one of this machine has libraries


@pytest.mark.parametrize("store", stores.STORES.values(), ids=lambda one: one.name)
def test_records_fill_the_memory(store: stores.Store) -> None:
    assert store.records_for(0) == 1
    many = store.records_for(1 << 30)
    assert 0 <= (1 << 30) - store.base - many * store.each < store.each
    assert many * stores.RECORD < 1 << 30


# --- wrong input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "load STORE ADDRESS"),
        ("load redis /s 1 1000", "load STORE ADDRESS"),
        ("load other /s 1 1000 1", "no store 'other'"),
        ("load redis nowhere 1 1000 1", "no address"),
        ("load redis /s 0 1000 1", "at least 1 record"),
        ("load redis /s 1 9 1", "bytes in each record"),
        ("load redis /s 1 100001 1", "bytes in each record"),
        ("load redis /s many 1000 1", "many"),
        ("run redis /s g 1 1000 1 1", "no workload 'g'"),
        ("run memcached /s e 1 1000 1 1", "memcached has no scans"),
        ("run redis /s a 1 1000 0 1", "1 second"),
    ],
)
def test_wrong_arguments(words: str, said: str) -> None:
    argv = ["python3", "-I", "-", *words.split()]
    done = subprocess.run(argv, input=PROGRAM.read_bytes(), capture_output=True, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith(b"ycsb: ") and done.stderr.count(b"\n") == 1
    assert said in done.stderr.decode()


# --- hostile replies --------------------------------------------------------------------------------------------------


class Hostile:
    """A server that answers each request with the same bytes, one of them at a time if `pause` is given."""

    def __init__(self, reply: bytes, pause: float = 0.0, end: bool = False) -> None:
        self._reply, self._pause, self._end = reply, pause, end
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> str:
        self._thread.start()
        return self.address

    def __exit__(self, *_: object) -> None:
        self._thread.join(60)
        self._listener.close()

    def _serve(self) -> None:
        peer, _ = self._listener.accept()
        with peer:
            try:
                while peer.recv(1 << 16):
                    for part in [self._reply[at : at + 1] for at in range(len(self._reply))] if self._pause else [b""]:
                        peer.sendall(part or self._reply)
                        time.sleep(self._pause)
                    if self._end:
                        return
            except OSError:
                return


def refused(kind: str, reply: bytes, *, pause: float = 0.0, end: bool = False, patience: float = 20.0) -> str:
    """Why a read fails after this reply."""
    with Hostile(reply, pause, end) as address:
        connection = ycsb.Connection(address, patience)
        try:
            with pytest.raises((ycsb.Broken, ycsb.Refusal)) as error:
                ycsb.STORES[kind](connection).read(b"user1")
        finally:
            connection.close()
    return str(error.value)


def message(document: dict[str, Any] | bytes, *, code: int = 2013, answers: int = 1, flags: int = 0) -> bytes:
    body = b"\0" + (document if isinstance(document, bytes) else ycsb.to_bson(document))
    return struct.pack("<iiiiI", 20 + len(body), 9, answers, code, flags) + body


@pytest.mark.parametrize(
    ("kind", "reply", "why"),
    [
        ("redis", b"HTTP/1.1 400 Bad Request\r\n\r\n", "sent b'HTTP"),
        ("redis", b"$99999999999\r\n", "announced"),
        ("redis", b"$-2\r\n", "instead of a number"),
        ("redis", b"*99999999\r\n", "sent b'*9999"),
        ("redis", b"*1\r\n" * 50, "sent b'*1'"),
        ("redis", b"*1\r\n$1\r\na\r\n", "no record"),
        ("redis", b"+OK\r\n", "no record"),
        ("redis", b"$3\r\nabcde\r\n", "another length"),
        ("redis", b"a" * 5000, "too long"),
        ("redis", b":" + b"1" * 900 + b"\r\n", "instead of a number"),
        ("redis", b"-ERR \x1b[31mred\r\n", "ERR ?[31mred"),
        ("memcached", b"ERROR\r\n", "sent b'ERROR'"),
        ("memcached", b"SERVER_ERROR out of memory\r\n", "out of memory"),
        ("memcached", b"VALUE user1 0 99999999999\r\n", "announced"),
        ("memcached", b"VALUE user1 0 -5\r\n", "instead of a number"),
        ("memcached", b"VALUE user2 0 1\r\na\r\nEND\r\n", "sent b'VALUE user2"),
        ("memcached", b"VALUE user1 0 1\r\na\r\nVALUE user2 0 1\r\na\r\nEND\r\n", "more than a record"),
        ("memcached", b"VALUE user1 0 1\r\nabc\r\nEND\r\n", "another length"),
        ("document", b"HTTP/1.1 400 Bad Request\r\n\r\n", "no reply of MongoDB's protocol"),
        ("document", message({"ok": 1.0}, code=1), "no reply of MongoDB's protocol"),
        ("document", message({"ok": 1.0}, answers=2), "no reply of MongoDB's protocol"),
        ("document", message({"ok": 1.0}, flags=2), "no reply of MongoDB's protocol"),
        ("document", struct.pack("<iiiiI", 1 << 30, 9, 1, 2013, 0), "announced"),
        ("document", struct.pack("<iiiiI", -1, 9, 1, 2013, 0), "no reply of MongoDB's protocol"),
        ("document", message(b"\x00\x00\x00\x00\x00"), "wrong length"),
        ("document", message({"ok": 1.0}), "no documents"),
        ("document", message({"ok": 0.0, "errmsg": "a \x1b reason"}), "a ? reason"),
        ("document", message({"ok": 1.0, "cursor": {"firstBatch": [{}]}}), "another document"),
        ("document", message({"ok": 1.0, "cursor": {"firstBatch": [1, 2]}}), "no documents"),
    ],
)
def test_a_reply_that_is_wrong_is_refused(kind: str, reply: bytes, why: str) -> None:
    assert why in refused(kind, reply)


@pytest.mark.parametrize("kind", ycsb.STORES)
def test_a_server_that_is_silent_slow_endless_or_gone(kind: str) -> None:
    assert "did not answer within 0.3 s" in refused(kind, b"", patience=0.3)
    assert "did not answer within 0.3 s" in refused(kind, b"x" * 200, pause=0.05, patience=0.3)
    assert "closed the connection" in refused(kind, b"", end=True)


def test_replies_are_bounded_altogether() -> None:
    value = b"$1000000\r\n" + b"a" * 1_000_000 + b"\r\n"
    assert "more than 16777216 bytes" in refused("redis", b"*20\r\n" + value * 20)


def test_a_reply_that_was_not_requested_is_refused() -> None:
    with Hostile(b"VERSION 1\r\nVERSION 2\r\n") as address:
        connection = ycsb.Connection(address, 20.0)
        try:
            store = ycsb.Memcached(connection)
            store.ping()
            with pytest.raises(ycsb.Broken, match="more than a reply"):
                store.ping()
        finally:
            connection.close()


# --- BSON -------------------------------------------------------------------------------------------------------------

NAMES = st.text(max_size=8).filter(lambda name: "\0" not in name)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)


def depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max((1 + depth(one) for one in inner), default=0)


@given(st.dictionaries(NAMES, VALUES, max_size=4).filter(lambda one: depth(one) <= 8))
def test_bson_round_trip(document: dict[str, Any]) -> None:
    assert ycsb.from_bson(ycsb.to_bson(document)) == document


def test_bson_as_it_is_specified() -> None:
    assert ycsb.to_bson({"hello": "world"}) == b"\x16\x00\x00\x00\x02hello\x00\x06\x00\x00\x00world\x00\x00"
    assert ycsb.to_bson({"a": [1, 1 << 40]}) == (
        b"\x1f\x00\x00\x00\x04a\x00\x17\x00\x00\x00\x100\x00\x01\x00\x00\x00"
        b"\x121\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00"
    )


@given(st.binary(max_size=60))
def test_any_bytes_are_a_document_or_refused(data: bytes) -> None:
    with contextlib.suppress(ycsb.Broken):
        ycsb.from_bson(data)


@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=3).filter(lambda one: depth(one) <= 8), st.data())
def test_a_document_that_is_cut_off_is_refused(document: dict[str, Any], data: st.DataObject) -> None:
    whole = ycsb.to_bson(document)
    with pytest.raises(ycsb.Broken):
        ycsb.from_bson(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ycsb.Broken):
        ycsb.from_bson(whole + b"\0")


def test_documents_that_are_too_deep_or_cannot_be_encoded() -> None:
    deep: dict[str, Any] = {}
    for _ in range(20):
        deep = {"": deep}
    with pytest.raises(ycsb.Broken, match="depth"):
        ycsb.from_bson(ycsb.to_bson(deep))
    for wrong in ({"a\0": 1}, {"a": 1 << 63}):
        with pytest.raises(ValueError, match=r"zero byte|64 bits"):
            ycsb.to_bson(wrong)
    with pytest.raises(TypeError, match="set is not encoded"):
        ycsb.to_bson({"a": set()})

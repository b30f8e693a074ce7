"""Requests of experiments to a node: validated by the service, for admins only, and safe for a shell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slicemgr.agent.measurements import loads
from slicemgr.bench.experiments import io
from slicemgr.errors import Failed, Refused
from slicemgr.loads import disk, sysbench
from slicemgr.policy import measurements

SHA = "ab" * 32
IO = {"root": "overlay", "image": SHA, "what": "sqlite", "size": 151_600}


def test_what_is_right_is_taken_with_its_defaults() -> None:
    assert measurements.io(IO) == {**IO, "seed": 1}
    assert measurements.sysbench({"test": "cpu"}) == {"test": "cpu", "seconds": 0, "size": 1 << 30, "seed": 1}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("root", "/"),
        ("root", None),
        ("root", ["snapshot"]),
        ("image", "../../etc"),
        ("image", "AB" * 32),
        ("image", None),
        ("what", "tar"),
        ("size", 1),
        ("size", "151600; reboot"),
        ("size", True),
        ("size", 1 << 40),
        ("size", 1.5),
        ("seed", -1),
        ("seed", "1"),
    ],
)
def test_each_wrong_field_of_io_is_named(field: str, value: Any) -> None:
    with pytest.raises(Refused) as refused:
        measurements.io({**IO, field: value})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("field", "value"), [("test", "mutex"), ("test", None), ("seconds", 601), ("size", 1), ("seed", 1 << 31)]
)
def test_each_wrong_field_of_sysbench_is_named(field: str, value: Any) -> None:
    with pytest.raises(Refused) as refused:
        measurements.sysbench({"test": "cpu", field: value})
    assert refused.value.field == field


def test_all_parts_know_the_same_words() -> None:
    assert measurements.ROOTS == io.ROOTS == (loads.SNAPSHOT, loads.OVERLAY, loads.COPY)
    assert tuple(measurements.LOADS) == (io.SQLITE, io.FILES) == (loads.SQLITE, loads.FILES)
    assert measurements.TESTS == tuple(sysbench.WORDS) == tuple(sysbench.SECONDS) == tuple(sysbench.LINES)
    for size in (*io.DATABASES, *io.COUNTS[:1]):
        what = "sqlite" if size > 10 else "files"
        assert measurements.io({**IO, "what": what, "size": size})["size"] == size
    assert disk.PAGE == 4096


def test_what_a_program_says() -> None:
    assert loads.result('{"read": 1.5}') == {"read": 1.5}
    for said in ("", "hello", "[1]", "3"):
        with pytest.raises(Failed, match="printed no result"):
            loads.result(said)
    with pytest.raises(Failed, match="no room"):
        loads.result('{"failed": "no room"}')


def test_the_program_is_confined_and_its_mounts_are_its_own() -> None:
    words = loads.staged(loads.confined(["python3"]), Path("/pool/x"), "root/data", Path("/run/seen"), "lowerdir=a")
    assert words[:4] == ["unshare", "--mount", "--propagation", "private"]
    assert words[8:12] == ["/pool/x", "lowerdir=a", "root/data", "/run/seen"]
    assert {"--no-new-privs", "--clear-groups", "--reuid", "--regid"} <= set(words) and words[-1] == "python3"
    assert words[words.index("--bounding-set") + 1] == words[words.index("--inh-caps") + 1] == "-all"

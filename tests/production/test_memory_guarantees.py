"""With cgroup v2 the kernel spares what is guaranteed to a sliver; without the guarantee, it takes the same memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_units import MIB, SCOPES, init_of, systemctl
from testbed import Node, eventually

from slicemgr.drivers.kernel import cgroup
from slicemgr.drivers.kernel.counters import meminfo, value_in

GUARANTEE = 320 * MIB
FILE = 256 * MIB
LEFT = 160 * MIB  # what the program of the host leaves of the memory that is available and not guaranteed
CACHE = (
    f"test -e cache || dd if=/dev/zero of=cache bs=1M count={FILE // MIB} status=none && sync && cat cache >/dev/null"
)
HOLD = "import sys; x = bytearray(int(sys.argv[1])); print('held', flush=True); sys.stdin.read()"


def group(node: Node, name: str) -> Path:
    return cgroup.group_of(init_of(node, name), "memory")


def low(group: Path) -> int:
    return int((group / "memory.low").read_text())


def cached(group: Path) -> int:
    """Bytes of page cache."""
    return value_in((group / "memory.stat").read_bytes(), b"file")


@pytest.fixture(scope="module")
def two(bare_node: Node) -> Iterator[Node]:
    for name, guarantee in (("kept", GUARANTEE), ("idle", 0)):
        bare_node.create(name, "--memory", "512M", "--memory-guarantee", str(guarantee))
    yield bare_node
    bare_node.ok("delete", "kept", "idle")
    bare_node.agrees()


def is_told(node: Node, guarantee: int) -> None:
    """Wait until the kernel is told of the guarantee of `kept`: in its group and those above it."""
    own = group(node, "kept")
    above = [one for one in own.parents if one in (SCOPES, *SCOPES.glob("*")) or SCOPES in one.parents]
    assert above[-1] == SCOPES
    eventually(lambda: {low(one) for one in (own, *above)} == {guarantee}, f"memory.low is {guarantee}", 60)


def kept(node: Node) -> dict[str, float]:
    """The parts of their page cache that both slivers keep while a program of the host takes nearly all memory."""
    for name in ("kept", "idle"):
        node.inside(name, CACHE)
    groups = {name: group(node, name) for name in ("kept", "idle")}
    before = {name: cached(one) for name, one in groups.items()}
    assert min(before.values()) > FILE * 0.9, before
    bytes_ = meminfo()["MemAvailable"] - before["kept"] - LEFT
    words = [sys.executable, "-c", HOLD, str(bytes_)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holds:
        assert holds.stdout is not None
        assert holds.stdout.readline() == "held\n"
        found = {name: cached(one) / before[name] for name, one in groups.items()}
        holds.communicate()
    return found


def test_the_kernel_is_told_again_after_systemd_has_read_its_units(two: Node) -> None:
    is_told(two, GUARANTEE)
    assert low(group(two, "idle")) == 0
    systemctl(two, "daemon-reload")
    systemctl(two, "set-property", "--runtime", "machine.slice", "MemoryLow=0")
    is_told(two, GUARANTEE)


def test_what_is_guaranteed_stays_and_without_a_guarantee_it_goes(two: Node) -> None:
    is_told(two, GUARANTEE)
    guarded = kept(two)
    two.ok("resize", "kept", "--memory-guarantee", "0")
    is_told(two, 0)
    control = kept(two)
    assert guarded["kept"] > 0.95 and guarded["idle"] < 0.7, (guarded, control)
    assert control["kept"] < 0.7, (guarded, control)

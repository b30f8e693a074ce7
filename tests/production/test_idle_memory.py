"""On a real kernel, a scan finds what slivers leave unused, where the kernel tracks pages (Debian 13, not 12).

The memory that is used and unused is that of a mapped file and of a program. The control uses all of it.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_memory_guarantees import HOLD, group
from test_units import MIB, init_of, systemctl
from testbed import Node, eventually

from slicemgr.agent.chores.idle_scans import IdleScans
from slicemgr.drivers.kernel import idle_pages
from slicemgr.drivers.kernel.counters import Memory, meminfo
from slicemgr.drivers.kernel.idle_pages import Damon
from slicemgr.policy import idle
from slicemgr.policy.idle import Estimate

PARTS = {"half": 0.5, "whole": 1.0}  # of their memory that slivers use
SIZE = 48 * MIB
NOTE = Path("/run/slicemgr") / idle_pages.NOTE
USES = f"""
import mmap, os, sys, time
with open("data", "wb") as f:
    f.write(os.urandom({SIZE}))
    os.fsync(f.fileno())
with open("data", "rb") as f:
    file = mmap.mmap(f.fileno(), {SIZE}, prot=mmap.PROT_READ)
own = mmap.mmap(-1, {SIZE})
for at in range(0, {SIZE}, 4096):
    own[at] = 1 + file[at] % 2
open("ready", "w").close()
while True:
    for at in range(0, int({SIZE} * float(sys.argv[1])), 4096):
        own[at], file[at]
    time.sleep(1)
"""

pytestmark = pytest.mark.skipif(idle_pages.tracker(NOTE) is None, reason="this kernel tracks no pages")


@pytest.fixture(scope="module")
def two(bare_node: Node) -> Iterator[Node]:
    for name, part in PARTS.items():
        bare_node.create(name, "--memory", "256M")
        bare_node.inside(name, f"nohup python3 -c {shlex.quote(USES)} {part} >/dev/null 2>&1 </dev/null &")
    eventually(lambda: all("ready" in bare_node.inside(name, "ls") for name in PARTS), "their memory is used", 300)
    yield bare_node
    bare_node.ok("delete", *PARTS)
    bare_node.agrees()


def test_a_scan_finds_what_slivers_leave_unused(two: Node, tmp_path: Path) -> None:
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("1")  # with much free memory, the agent scans nothing
    groups = {name: group(two, name) for name in PARTS}
    short = Memory(100, 100, 1, 1, 1)
    with IdleScans(tmp_path, lambda: True, lambda: short, lambda: groups) as scans:
        scans.step()
        time.sleep(idle.WINDOW)
        scans.step()
        found = scans.estimates
        print(f"{scans.cost:.3f} s of a processor: {found}")
    assert not (tmp_path / idle_pages.NOTE).exists()

    def part(name: str, kind: str) -> Estimate:
        return found[groups[name]][kind]

    for kind in ("file", "anon"):
        assert 0.25 < part("half", kind).part < 0.6, found
        assert part("whole", kind).part < 0.2, found


def test_the_agent_scans_while_little_memory_is_free(two: Node) -> None:
    if not isinstance(idle_pages.tracker(NOTE), Damon):
        pytest.skip("page idle tracking leaves no trace")
    systemctl(two, "restart", "slicemgr-agent")  # after a scan it rests: on an emulated host for up to half an hour
    assert not NOTE.exists(), "much is free"
    info = meminfo()
    words = [sys.executable, "-c", HOLD, str(info["MemFree"] - info["MemTotal"] // 5)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holds:
        assert holds.stdout is not None and holds.stdout.readline() == "held\n"
        eventually(NOTE.exists, "a scan begins")
        eventually(lambda: not NOTE.exists(), "it ends", 180)
        holds.communicate()
    assert init_of(two, "half") > 0
    assert (idle_pages.ADMIN / "nr_kdamonds").read_text().strip() == "0"

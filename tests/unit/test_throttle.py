"""Throttled slivers, with files in the place of groups, and the program that ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicemgr.drivers.kernel.memory_groups import UNLIMITED
from slicemgr.drivers.kernel.throttle import PROGRAM, Throttle, Throttled
from slicemgr.errors import Failed
from slicemgr.model import MIB

NONE = str(UNLIMITED)


@pytest.fixture
def group(tmp_path: Path) -> Path:
    return made(tmp_path / "a.scope")


@pytest.fixture
def throttle(tmp_path: Path) -> Iterator[Throttle]:
    found = Throttle()
    with found.kept(tmp_path / "lock"):
        yield found


def made(directory: Path) -> Path:
    directory.mkdir()
    (directory / "memory.high").write_text("max\n")
    (directory / "memory.current").write_text("0\n")
    (directory / "memory.swap.max").write_text("9\n")
    (directory / "memory.swap.high").write_text("max\n")
    (directory / "memory.swap.current").write_text("4096\n")
    return directory


def high(group: Path) -> str:
    return (group / "memory.high").read_text().strip()


def swap_high(group: Path) -> str:
    return (group / "memory.swap.high").read_text().strip()


def swap(group: Path) -> int:
    return int((group / "memory.swap.max").read_text())


def test_a_throttled_group_has_a_limit_and_no_room_in_swap(throttle: Throttle, group: Path) -> None:
    throttle.set({group: Throttled(100 * MIB)})
    assert (high(group), swap(group)) == (str(100 * MIB), 0)
    throttle.set({group: Throttled(99 * MIB + 1)})
    assert high(group) == str(100 * MIB), "a limit that is nearly the same is not written"
    throttle.set({group: Throttled(90 * MIB)})
    assert high(group) == str(90 * MIB)
    throttle.set({})
    assert (high(group), swap(group)) == (NONE, 4096), "and what it has in swap may stay there"


def test_no_limit_is_lower_than_what_a_group_has(throttle: Throttle, group: Path) -> None:
    """The kernel takes what is above a new limit before the write returns. A group grows a little beyond its limit."""
    (group / "memory.current").write_text(f"{120 * MIB}\n")
    throttle.set({group: Throttled(100 * MIB)})
    assert high(group) == str(120 * MIB)
    (group / "memory.current").write_text(f"{125 * MIB}\n")
    throttle.set({group: Throttled(100 * MIB)})
    assert high(group) == str(120 * MIB), "it does not follow a sliver that grows"
    (group / "memory.current").write_text(f"{90 * MIB}\n")
    throttle.set({group: Throttled(100 * MIB)})
    assert high(group) == str(100 * MIB)
    throttle.set({group: Throttled(130 * MIB)})
    assert high(group) == str(130 * MIB), "its share has become larger"


def test_a_group_with_memory_in_swap_waits_without_a_search(throttle: Throttle, group: Path) -> None:
    """`memory.high` would have it drop the pages of its programs."""
    (group / "memory.swap.current").write_text(str(102 * MIB))
    throttle.set({group: Throttled(100 * MIB)})
    assert (swap_high(group), high(group), swap(group)) == (str(100 * MIB), NONE, 0)
    (group / "memory.swap.current").write_text(str(51 * MIB))
    throttle.set({group: Throttled(100 * MIB)})
    assert swap_high(group) == str(50 * MIB)
    throttle.set({})
    assert (swap_high(group), high(group), swap(group)) == ("max", NONE, 51 * MIB)


def test_a_kernel_that_counts_no_swap_has_one_limit(throttle: Throttle, group: Path) -> None:
    for name in ("memory.swap.current", "memory.swap.max", "memory.swap.high"):
        (group / name).unlink()
    throttle.set({group: Throttled(100 * MIB)})
    assert high(group) == str(100 * MIB)
    throttle.set({})
    assert high(group) == NONE and not (group / "memory.swap.high").exists()


def test_a_limit_that_systemd_has_reset_is_written_again(throttle: Throttle, group: Path) -> None:
    throttle.set({group: Throttled(100 * MIB)})
    (group / "memory.high").write_text("max\n")
    throttle.set({group: Throttled(100 * MIB)})
    assert high(group) == str(100 * MIB)


def test_many_small_steps_are_not_lost(throttle: Throttle, group: Path) -> None:
    for tenth in range(1000, 800, -5):
        throttle.set({group: Throttled(tenth * MIB // 10)})
    assert abs(int(high(group)) - 80 * MIB) <= 2 * MIB


def test_a_sliver_with_a_soft_limit_has_it_again(throttle: Throttle, group: Path) -> None:
    throttle.set({group: Throttled(100 * MIB, usual=64 * MIB)})
    assert high(group) == str(64 * MIB), "it is lower"
    throttle.set({group: Throttled(32 * MIB, usual=64 * MIB)})
    assert high(group) == str(32 * MIB)
    throttle.set({})
    assert high(group) == str(64 * MIB)


def test_a_group_that_has_ended_is_left_out(throttle: Throttle, group: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone.scope"
    throttle.set({gone: Throttled(MIB), group: Throttled(MIB)})
    assert high(group) == str(MIB)
    throttle.set({})
    assert high(group) == NONE


def test_what_an_earlier_agent_left_is_ended(throttle: Throttle, group: Path, tmp_path: Path) -> None:
    other = made(tmp_path / "b.scope")
    (other / "memory.high").write_text("4096\n")
    throttle.set({group: Throttled(MIB)})
    throttle.end_others({group: UNLIMITED, other: UNLIMITED, tmp_path / "gone": UNLIMITED})
    assert (high(group), high(other)) == (str(MIB), NONE)


def test_an_agent_that_stops_throttles_no_more(group: Path, tmp_path: Path) -> None:
    throttle = Throttle()
    with throttle.kept(tmp_path / "lock"):
        throttle.set({group: Throttled(MIB)})
    assert high(group) == "max"
    with pytest.raises(Failed, match="the agent is stopping"):
        throttle.set({group: Throttled(MIB)})
    assert high(group) == "max"


AGENT = """
import sys, time
from pathlib import Path
from slicemgr.drivers.kernel import throttle
throttle.PROGRAM = Path(sys.argv[2])
found = throttle.Throttle()
with found.kept(Path(sys.argv[1] + ".lock")):
    found.set({Path(sys.argv[1]): throttle.Throttled(4096, usual=1 << 20)})
    print("throttled", flush=True)
    time.sleep(60)
"""
NO_PROGRAM = """#!/bin/sh
echo ready
cat >/dev/null
"""


@pytest.mark.parametrize("program", [PROGRAM, None])
def test_a_killed_agent_leaves_no_group_throttled(program: Path | None, group: Path, tmp_path: Path) -> None:
    """In the control, the program sets nothing."""
    if program is None:
        (tmp_path / "none").write_text(NO_PROGRAM)
        (tmp_path / "none").chmod(0o755)
    words = [sys.executable, "-c", AGENT, str(group), str(program or tmp_path / "none")]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None and agent.stdout.readline() == b"throttled\n"
        assert high(group) == "4096"
        os.kill(agent.pid, signal.SIGKILL)
    deadline = time.monotonic() + (10 if program else 1)
    while high(group) in ("4096", "") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert high(group) == (str(1 << 20) if program else "4096")


def run(tmp_path: Path, lines: str) -> int:
    return subprocess.run(
        [PROGRAM, tmp_path / "lock"], input=lines.encode(), capture_output=True, timeout=60
    ).returncode


def test_the_program_sets_the_last_value_of_each_group(group: Path, tmp_path: Path) -> None:
    other = made(tmp_path / "b.scope")
    lines = f"{other}/memory.high 6\n{tmp_path}/gone/memory.high 1\n{group}/memory.high 4\n{other}/memory.high 0\n"
    (group / "memory.swap.high").write_text("5")
    lines += f"{group}/memory.swap.high {UNLIMITED}\n"
    assert run(tmp_path, f"{group}/memory.high 5\n{lines}") == 0
    assert (high(group), high(other), swap_high(group)) == ("4", "max", "max")


@pytest.mark.parametrize("line", ["{}", "{} x\n", "{} 100", "{} 1 2\n"])
def test_a_line_that_is_not_complete_counts_for_nothing(line: str, group: Path, tmp_path: Path) -> None:
    assert run(tmp_path, line.format(group / "memory.high")) == 1
    assert high(group) == "max"


def test_no_link_is_followed(group: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("7")
    (group / "memory.high").unlink()
    (group / "memory.high").symlink_to(tmp_path / "file")
    assert run(tmp_path, f"{group}/memory.high 5\n") == 1
    assert (tmp_path / "file").read_text() == "7"

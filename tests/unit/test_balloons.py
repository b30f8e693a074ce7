"""Balloons of libvirt's test driver, and the program that gives memory back, with a `virsh` that only writes."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import libvirt
import pytest
from test_guest_memory import statistics  # the chore has the same statistics

from slicemgr.config import LibvirtConfig
from slicemgr.drivers.libvirt.balloons import KEEPER, Balloons, GuestReport, parse
from slicemgr.drivers.libvirt.hypervisor import Hypervisor
from slicemgr.errors import Failed
from slicemgr.model import MIB

FULL = 1024 * MIB
DOMAIN = """
<node><domain type="test"><name>sm-abcdefgh-0</name><memory>1048576</memory><os><type>hvm</type></os></domain></node>
"""
SLIVER, PID = "abcdefgh-0", 7


@pytest.fixture
def driver(tmp_path: Path) -> str:
    (tmp_path / "node.xml").write_text(DOMAIN)
    return f"test://{tmp_path}/node.xml"


@pytest.fixture
def hypervisor(driver: str) -> Hypervisor:
    return Hypervisor(LibvirtConfig(lxc="test:///default", qemu=driver))


@pytest.fixture
def balloons(hypervisor: Hypervisor, tmp_path: Path) -> Iterator[Balloons]:
    with hypervisor.balloons.kept(tmp_path / "lock"):
        yield hypervisor.balloons


def memory(balloons: Balloons) -> int:
    with balloons._running(SLIVER, "look") as domain:
        return int(domain.info()[2]) << 10


def noted(balloons: Balloons) -> dict[str, int]:
    assert balloons._keeper is not None
    return dict(balloons._keeper._noted)


def test_a_balloon_is_lowered_only_while_the_program_keeps_its_size(balloons: Balloons) -> None:
    assert balloons.set(SLIVER, PID, FULL // 2, FULL)
    assert (memory(balloons), noted(balloons)) == (FULL // 2, {"sm-abcdefgh-0": FULL >> 10})
    assert balloons._keeper is not None and balloons._keeper._program is not None
    assert balloons.set(SLIVER, PID, FULL, FULL)
    assert (memory(balloons), noted(balloons)) == (FULL, {})
    assert balloons._keeper._program is None, "nothing is left to keep"


def test_without_the_program_no_balloon_is_lowered(hypervisor: Hypervisor, tmp_path: Path) -> None:
    with pytest.raises(Failed):
        hypervisor.balloons.set(SLIVER, PID, FULL // 2, FULL)
    with hypervisor.balloons.kept(tmp_path / "lock"):
        assert hypervisor.balloons._keeper is not None
        hypervisor.balloons._keeper._words = ("false",)
        with pytest.raises(Failed, match="false does not run"):
            hypervisor.balloons.set(SLIVER, PID, FULL // 2, FULL)
    assert memory(hypervisor.balloons) == FULL


def test_a_program_that_was_killed_is_started_again(balloons: Balloons) -> None:
    balloons.set(SLIVER, PID, FULL // 2, FULL)
    assert balloons._keeper is not None
    first = balloons._keeper._program
    assert first is not None
    first._process.kill()
    first._process.wait()
    balloons.set(SLIVER, PID, FULL // 4, FULL)
    assert balloons._keeper._program not in (None, first)
    assert noted(balloons) == {"sm-abcdefgh-0": FULL >> 10}


def test_a_machine_that_is_resized_is_left_alone(balloons: Balloons) -> None:
    """Also afterwards, for who does not yet know its new size: more would pass the limit of its group."""
    balloons.set(SLIVER, PID, FULL // 2, FULL)
    with balloons.resizing(SLIVER, PID, FULL // 4):
        assert noted(balloons) == {}
        assert not balloons.set(SLIVER, PID, FULL, FULL)
    assert not balloons.set(SLIVER, PID, FULL, FULL)
    assert memory(balloons) == FULL // 2
    assert balloons.set(SLIVER, PID, FULL // 4, FULL // 4)
    assert balloons.set(SLIVER, PID + 1, FULL, FULL), "another process started with its own size"


def test_a_resize_waits_for_who_sets_the_balloon(balloons: Balloons) -> None:
    entered = threading.Event()

    def resize() -> None:
        with balloons.resizing(SLIVER, PID, FULL):
            entered.set()

    with balloons._alone(SLIVER, wait=False) as alone:
        assert alone
        thread = threading.Thread(target=resize)
        thread.start()
        assert not entered.wait(0.2)
    assert entered.wait(10)
    thread.join()


def test_the_next_agent_waits_for_the_program_of_the_last(
    hypervisor: Hypervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([KEEPER, tmp_path / "lock", "test:///default"], stdin=-1, stdout=-1) as program:
        assert program.stdout is not None and program.stdout.readline() == b"ready\n"
        monkeypatch.setattr("slicemgr.drivers.keeper.ENDS", 0.2)
        with (
            pytest.raises(Failed, match="of an earlier agent does not end"),
            hypervisor.balloons.kept(tmp_path / "lock"),
        ):
            pass
        assert program.stdin is not None
        program.stdin.close()
    with hypervisor.balloons.kept(tmp_path / "lock"):
        pass


def test_statistics_are_bytes_and_those_of_a_guest_without_a_driver_are_old() -> None:
    assert parse(statistics(512, usable=100, unused=50)) == GuestReport(
        512 * MIB, 100 * MIB, 50 * MIB, 3, 2 * MIB, 1000
    )
    assert parse({"balloon.current": 1024, "balloon.last-update": 9}) == GuestReport(MIB)


def run(tmp_path: Path, lines: str, virsh: str = "exit 0") -> tuple[int, list[str]]:
    """Status of the program whose input has these lines, and the words of each call of `virsh`."""
    calls = tmp_path / "calls"
    calls.write_text("")
    (tmp_path / "virsh").write_text(f'#!/bin/sh\necho "$*" >> {calls}\n{virsh}\n')
    (tmp_path / "virsh").chmod(0o755)
    words, path = [str(KEEPER), str(tmp_path / "lock"), "qemu:///system"], {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(words, input=lines.encode(), capture_output=True, env=path, timeout=60)
    return done.returncode, calls.read_text().splitlines()


def test_at_the_end_of_its_input_all_is_given_back_once(tmp_path: Path) -> None:
    status, calls = run(tmp_path, "sm-a 100\nsm-b 200\nsm-a 300\nsm-c 5\nsm-b 0\n")
    assert (status, len(calls)) == (0, 2)
    assert calls[0] == "-q -c qemu:///system setmem --domain sm-a --size 300 --live"
    assert "--domain sm-c --size 5 " in calls[1]


def test_without_input_it_does_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, "") == (0, [])


def test_what_fails_is_tried_again(tmp_path: Path) -> None:
    once = f"test -e {tmp_path}/failed || {{ touch {tmp_path}/failed; exit 1; }}"
    status, calls = run(tmp_path, "sm-a 100\n", once)
    assert (status, len(calls)) == (0, 2)
    status, calls = run(tmp_path, "sm-a 100\n", "exit 1")
    assert (status, len(calls)) == (1, 3)


@pytest.mark.parametrize("line", ["sm-a", "sm-a x\n", "sm-a 100", "sm-a 1 2\n"])
def test_a_line_that_is_not_complete_counts_for_nothing(tmp_path: Path, line: str) -> None:
    """An agent that is killed while it writes has not yet lowered that balloon."""
    status, calls = run(tmp_path, f"sm-b 7\n{line}")
    assert status == 1 and len(calls) == 1 and "sm-b" in calls[0]


def test_libvirt_has_the_words_that_are_used(driver: str) -> None:
    """`virsh` of this machine takes them, with a domain that exists, and fails with one that does not."""
    words = ["virsh", "-q", "-c", driver, "setmem", "--size", "500000", "--live", "--domain"]
    assert subprocess.run([*words, "sm-abcdefgh-0"]).returncode == 0
    assert subprocess.run([*words, "sm-zzzzzzzz-0"], stderr=subprocess.DEVNULL).returncode != 0
    assert libvirt.VIR_DOMAIN_AFFECT_LIVE == 1

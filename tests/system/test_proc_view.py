"""lxcfs for containers: their view, and that no process waits for a daemon that is killed or hangs."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import demo
import pytest
from tiny_sliver import Slivers, eventually, make_root, tiny_node

from slicemgr.agent.chores.proc_views import ProcViews
from slicemgr.agent.chores.runner import Runner
from slicemgr.drivers.guest.proc_view import ProcView, device
from slicemgr.model import MIB

MANY = 6
KEPT = {6, 7, 2, 1, 18, 19, 21}  # numbers of the daemon's capabilities, linux/capability.h


@pytest.fixture(scope="module")
def slivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slivers]:
    with tiny_node(tmp_path_factory.mktemp("view"), f"view-{demo.CLONE}") as made:
        yield made


@pytest.fixture
def view(slivers: Slivers) -> Iterator[ProcView]:
    """A started lxcfs that is not supervised."""
    found = ProcView(slivers.config.node.run_dir)
    assert found.installed()
    if not found.answers():
        found.start()
    yield found
    slivers.end()
    found.kill()


def daemon(slivers: Slivers) -> int:
    return int((slivers.config.node.run_dir / "lxcfs.pid").read_text())


def uptime(init: int) -> float | int:
    """The content of a container's /proc/uptime, or the errno."""
    try:
        return float(Path(f"/proc/{init}/root/proc/uptime").read_text().split()[0])
    except OSError as error:
        return -(error.errno or 0)


def booted(slivers: Slivers, count: int = 1) -> list[int]:
    return [slivers.boot()[1] for _ in range(count)]


def test_a_container_sees_its_own(slivers: Slivers, view: ProcView) -> None:
    sliver = slivers.new(memory=96 * MIB, cpu=1.0)
    rc = "for one in meminfo uptime cpuinfo stat loadavg swaps; do cat /proc/$one > /root/$one; done; touch /root/done"
    root = make_root(slivers.root(sliver), rc=rc)
    init = slivers.start(sliver)
    eventually((root / "root/done").exists)
    text = {one: (root / "root" / one).read_text() for one in ("meminfo", "uptime", "cpuinfo", "stat", "loadavg")}
    node = float(Path("/proc/uptime").read_text().split()[0])
    assert text["meminfo"].split()[1] == str(96 * 1024)
    assert float(text["uptime"].split()[0]) < node
    assert text["cpuinfo"].count("processor") == 1
    assert len([line for line in text["stat"].splitlines() if line.startswith("cpu")]) == 2  # the sum and one
    assert device(Path(f"/proc/{init}/mountinfo"), "/proc/stat") is not None
    shown = Path(f"/proc/{init}/mountinfo").read_text()
    assert str(view.mount) not in shown, "the daemon's own mount point is nobody's to see"


def test_without_the_daemon_it_sees_the_nodes(slivers: Slivers, view: ProcView) -> None:
    """The control, and that a container starts all the same."""
    view.kill()
    sliver = slivers.new()
    root = make_root(slivers.root(sliver), rc="cat /proc/uptime > /root/uptime; touch /root/done")
    before = float(Path("/proc/uptime").read_text().split()[0])
    init = slivers.start(sliver)
    eventually((root / "root/done").exists)
    assert float((root / "root/uptime").read_text().split()[0]) >= before
    assert device(Path(f"/proc/{init}/mountinfo"), "/proc/stat") is None


def test_a_killed_daemon_comes_back_in_every_container(slivers: Slivers, view: ProcView) -> None:
    inits = booted(slivers, MANY)
    assert all(uptime(init) > 0 for init in inits)
    os.kill(daemon(slivers), signal.SIGKILL)
    eventually(lambda: uptime(inits[0]) == -errno.ENOTCONN)  # the control: it is not repaired
    with Runner(ProcViews(view, slivers.hypervisor.container_inits).chores()):
        eventually(lambda: all(uptime(init) > 0 for init in inits))
        os.kill(daemon(slivers), signal.SIGKILL)
        eventually(lambda: all(uptime(init) > 0 for init in inits))
    assert sorted(slivers.hypervisor.container_inits()) == sorted(inits), "none was started again"


def test_a_daemon_that_hangs_holds_nobody_up(slivers: Slivers, view: ProcView) -> None:
    sliver, init = slivers.boot(rc="while cat /proc/stat > /root/stat; do echo x >> /root/reads; sleep 0.1; done")
    _, other = slivers.boot()
    reads = slivers.root(sliver) / "root/reads"
    eventually(reads.exists)
    os.kill(daemon(slivers), signal.SIGSTOP)
    slivers.hypervisor.begin_kill([sliver.id])  # while a process of it waits for the daemon
    with Runner(ProcViews(view, slivers.hypervisor.container_inits).chores()):
        eventually(lambda: slivers.hypervisor.domain(sliver.id) is None)
        eventually(lambda: uptime(other) > 0)
    assert not Path(f"/proc/{init}").exists()


def test_the_daemon_has_few_rights(slivers: Slivers, view: ProcView) -> None:
    status = Path(f"/proc/{daemon(slivers)}/status").read_text()
    values = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    kept = sum(1 << number for number in KEPT)
    assert int(values["CapBnd"], 16) & ~kept == 0
    assert int(values["CapEff"], 16) & ~kept == 0
    assert values["NoNewPrivs"].strip() == "1"


def test_what_is_removed_is_gone(slivers: Slivers, view: ProcView) -> None:
    pid = daemon(slivers)
    view.remove()
    eventually(lambda: not Path(f"/proc/{pid}").exists())
    assert not view.mount.exists()
    assert device(Path("/proc/thread-self/mountinfo"), str(view.mount)) is None
    view.remove()  # nothing to do


def test_containers_that_never_had_it_stay_as_they_are(slivers: Slivers, view: ProcView) -> None:
    view.kill()
    without = booted(slivers)[0]
    view.start()
    having = booted(slivers)[0]
    os.kill(daemon(slivers), signal.SIGKILL)
    view.start()
    assert view.renew([without, having]) == [having]
    assert view.renew([without, having]) == []

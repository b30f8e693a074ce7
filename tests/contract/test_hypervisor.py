"""The behaviour of libvirt that slicemgr relies on: one suite over the `test:///` driver and real containers."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import FrameType
from xml.etree import ElementTree as ET

import demo
import pytest
from nodebox_box import Box
from tiny_sliver import Slivers, compile_launcher, eventually, in_box, make_root, outside

from slicemgr import names
from slicemgr.config import LibvirtConfig
from slicemgr.drivers.kernel import cgroup
from slicemgr.drivers.libvirt import processes
from slicemgr.drivers.libvirt.domain_xml import domain_xml
from slicemgr.drivers.libvirt.host import Host
from slicemgr.drivers.libvirt.hypervisor import Hypervisor
from slicemgr.errors import Code, Failed
from slicemgr.model import GIB, Sliver, SliverType

EMPTY_NODE = "<node></node>"  # a test driver without domains, for the type that is not under test


class Driver:
    """Makes domains of one libvirt driver."""

    type: SliverType
    hypervisor: Hypervisor

    def start(self, generation: int = 0) -> Sliver:
        raise NotImplementedError

    def foreign(self) -> str:
        """Start a domain that does not belong to slicemgr. Returns its name."""
        raise NotImplementedError


class TestDriver(Driver):
    """libvirt's `test:///`, in this process: virtual machines without anything in them."""

    __test__ = False
    type = SliverType.KVM

    def __init__(self, directory: Path, slivers: Slivers) -> None:
        empty = directory / "empty.xml"
        empty.write_text(EMPTY_NODE)
        self.hypervisor = Hypervisor(LibvirtConfig(lxc=f"test://{empty}", qemu="test:///default"))
        self.hypervisor.version(SliverType.KVM)
        self._slivers = slivers

    def start(self, generation: int = 0) -> Sliver:
        sliver = replace(self._slivers.new(), type=SliverType.KVM, generation=generation)
        self.hypervisor.create(SliverType.KVM, for_test_driver(sliver, self._slivers.place), GIB)
        return sliver

    def foreign(self) -> str:
        return "test"  # this driver always has one of that name


def for_test_driver(sliver: Sliver, place: Host) -> str:
    """The domain for the test driver, with the driver's type and security model."""
    domain = ET.fromstring(domain_xml(sliver, place))
    domain.set("type", "test")
    for label in domain.findall("seclabel"):
        domain.remove(label)
    return ET.tostring(domain, encoding="unicode")


class LxcDriver(Driver):
    """Real containers."""

    type = SliverType.LXC

    def __init__(self, slivers: Slivers) -> None:
        self.hypervisor = slivers.hypervisor
        self.slivers = slivers
        self._foreign: list[Sliver] = []

    def start(self, generation: int = 0) -> Sliver:
        sliver = replace(self.slivers.new(), generation=generation)
        make_root(self.slivers.root(sliver))
        self.slivers.start(sliver)
        return sliver

    def foreign(self) -> str:
        sliver = self.slivers.new()
        make_root(self.slivers.root(sliver))
        name = "somebody-elses"
        launch_dir = self.slivers.config.node.run_dir / "launch"

        def other(xml: str) -> str:
            (launch_dir / names.domain(sliver.id)).rename(launch_dir / name)
            return xml.replace(f"<name>{names.domain(sliver.id)}<", f"<name>{name}<")

        with pytest.raises(Failed, match="does not run"):
            self.slivers.start(sliver, edit=other)
        return name


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with in_box(f"hypervisor-{demo.CLONE}") as made:
        yield made


@pytest.fixture(scope="module")
def slivers(box: Box, tmp_path_factory: pytest.TempPathFactory) -> Slivers:
    directory = tmp_path_factory.mktemp("hypervisor")
    return Slivers(directory, compile_launcher(directory))


@pytest.fixture(params=["test", "lxc"])
def driver(request: pytest.FixtureRequest, slivers: Slivers, tmp_path: Path) -> Iterator[Driver]:
    made: Driver = TestDriver(tmp_path, slivers) if request.param == "test" else LxcDriver(slivers)
    yield made
    for sliver in made.hypervisor.domains():
        made.hypervisor.kill(sliver)
    slivers.end()


@pytest.fixture
def lxc(slivers: Slivers) -> Iterator[LxcDriver]:
    yield LxcDriver(slivers)
    slivers.end()


def test_a_domain_that_was_created_is_seen(driver: Driver) -> None:
    sliver = driver.start(generation=7)
    seen = driver.hypervisor.domains()
    assert set(seen) == {sliver.id}
    one = seen[sliver.id]
    assert (one.sliver, one.type, one.paused, one.generation) == (sliver.id, driver.type, False, 7)
    assert driver.hypervisor.domain(sliver.id) == one


def test_a_domain_that_does_not_run_is_none(driver: Driver) -> None:
    assert driver.hypervisor.domain(names.sliver_id(names.new_tag(), 0)) is None
    assert driver.hypervisor.domains() == {}


def test_domains_of_others_are_not_seen(driver: Driver) -> None:
    name = driver.foreign()
    sliver = driver.start()
    assert name not in {names.domain(one) for one in driver.hypervisor.domains()}
    assert set(driver.hypervisor.domains()) == {sliver.id}


def test_pause_and_resume(driver: Driver) -> None:
    sliver = driver.start()
    for _ in range(2):  # as after a call without an answer
        driver.hypervisor.pause(sliver.id)
    assert driver.hypervisor.domains()[sliver.id].paused
    seen = driver.hypervisor.domain(sliver.id)
    assert seen is not None
    assert seen.paused
    for _ in range(2):
        driver.hypervisor.resume(sliver.id)
    assert not driver.hypervisor.domains()[sliver.id].paused


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_domain_ends(driver: Driver, end: str, paused: bool) -> None:
    sliver = driver.start()
    if paused:
        driver.hypervisor.pause(sliver.id)
    if end == "kill":
        driver.hypervisor.kill(sliver.id)
        driver.hypervisor.kill(sliver.id)  # killing an ended domain is allowed
    else:
        assert driver.hypervisor.stop(sliver.id, grace=30)
        assert driver.hypervisor.stop(sliver.id, grace=30)
    assert driver.hypervisor.domain(sliver.id) is None
    assert driver.hypervisor.wait_gone(sliver.id, 0)


def test_waiting_for_what_runs_takes_its_time_and_says_no(driver: Driver) -> None:
    assert not driver.hypervisor.wait_gone(driver.start().id, 0.1)


def test_the_same_sliver_may_start_again_with_a_newer_generation(driver: Driver) -> None:
    sliver = driver.start()
    driver.hypervisor.kill(sliver.id)
    newer = replace(sliver, generation=1)
    if isinstance(driver, LxcDriver):
        driver.slivers.start(newer)
    else:
        driver.hypervisor.create(SliverType.KVM, for_test_driver(newer, driver._slivers.place), GIB)  # type: ignore[attr-defined]
    assert driver.hypervisor.domains()[sliver.id].generation == 1


def test_changes_are_told_by_sliver(driver: Driver) -> None:
    told: list[str] = []
    driver.hypervisor.on_change(told.append)
    sliver = driver.start()
    eventually(lambda: told == [sliver.id])
    driver.hypervisor.kill(sliver.id)
    eventually(lambda: told == [sliver.id, sliver.id])


def test_a_domain_that_libvirt_refuses_is_an_error_that_says_why(driver: Driver) -> None:
    with pytest.raises(Failed, match="libvirt could not start the domain"):
        driver.hypervisor.create(driver.type, "<domain type='nonsense'/>", GIB)


def test_the_version(driver: Driver) -> None:
    assert driver.hypervisor.version(driver.type).startswith("libvirt ")


def test_the_number_of_calls_does_not_grow_with_the_domains(driver: Driver) -> None:
    def calls() -> int:
        driver.hypervisor.domains()  # new domains are read once
        count = 0

        def profile(_frame: FrameType, event: str, function: object) -> None:
            nonlocal count
            local = ("virDomainGetName", "virDomainGetID", "virDomainFree")  # answered by the library itself
            if event == "c_call" and getattr(function, "__module__", "") == "libvirtmod":
                count += getattr(function, "__name__", "") not in local

        sys.setprofile(profile)
        try:
            driver.hypervisor.domains()
        finally:
            sys.setprofile(None)
        return count

    driver.start()
    few = calls()
    for _ in range(5):
        driver.start()
    assert len(driver.hypervisor.domains()) == 6
    assert 0 < calls() <= few


def test_no_libvirtd_is_said_as_such() -> None:
    away = Hypervisor(LibvirtConfig(lxc="lxc:///system?socket=/nowhere/sock"))
    for call in (away.domains, lambda: away.domain("x"), lambda: away.version(SliverType.LXC)):
        with pytest.raises(Failed) as caught:
            call()
        assert caught.value.code is Code.UNAVAILABLE


# real containers only


def test_that_no_machine_runs_is_not_said_by_a_driver_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty.xml"
    empty.write_text(EMPTY_NODE)
    nobody = f"qemu+unix:///system?socket={tmp_path}/nobody"
    monkeypatch.setattr(processes, "QEMU_DIR", tmp_path)
    hypervisor = Hypervisor(LibvirtConfig(lxc=f"test://{empty}", qemu=nobody))
    assert hypervisor.domains() == {}
    note = tmp_path / "sm-k3wz8n2q-0.pid"
    note.write_text("1")
    with pytest.raises(Failed, match="libvirt does not answer for kvm"):
        hypervisor.domains()
    note.rename(tmp_path / "somebody.pid")
    assert hypervisor.domains() == {}


def test_containers_outlive_libvirtd(box: Box, lxc: LxcDriver) -> None:
    sliver = lxc.start(generation=3)
    before = lxc.hypervisor.domain(sliver.id)
    with outside(box):
        box.libvirtd("kill")
    try:
        eventually(lambda: _unavailable(lambda: lxc.hypervisor.domains()))
    finally:
        with outside(box):
            box.libvirtd("start")
    eventually(lambda: not _unavailable(lambda: lxc.hypervisor.domains()))
    assert lxc.hypervisor.domain(sliver.id) == before
    told: list[str] = []
    lxc.hypervisor.on_change(told.append)
    lxc.hypervisor.kill(sliver.id)
    eventually(lambda: sliver.id in told)  # events come over the new connection as well


def test_one_whose_end_libvirtd_missed_can_be_started_again(box: Box, lxc: LxcDriver) -> None:
    """It stays in libvirt's list, shut off, and blocks its successor."""
    sliver = lxc.start()
    seen = lxc.hypervisor.domain(sliver.id)
    assert seen is not None
    with outside(box):
        box.libvirtd("kill")
    try:
        os.kill(seen.pid, signal.SIGKILL)
        eventually(lambda: not Path(f"/proc/{seen.pid}").exists())
    finally:
        with outside(box):
            box.libvirtd("start")
    eventually(lambda: not _unavailable(lambda: lxc.hypervisor.domains()))
    assert lxc.hypervisor.domain(sliver.id) is None
    lxc.slivers.start(sliver)
    again = lxc.hypervisor.domain(sliver.id)
    assert again is not None and again.pid != seen.pid


def _unavailable(call: Callable[[], object]) -> bool:
    try:
        call()
    except Failed as error:
        assert error.code is Code.UNAVAILABLE
        return True
    return False


def test_a_hung_libvirtd_does_not_hang_us(box: Box, slivers: Slivers, lxc: LxcDriver) -> None:
    sliver = lxc.start()
    with outside(box):
        pid = box.facts().libvirtd
    assert pid is not None
    connected = Hypervisor(replace(slivers.config.libvirt, call_timeout=timedelta(seconds=3)))
    assert set(connected.domains()) == {sliver.id}
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(Failed) as caught:
            connected.domains()
        assert caught.value.code is Code.UNAVAILABLE
        fresh = Hypervisor(replace(slivers.config.libvirt, call_timeout=timedelta(seconds=0.5)))
        with pytest.raises(Failed, match=r"no answer in 0\.5 s") as caught:  # nor when the connection is new
            fresh.domains()
        assert caught.value.code is Code.UNAVAILABLE
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: not _unavailable(fresh.domains))
    assert set(fresh.domains()) == {sliver.id} == set(connected.domains())


def test_a_dead_controller_takes_its_container_along(lxc: LxcDriver) -> None:
    sliver = lxc.start()
    seen, init = lxc.hypervisor.domain(sliver.id), lxc.hypervisor.init_pid(sliver.id)
    assert seen is not None
    os.kill(seen.pid, signal.SIGKILL)
    lxc.hypervisor.kill(sliver.id)
    assert lxc.hypervisor.domain(sliver.id) is None
    eventually(lambda: not _running(init))


def _running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_domains_that_are_killed_at_once_go(lxc: LxcDriver) -> None:
    """libvirt_lxc misses the death of an init that ends before it handles signals."""
    for _ in range(10):
        sliver = lxc.slivers.new()
        make_root(lxc.slivers.root(sliver))
        lxc.slivers.start(sliver)
        lxc.hypervisor.kill(sliver.id)
        assert lxc.hypervisor.domain(sliver.id) is None


def test_many_come_and_go_at_once(lxc: LxcDriver) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: lxc.start(), range(8)))
        assert set(lxc.hypervisor.domains()) == {one.id for one in made}
        list(pool.map(lambda one: lxc.hypervisor.kill(one.id), made))
    assert lxc.hypervisor.domains() == {}


def test_many_can_be_killed_in_one_go(lxc: LxcDriver) -> None:
    made, spared = [lxc.start() for _ in range(3)], lxc.start()
    lxc.hypervisor.begin_kill([*(one.id for one in made), "unknown-0"])
    for one in made:
        assert lxc.hypervisor.wait_gone(one.id, 30)
    assert set(lxc.hypervisor.domains()) == {spared.id}


def test_the_group_of_a_container_that_ends_has_no_controller(lxc: LxcDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """libvirtd waits for what is in there: in a group that still has it, as before, each end takes 0.2 s longer."""
    sliver = lxc.start()
    seen = lxc.hypervisor.domain(sliver.id)
    assert seen is not None
    assert cgroup.own_group(sliver.id, seen.pid, "cpu") is not None
    killed: list[int] = []
    monkeypatch.setattr(processes, "send_signal", lambda pid, number: killed.append(pid))
    init = lxc.hypervisor.init_pid(sliver.id)
    for _ in range(2):
        lxc.hypervisor.begin_kill([sliver.id])
        assert cgroup.own_group(sliver.id, seen.pid, "cpu") is None
        assert cgroup.group_of(seen.pid, "cpu").name == "machine"
    assert killed == [init, init]
    assert cgroup.own_group(sliver.id, init, "cpu") is not None, "its processes keep their limits to the end"


def test_a_sliver_that_ignores_the_shutdown_is_ended_by_force(lxc: LxcDriver) -> None:
    sliver = lxc.start()
    os.kill(lxc.hypervisor.init_pid(sliver.id), signal.SIGSTOP)  # from outside: PID 1 stops, and hears nothing
    assert not lxc.hypervisor.stop(sliver.id, grace=0.2)
    assert lxc.hypervisor.domain(sliver.id) is None


def test_threads_do_not_pile_up(lxc: LxcDriver) -> None:
    lxc.hypervisor.domains()
    before = threading.active_count()
    for _ in range(5):
        lxc.hypervisor.domains()
    assert threading.active_count() <= before

"""Changing the size of a machine with a device virtio-mem, with guests that follow, partly follow or do not."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.etree import ElementTree as ET

import pytest
from test_guest_memory import FULL, TOTAL, Setting, setting

from slicemgr.drivers.libvirt import virtio_mem
from slicemgr.errors import Failed
from slicemgr.store import tables as t

__all__ = ["setting"]  # a fixture
MIB = 1024  # KiB
BASE, DEVICE, OVERHEAD = 512 * MIB, 1536 * MIB, 256 * MIB
DOMAIN = """<domain><cpu><numa><cell id='0' memory='{base}' unit='KiB'/></numa></cpu><devices>
<memory model='virtio-mem'><target><size unit='KiB'>{device}</size><requested unit='KiB'>{requested}</requested>
<current unit='KiB'>{plugged}</current></target></memory></devices></domain>"""


@dataclass
class Domain:
    """A domain of libvirt whose guest moves by `pace` at each reading, and plugs at least `keeps` and at most `takes`.

    most: the greatest difference between what the guest holds with QEMU's overhead, and the limit.
    """

    keeps: int = 0
    takes: int = DEVICE
    online: bool = True
    reports: bool = True
    balloon: bool = True
    requested: int = 0
    plugged: int = 0
    left: int = BASE
    target: int = BASE
    limit: int = BASE + OVERHEAD
    beyond: int = 0
    calls: list[str] = field(default_factory=list)
    seconds: int = 0

    def _move(self) -> None:
        goal = max(self.keeps if self.plugged >= self.keeps else 0, min(self.requested, self.takes))
        self.plugged += max(-64 * MIB, min(64 * MIB, goal - self.plugged))
        if self.balloon:
            self.left += max(-64 * MIB, min(64 * MIB, self.target - self.left))
        self.beyond = max(self.beyond, self.left + self.plugged + OVERHEAD - self.limit)

    def XMLDesc(self) -> str:
        self._move()
        return DOMAIN.format(base=BASE, device=DEVICE, requested=self.requested, plugged=self.plugged)

    def updateDeviceFlags(self, xml: str, flags: int) -> None:
        assert flags == 1
        self.requested = int(ET.fromstring(xml).findtext("target/requested", ""))
        self.calls.append(f"request {self.requested // MIB}")

    def setMemoryFlags(self, memory: int, flags: int) -> None:
        assert flags == 1 and memory <= BASE
        self.target = memory

    def memoryStats(self) -> dict[str, int]:
        self._move()
        self.seconds += 1
        stats = {"actual": self.left}
        if self.reports:
            used = self.plugged if self.online else 0
            stats |= {"available": self.left + used * 63 // 64 - 40 * MIB, "last_update": self.seconds}
        return stats

    def memoryParameters(self, flags: int) -> dict[str, int]:
        return {"hard_limit": self.limit}

    def setMemoryParameters(self, values: dict[str, int], flags: int) -> None:
        self.limit = values["hard_limit"]
        self.calls.append(f"limit {self.limit // MIB}")

    def setMemoryStatsPeriod(self, seconds: int, flags: int) -> None:
        self.calls.append(f"period {seconds}")

    @property
    def holds(self) -> int:
        return self.left + self.plugged


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtio_mem, "_PATIENCE", 0.02)
    monkeypatch.setattr(virtio_mem, "_PAUSE", 0.0005)


def resize(domain: Domain, memory: int) -> None:
    size = virtio_mem.read(domain)
    assert size is not None
    virtio_mem.resize(domain, size, memory, OVERHEAD)


def test_the_limit_rises_before_the_guest_gets_memory_and_falls_after_it_gave_it_back() -> None:
    domain = Domain()
    resize(domain, 1024 * MIB)
    assert domain.calls == ["limit 1280", "period 1", "request 512", "period 10", "limit 1280"]
    assert domain.holds == 1024 * MIB
    domain.calls.clear()
    resize(domain, 300 * MIB)
    assert domain.calls == ["request 0", "limit 556"]
    assert (domain.plugged, domain.left) == (0, 300 * MIB)
    resize(domain, BASE + DEVICE)
    assert (domain.plugged, domain.left) == (DEVICE, BASE), "the balloon leaves all again"
    assert domain.beyond <= 0


def test_a_size_between_two_steps_is_rounded_down() -> None:
    domain = Domain()
    resize(domain, 515 * MIB)
    assert domain.holds == BASE and domain.limit == 515 * MIB + OVERHEAD
    resize(domain, 519 * MIB)
    assert domain.holds == 516 * MIB


@pytest.mark.parametrize("reports", [True, False])
def test_a_guest_without_the_driver_keeps_what_it_has(reports: bool) -> None:
    domain = Domain(takes=0, reports=reports)
    with pytest.raises(Failed, match="does not take more memory") as error:
        resize(domain, 1024 * MIB)
    assert "virtio_mem" in error.value.hint and "stop and start" in error.value.hint
    assert (domain.requested, domain.limit, domain.holds) == (0, BASE + OVERHEAD, BASE)
    resize(domain, BASE)
    assert domain.beyond <= 0


def test_a_guest_that_does_not_use_what_it_plugged() -> None:
    domain = Domain(online=False)
    with pytest.raises(Failed, match="does not use") as error:
        resize(domain, 1024 * MIB)
    assert "auto_online_blocks" in error.value.hint
    assert (domain.requested, domain.plugged, domain.limit) == (0, 0, BASE + OVERHEAD)
    silent = Domain(online=False, reports=False)
    resize(silent, 1024 * MIB)
    assert silent.plugged == 512 * MIB, "what a guest does not report is not known"


def test_after_a_failure_the_limit_is_not_below_what_the_guest_keeps() -> None:
    """A guest that plugs a part and does not give it back holds no more than its row allows."""
    domain = Domain(takes=256 * MIB, keeps=192 * MIB)
    with pytest.raises(Failed):
        resize(domain, 1024 * MIB)
    assert domain.requested == 0 and domain.plugged == 192 * MIB
    assert domain.limit == BASE + 192 * MIB + OVERHEAD < 1024 * MIB + OVERHEAD
    assert domain.beyond <= 0


def test_the_balloon_takes_what_a_guest_does_not_unplug() -> None:
    domain = Domain()
    resize(domain, 1024 * MIB)
    domain.keeps = 6 * MIB
    resize(domain, BASE)
    assert (domain.plugged, domain.left, domain.limit) == (6 * MIB, BASE - 6 * MIB, BASE + OVERHEAD)
    domain.keeps = 0
    resize(domain, 600 * MIB)
    assert domain.holds == 600 * MIB and domain.left == BASE
    assert domain.beyond <= 0


@pytest.mark.parametrize("balloon", [True, False])
def test_a_guest_that_gives_nothing_back_keeps_limit_and_memory(balloon: bool) -> None:
    """Also if the balloon would have to take all that the guest started with."""
    domain = Domain()
    resize(domain, 1200 * MIB)
    domain.keeps, domain.balloon = domain.plugged, balloon
    with pytest.raises(Failed, match="does not give its memory back"):
        resize(domain, 400 * MIB)
    assert (domain.requested, domain.limit) == (688 * MIB, 1200 * MIB + OVERHEAD)
    assert domain.holds == 1200 * MIB and domain.beyond <= 0


def test_a_guest_that_started_again_without_the_driver_can_be_made_smaller() -> None:
    domain = Domain(takes=0, requested=512 * MIB, limit=1024 * MIB + OVERHEAD)
    resize(domain, 768 * MIB)
    assert (domain.requested, domain.limit) == (256 * MIB, 768 * MIB + OVERHEAD)


def test_what_an_agent_began_is_completed_or_undone_by_the_next() -> None:
    begun = {"requested": 512 * MIB, "plugged": 128 * MIB, "limit": 1024 * MIB + OVERHEAD}
    domain = Domain(**begun)  # type: ignore[arg-type]
    resize(domain, 1024 * MIB)
    assert domain.holds == 1024 * MIB
    domain = Domain(**begun)  # type: ignore[arg-type]
    resize(domain, BASE)
    assert (domain.requested, domain.holds, domain.limit) == (0, BASE, BASE + OVERHEAD)


def test_more_than_the_device_has() -> None:
    domain = Domain()
    with pytest.raises(Failed, match="started with less memory"):
        resize(domain, BASE + DEVICE + MIB)
    assert domain.calls == []


def test_a_machine_without_the_device() -> None:
    class Plain:
        def XMLDesc(self) -> str:
            return "<domain><devices/></domain>"

    assert virtio_mem.read(Plain()) is None


def test_a_machine_that_has_plugged_memory_is_left_alone_by_the_memory_controller(setting: Setting) -> None:
    """In the control, it has plugged none."""
    plugged = [True]
    setting.fake.has_plugged = lambda sliver: plugged[0]  # type: ignore[attr-defined]
    with setting.controller.store.write() as c:
        c.execute(t.slivers.update().values(memory_max=2 * FULL))
    setting.available = TOTAL // 20
    setting.run(30)
    assert setting.fake.current == FULL
    plugged[0] = False
    setting.run(30)
    assert setting.fake.current < FULL
    plugged[0], setting.available = True, TOTAL
    setting.run(3)
    asked = setting.fake.asked
    setting.run(30)
    assert setting.fake.asked == asked, "it is not read again and again while it has plugged memory"


def test_a_machine_that_libvirt_does_not_show_now_is_not_forgotten(setting: Setting) -> None:
    def fails(sliver: str) -> bool:
        raise Failed("its QEMU does not answer")

    setting.fake.has_plugged = lambda sliver: False  # type: ignore[attr-defined]
    with setting.controller.store.write() as c:
        c.execute(t.slivers.update().values(memory_max=2 * FULL))
    setting.available = TOTAL // 20
    setting.run(20)
    setting.available, setting.fake.has_plugged = TOTAL, fails  # type: ignore[attr-defined]
    setting.run(5)
    assert setting.fake.current < FULL
    setting.fake.has_plugged = lambda sliver: False  # type: ignore[attr-defined]
    setting.run(3)
    assert setting.fake.current == FULL

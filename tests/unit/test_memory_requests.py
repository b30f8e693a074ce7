"""Machines that get more memory while they run: requests, domains and rows. Their resize is in test_virtio_mem."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from bare_service import ADMIN, FACTS, SHA, Service
from hypothesis import given
from hypothesis import strategies as st
from test_domain_xml import PLACE, sliver

from slicemgr import sliver_record
from slicemgr.drivers.libvirt import machine_xml
from slicemgr.drivers.libvirt.domain_xml import domain_xml
from slicemgr.errors import Code, Refused
from slicemgr.model import GIB, KIB, MIB, Boot, BootFacts, Limits, Machine, Phase, Sliver, SliverType
from slicemgr.policy import fact_forms, mirror
from slicemgr.service.slices import limit_changes, slices
from slicemgr.service.views import slices as slice_views
from slicemgr.store import memory_promises, pending
from slicemgr.store import tables as t

ABLE = {
    **FACTS,
    "kinds": {"lxc": True, "kvm": True},
    "machines": {"standard": True, "thin": True},
    "memory_max": True,
}
GROWS = {"type": "kvm", "memory": "512M", "memory_max": "2G"}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, facts=ABLE) as made:
        yield made


def machine(memory: int, most: int | None, cpu: float = 1.0, **values: Any) -> Sliver:
    limits = Limits(memory=memory, disk=GIB, pids=0, cpu=cpu, memory_max=most)
    return dataclasses.replace(sliver(SliverType.KVM), limits=limits, **values)


# --- requests -------------------------------------------------------------------------------------------------------


def test_what_was_requested_is_shown_and_does_not_count(service: Service) -> None:
    service.create("grows", **GROWS)
    service.create("plain", type="kvm", memory="512M")
    with service.store.read() as c:
        limits = [slice_views.slice(c, name)["slivers"][0]["limits"] for name in ("grows", "plain")]
        assert [one["memory_max"] for one in limits] == [2 * GIB, None]
        assert {one["memory"] for one in limits} == {512 * MIB}
        given_memory = c.execute(t.allocations.select()).mappings().first()
        assert given_memory is not None and given_memory["memory"] == 2 * 512 * MIB
        assert [one.grows for one in memory_promises.of_node(c, service.config.node.name)] == [True, False]
    first = service.rows()[0].sliver
    assert first.limits.memory_max == 2 * GIB
    record = json.loads(json.dumps(sliver_record.to_json(first)))
    assert sliver_record.from_json(record).limits == first.limits
    del record["limits"]["memory_max"]  # as an earlier version wrote it
    assert sliver_record.from_json(record).limits.memory_max is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({**GROWS, "type": "lxc"}, "can always grow"),
        ({**GROWS, "memory_max": "511M"}, "less than the memory limit"),
        ({**GROWS, "memory_max": "much"}, "is not a size"),
        ({**GROWS, "memory_max": "9G"}, "exceed the memory of node"),
        ({**GROWS, "machine": "thin", "image": "thin"}, "has no bus"),
        ({**GROWS, "image": "old"}, "has 32 bits"),
    ],
)
def test_a_request_that_cannot_be_met(service: Service, fields: dict[str, Any], words: str) -> None:
    boot = {"bios": True, "uefi": False, "kernel": "/boot/k", "initrd": "", "root": "root=/dev/vda1"}
    service.add_image("cd" * 32, "thin", boot={**boot, "bios": False, "mmio": True})
    service.add_image("ef" * 32, "old", boot=boot)
    with service.store.write() as c:
        c.execute(t.images.update().where(t.images.c.name == "old").values(arch="i686"))
    with pytest.raises(Refused, match=words) as error:
        service.create(**fields)
    assert (error.value.code, error.value.field, service.count("slices")) == (Code.INVALID, "memory_max", 0)


def test_the_control_thin_hardware_with_a_bus(service: Service) -> None:
    service.create("thin", **GROWS, machine="thin")
    assert service.rows()[0].sliver.machine is Machine.THIN


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"memory_max": False, "memory_max_reason": "its QEMU is old"}, "its QEMU is old"),
        ({}, "its agent is of an earlier version"),
    ],
)
def test_a_node_that_cannot(tmp_path: Path, facts: dict[str, Any], words: str) -> None:
    with Service(tmp_path, facts={**FACTS, "kinds": {"lxc": True, "kvm": True}, **facts}) as service:
        with pytest.raises(Refused, match=words) as error:
            service.create(**GROWS)
        assert error.value.field == "memory_max"
        service.create(type="kvm", memory="512M")


def test_facts_of_another_form_are_dropped_and_nodes_get_the_column() -> None:
    assert fact_forms.known({"memory_max": "yes", "memory_max_reason": 5}) == {}
    assert fact_forms.known({"memory_max": True}) == {"memory_max": True}
    assert "memory_max" in mirror.BY_NAME["slivers"].centre


# --- resize ---------------------------------------------------------------------------------------------------------


def resize(service: Service, name: str, memory: str) -> None:
    limit_changes.resize(service.store, service.config, name, limit_changes.read({"memory": memory}), ADMIN)


def start(service: Service, memory: int) -> None:
    """Record that all machines run, and with how much they started."""
    for row in service.rows():
        service.record(pending.SliverSeen(row.sliver.id, Phase.RUNNING, memory_started=memory))


def test_a_running_machine_gets_its_most_and_others_are_refused_with_a_hint(service: Service) -> None:
    service.create("grows", **GROWS)
    service.create("plain", type="kvm", memory="512M")
    with pytest.raises(Refused, match="not known with how much"):
        resize(service, "grows", "1G")
    start(service, 512 * MIB)
    resize(service, "grows", "2G")
    with pytest.raises(Refused, match="its memory_max is 2") as error:
        resize(service, "grows", "2049M")
    assert (error.value.code, error.value.field) == (Code.CONFLICT, "memory")
    assert "slicectl stop grows" in error.value.hint and "--memory-max" not in error.value.hint
    with pytest.raises(Refused, match="it started with 512 MiB") as error:
        resize(service, "plain", "513M")
    assert "slicectl stop plain" in error.value.hint and "--memory-max" in error.value.hint


def test_a_stopped_machine_may_start_with_more_than_its_most(service: Service) -> None:
    """It then gets no more while it runs."""
    service.create("grows", **GROWS)
    start(service, 512 * MIB)
    slices.act(service.store, service.config, "grows", "stop", ADMIN)
    resize(service, "grows", "3G")
    limits = service.rows()[0].sliver.limits
    assert (limits.memory, machine_xml.growth(service.rows()[0].sliver)) == (3 * GIB, 0)
    with service.store.write() as c:
        c.execute(t.slivers.update().values(desired="running"))
    start(service, 3 * GIB)
    with pytest.raises(Refused, match=r"it started with 3"):
        resize(service, "grows", "3073M")


def test_what_is_resized_counts(service: Service) -> None:
    service.create("grows", **GROWS)
    start(service, 512 * MIB)
    resize(service, "grows", "2G")
    with service.store.read() as c:
        row = c.execute(t.allocations.select()).mappings().first()
        assert row is not None and row["memory"] == 2 * GIB
    assert service.rows()[0].sliver.image == SHA


# --- domains --------------------------------------------------------------------------------------------------------


@given(st.integers(16, 4096), st.integers(0, 8192), st.floats(0.1, 8))
def test_a_domain_has_room_for_its_most(memory: int, more: int, cpu: float) -> None:
    most = (memory + more) * MIB
    domain = ET.fromstring(domain_xml(machine(memory * MIB, most, cpu), PLACE))
    device = domain.find("devices/memory")
    if not more:
        assert device is None and domain.find("maxMemory") is None
        return
    assert device is not None and device.get("model") == "virtio-mem"
    size = int(device.findtext("target/size", "")) * KIB
    assert memory * MIB + size >= most and size % machine_xml.GROWTH_BLOCK == 0
    assert device.findtext("target/requested") == "0"
    (cell,) = domain.findall("cpu/numa/cell")
    assert int(cell.get("memory", "")) * KIB == memory * MIB == int(domain.findtext("currentMemory", "")) * KIB
    assert int(domain.findtext("maxMemory", "")) * KIB == memory * MIB + size
    vcpus = int(domain.findtext("vcpu", ""))
    assert cell.get("cpus") == ("0" if vcpus == 1 else f"0-{vcpus - 1}")


def test_without_it_nothing_changes() -> None:
    """A maximum that a machine already has from its start changes nothing either."""
    plain = domain_xml(machine(512 * MIB, None), PLACE)
    assert domain_xml(machine(512 * MIB, 512 * MIB), PLACE) == plain
    assert domain_xml(machine(512 * MIB, 256 * MIB), PLACE) == plain
    assert "numa" not in plain and "maxMemory" not in plain


def test_the_kernel_that_the_node_boots_gets_its_options() -> None:
    facts: dict[str, Any] = {"boot": Boot.DIRECT, "boot_facts": BootFacts(kernel="/boot/k", root="root=/dev/vda1")}
    lines = [domain_xml(machine(512 * MIB, most, **facts), PLACE) for most in (2 * GIB, None)]
    options = [ET.fromstring(one).findtext("os/cmdline", "") for one in lines]
    assert options[0] == f"{options[1]} swiotlb=2048 memhp_default_state=online"

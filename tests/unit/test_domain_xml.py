"""Properties that the domain of every sliver must have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicemgr import names
from slicemgr.drivers.libvirt import capabilities
from slicemgr.drivers.libvirt.domain_xml import NAMESPACE, domain_xml
from slicemgr.drivers.libvirt.host import CPU_PERIOD, Acceleration, Host
from slicemgr.model import GIB, MIB, Boot, BootFacts, Desired, Limits, Machine, PortBlock, Sliver, SliverType

PLACE = Host(root=Path("/run/slicemgr/root"), launcher=Path("/l"), init_dir=Path("/i"), gateway="169.254.1.1")


def sliver(
    sliver_type: SliverType = SliverType.LXC, index: int = 0, generation: int = 0, cpu: float = 1.0, name: str = "exp"
) -> Sliver:
    return Sliver(
        id=names.sliver_id("k3wz8n2q", index),
        serial=1,
        tag="k3wz8n2q",
        slice_name=name,
        index=index,
        type=sliver_type,
        desired=Desired.RUNNING,
        image="ab" * 32,
        arch="x86_64",
        address="10.77.0.9",
        ports=PortBlock(10000, 20),
        uid_first=3_000_000,
        limits=Limits(memory=512 * MIB, disk=GIB, pids=512, cpu=cpu),
        ssh_keys=(),
        generation=generation,
    )


@given(st.sampled_from(SliverType), st.integers(0, names.MAX_INDEX), st.integers(0, 10**6), st.floats(0.01, 64))
def test_every_domain_carries_its_sliver_and_its_limits(
    sliver_type: SliverType, index: int, generation: int, cpu: float
) -> None:
    wanted = sliver(sliver_type, index, generation, cpu)
    domain = ET.fromstring(domain_xml(wanted, PLACE))

    assert names.sliver_of_domain(domain.findtext("name", "")) == wanted.id
    mark = domain.find(f"metadata/{{{NAMESPACE}}}sliver")
    assert mark is not None
    assert (mark.get("id"), mark.get("generation")) == (wanted.id, str(generation))
    assert int(domain.findtext("memory", "")) * 1024 == wanted.limits.memory
    if sliver_type is SliverType.LXC:
        assert int(domain.findtext("memtune/hard_limit", "")) * 1024 == wanted.limits.memory
    quota = domain.findtext("cputune/quota") or domain.findtext("cputune/global_quota") or ""
    assert int(quota) == round(cpu * CPU_PERIOD)
    assert int(domain.findtext("vcpu", "")) >= cpu
    link = domain.find("devices/interface/target")
    assert link is not None
    assert names.sliver_of_link(link.get("dev", "")) == wanted.id


def test_a_machine_is_its_own_user_and_reads_nothing_in_a_probed_format() -> None:
    domain = ET.fromstring(domain_xml(sliver(SliverType.KVM), PLACE))
    assert domain.findtext("seclabel/label") == "+3000000:+0"
    disk = domain.find("devices/disk")
    assert disk is not None
    formats = [one.get("type") for one in (*disk.findall("driver"), *disk.findall("backingStore/format"))]
    assert formats == ["qcow2", "qcow2"]
    assert disk.find("backingStore/backingStore") is not None, "the chain ends here, whatever the image says"
    assert {one.get("relabel") for one in domain.findall("devices//seclabel")} == {"no"}


def test_a_container_is_never_root_on_the_host() -> None:
    domain = ET.fromstring(domain_xml(sliver(), PLACE))
    for kind in ("uid", "gid"):
        mapping = domain.find(f"idmap/{kind}")
        assert mapping is not None
        assert mapping.attrib == {"start": "0", "target": "3000000", "count": "65536"}
    assert domain.findtext("devices/emulator") == "/l"


def test_what_the_tenant_chose_is_quoted() -> None:
    place = Host(root=Path("/a&b<c"), launcher=Path("/l"), init_dir=Path("/i"), gateway="169.254.1.1")
    domain = ET.fromstring(domain_xml(sliver(name="<x>&"), place))
    assert domain.find("devices/filesystem/source[@dir='/a&b<c']") is not None


def test_capabilities_are_denied_but_for_the_kept_ones() -> None:
    features = ET.fromstring(domain_xml(sliver(), PLACE)).find("features/capabilities")
    assert features is not None
    assert features.get("policy") == "deny"
    assert [(one.tag, one.get("state")) for one in features] == [(name, "on") for name in capabilities.KEPT]


def test_the_papers_four_are_gone_and_every_kept_one_has_a_reason() -> None:
    assert not {"sys_boot", "sys_admin", "sys_module", "mknod"} & set(capabilities.KEPT)
    assert all(reason for _, reason in capabilities.KEPT.values())
    assert capabilities.bounding_set() == 0xA00435FB


@pytest.mark.parametrize(("bounding", "excess"), [(0xA00435FB, 0), (0x200435FB, 0), (0x1A00435FB, 1 << 32)])
def test_excess_is_what_should_have_been_dropped(bounding: int, excess: int) -> None:
    assert capabilities.excess(bounding) == excess


def test_the_numbers_are_the_kernels() -> None:
    header = Path("/usr/include/linux/capability.h").read_text()
    for name, (number, _) in capabilities.KEPT.items():
        assert f"#define CAP_{name.upper()}" in header
        line = next(line for line in header.splitlines() if line.split()[:2] == ["#define", f"CAP_{name.upper()}"])
        assert int(line.split()[2]) == number


@pytest.mark.parametrize(
    ("machine", "mmio", "acceleration", "rate", "given"),
    [
        (Machine.THIN, True, Acceleration.EMULATION, 2_000_000, True),
        (Machine.THIN, True, Acceleration.EMULATION, 0, False),
        (Machine.THIN, True, Acceleration.KVM, 2_000_000, False),
        (Machine.THIN, False, Acceleration.EMULATION, 2_000_000, False),
        (Machine.STANDARD, True, Acceleration.EMULATION, 2_000_000, False),
    ],
)
def test_a_kernel_that_cannot_measure_the_counter_is_given_its_rate(
    machine: Machine, mmio: bool, acceleration: Acceleration, rate: int, given: bool
) -> None:
    facts = BootFacts(kernel="/boot/k", root="root=/dev/vda1", mmio=mmio)
    wanted = replace(sliver(SliverType.KVM), boot=Boot.DIRECT, machine=machine, boot_facts=facts)
    place = replace(PLACE, acceleration=acceleration, counter_rate=rate)
    words = ET.fromstring(domain_xml(wanted, place)).findtext("os/cmdline", "").split()
    assert ({"tsc_early_khz=2000000", "tsc=reliable"} <= set(words)) is given
    assert any(word.startswith("tsc") for word in words) is given

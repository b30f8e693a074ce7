"""Thin machines: what a request may ask for, where they run, and what each part keeps of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bare_service import ADMIN, FACTS, Service

from slicemgr import sliver_record
from slicemgr.builder import guest_kernel
from slicemgr.drivers.importer import boot_loader, disk_image
from slicemgr.errors import Code, Refused
from slicemgr.hub import updates
from slicemgr.model import Boot, BootFacts, Machine
from slicemgr.policy import mirror
from slicemgr.service.slices import consoles
from slicemgr.service.views import slices as slice_views

ABLE = {**FACTS, "kinds": {"lxc": True, "kvm": True}, "machines": {"standard": True, "thin": True}}
FIRMWARE_ONLY = "cd" * 32


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path, facts=ABLE) as made:
        yield made


def show(service: Service, name: str) -> dict[str, Any]:
    with service.store.read() as c:
        return slice_views.slice(c, name)


def test_a_slice_has_the_machine_that_was_requested(service: Service) -> None:
    service.create("plain", type="kvm")
    service.create("thin", type="kvm", machine="thin")
    service.create("box")
    shown = [(show(service, name)["machine"], show(service, name)["boot"]) for name in ("plain", "thin", "box")]
    assert shown == [("standard", "bios"), ("thin", "direct"), (None, None)]
    assert [row.sliver.machine for row in service.rows()[:2]] == [Machine.STANDARD, Machine.THIN]


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"type": "kvm", "machine": "fat"}, "machine", "is unknown"),
        ({"type": "kvm", "machine": 1}, "machine", "is unknown"),
        ({"machine": "thin"}, "machine", "a container has no hardware of its own"),
        ({"type": "kvm", "machine": "thin", "boot": "uefi"}, "boot", "a thin machine has no firmware"),
        ({"type": "kvm", "machine": "thin", "image": "firmware"}, "machine", "has no kernel for a thin machine"),
    ],
)
def test_a_request_that_is_wrong(service: Service, fields: dict[str, Any], field: str, words: str) -> None:
    service.add_image(
        FIRMWARE_ONLY, "firmware", boot={"bios": True, "uefi": False, "kernel": "", "initrd": "", "root": ""}
    )
    with pytest.raises(Refused, match=words) as error:
        service.create(**fields)
    assert (error.value.code, error.value.field, service.count("slices")) == (Code.INVALID, field, 0)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"machines": {"thin": False}, "machines_reason": "its QEMU is old"}, "its QEMU is old"),
        ({}, "its agent is of an earlier version"),
    ],
)
def test_a_node_that_cannot(tmp_path: Path, facts: dict[str, Any], words: str) -> None:
    with Service(tmp_path, facts={**FACTS, "kinds": {"lxc": True, "kvm": True}, **facts}) as service:
        with pytest.raises(Refused, match=words) as error:
            service.create(type="kvm", machine="thin")
        assert (error.value.field, service.count("slices")) == ("machine", 0)


def test_a_thin_machine_has_a_console_and_no_screen(service: Service) -> None:
    service.create("thin", type="kvm", machine="thin")
    assert consoles.ask(service.store, "thin", 0, ADMIN)
    with pytest.raises(Refused, match="thin machines, which have no screen"):
        consoles.ask(service.store, "thin", 0, ADMIN, screen=True)


def test_the_record_of_a_sliver_has_its_machine(service: Service) -> None:
    service.create(type="kvm", machine="thin")
    record = sliver_record.to_json(service.rows()[0].sliver)
    assert sliver_record.from_json(json.loads(json.dumps(record))).machine is Machine.THIN
    del record["machine"]  # as an earlier version wrote it
    assert sliver_record.from_json(record).machine is Machine.STANDARD


def test_nodes_get_the_machine_of_a_slice() -> None:
    assert "machine" in mirror.BY_NAME["slices"].centre


def test_facts_for_booting_are_readable_for_nodes_that_know_no_memory_devices() -> None:
    old: dict[str, Any] = {"bios": True, "uefi": False, "kernel": "/boot/k", "initrd": "", "root": "root=/dev/vda1"}
    assert BootFacts(**old).to_json() == old
    thin = BootFacts(kernel="/boot/k", root="root=/dev/vda1", mmio=True)
    assert BootFacts(**thin.to_json()) == thin
    assert updates.boot(thin.to_json()) == thin.to_json()
    with pytest.raises(TypeError):
        updates.boot({**old, "mmio": "yes"})


def test_the_programs_of_a_kernel_are_kept_and_only_names_are_accepted() -> None:
    thin = BootFacts(kernel="/boot/k", mmio=True, programs=("nginx", "redis"))
    assert BootFacts(**json.loads(json.dumps(thin.to_json()))) == thin
    assert updates.boot(thin.to_json()) == thin.to_json()
    for wrong in ("redis", ["<b>"], [1], ["a\n"], ["a"] * 101, 5, {"a": 1}):
        with pytest.raises((TypeError, ValueError)):
            updates.boot({**thin.to_json(), "programs": wrong})


def test_the_programs_are_those_whose_options_the_kernel_has() -> None:
    made = guest_kernel.wanted(("redis", "python"))
    assert boot_loader.programs(made.encode()) == ("nginx", "python", "redis")
    assert boot_loader.programs(guest_kernel.wanted(()).encode()) == ("nginx", "python"), "the base has their options"
    assert boot_loader.programs(made.replace("EVENTFD=y", "EVENTFD=m").encode()) == ("python", "redis")
    assert boot_loader.programs(b"\xff\0CONFIG_EPOLL=yes\n# CONFIG_EPOLL=y\n") == ()


def test_the_import_reads_the_configuration_of_a_thin_kernel(tmp_path: Path) -> None:
    boot = tmp_path / "boot"
    boot.mkdir()
    (tmp_path / "bin").mkdir()
    shutil.copyfile("/bin/sh", tmp_path / "bin/sh")
    (boot / "vmlinuz-6.1-thin").touch()
    (boot / "config-6.1-thin").write_text(guest_kernel.wanted(("redis",)))
    assert disk_image.facts_of(tmp_path, 0, BootFacts()).boot.programs == ("nginx", "python", "redis")
    (boot / "config-6.1-thin").write_text("#" * (1 << 20) + "\n" + guest_kernel.wanted(("redis",)))
    found = disk_image.facts_of(tmp_path, 0, BootFacts()).boot
    assert (found.mmio, found.programs) == (False, ()), "no more than 1 MiB is read"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (b"CONFIG_VIRTIO_MMIO=y\nCONFIG_VIRTIO_BLK=y\n", True),
        (b"CONFIG_VIRTIO_MMIO=m\nCONFIG_VIRTIO_BLK=y\n", False),
        (b"CONFIG_VIRTIO_MMIO=y\n# CONFIG_VIRTIO_BLK is not set\n", False),
        (b"", False),
    ],
)
def test_a_kernel_without_a_bus_needs_its_drivers_in_itself(config: bytes, expected: bool) -> None:
    assert boot_loader.mmio(config) is expected


@pytest.mark.parametrize(
    ("boot", "config", "expected"),
    [
        (["vmlinux-6.1", "vmlinuz-6.1"], b"CONFIG_PVH=y\n", "/boot/vmlinux-6.1"),
        (["vmlinux-6.1", "vmlinuz-6.1"], b"# CONFIG_PVH is not set\n", "/boot/vmlinuz-6.1"),
        (["vmlinux-6.0", "vmlinuz-6.1"], b"CONFIG_PVH=y\n", "/boot/vmlinuz-6.1"),
    ],
)
def test_a_kernel_that_qemu_can_enter_is_not_unpacked_first(boot: list[str], config: bytes, expected: str) -> None:
    kernel, _ = boot_loader.kernel(boot, [])
    assert kernel == "/boot/vmlinuz-6.1"
    assert boot_loader.uncompressed(kernel, boot, config) == expected


def test_a_thin_machine_never_boots_by_firmware() -> None:
    assert BootFacts(bios=True, uefi=True, kernel="/boot/k").choose(Boot.DIRECT) is Boot.DIRECT
    assert BootFacts(bios=True, uefi=True).choose(Boot.DIRECT) is None

"""The pure parts of virtual machines: boot facts, seed, probe, disks, last output of the console."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path

import pytest
import yaml
from bare_service import config_in

from slicemgr.agent.acceleration import Machines
from slicemgr.config import LibvirtConfig
from slicemgr.drivers.guest import seed
from slicemgr.drivers.guest.identity import Identity
from slicemgr.drivers.importer import boot_loader
from slicemgr.drivers.importer.disk_layout import TYPE_ESP
from slicemgr.drivers.importer.image_findings import RootDevice
from slicemgr.drivers.libvirt import acceleration, console_log
from slicemgr.drivers.libvirt.host import Acceleration
from slicemgr.drivers.storage import machine_disk
from slicemgr.errors import Refused
from slicemgr.model import MIB, Boot, BootFacts
from slicemgr.service.slices import user_data

IDENTITY = Identity(
    "exp-0",
    "10.77.0.9",
    "169.254.1.1",
    ("192.0.2.53",),
    ("ssh-ed25519 AAAA 'me\"",),
    b"-----BEGIN\nkey\n",
    "ssh-ed25519 B",
)
EVERY = BootFacts(True, True, "/boot/vmlinuz-1", "/boot/initrd.img-1", "root=UUID=1")


@pytest.mark.parametrize(
    ("facts", "wanted", "chosen"),
    [
        (EVERY, Boot.LOADER, Boot.BIOS),
        (BootFacts(uefi=True, kernel="/k"), Boot.LOADER, Boot.UEFI),
        (BootFacts(kernel="/k"), Boot.LOADER, Boot.DIRECT),
        (BootFacts(), Boot.LOADER, None),
        (BootFacts(bios=True), Boot.UEFI, None),
        (BootFacts(bios=True), Boot.DIRECT, None),
        *[(EVERY, one, one) for one in (Boot.BIOS, Boot.UEFI, Boot.DIRECT)],
    ],
)
def test_how_an_image_boots(facts: BootFacts, wanted: Boot, chosen: Boot | None) -> None:
    assert facts.choose(wanted) is chosen


def test_the_newest_kernel_with_its_own_initrd() -> None:
    boot = ["vmlinuz-6.9.0", "vmlinuz-6.10.0-rc1", "initrd.img-6.9.0", "initramfs-6.10.0-rc1.img", "grub"]
    assert boot_loader.kernel(boot, []) == ("/boot/vmlinuz-6.10.0-rc1", "/boot/initramfs-6.10.0-rc1.img")
    assert boot_loader.kernel(["vmlinuz-6.9.0"], []) == ("/boot/vmlinuz-6.9.0", "")
    assert boot_loader.kernel(["vmlinuz", "initrd.img"], []) == ("/boot/vmlinuz", "/boot/initrd.img")
    assert boot_loader.kernel([], ["vmlinuz", "initrd.img"]) == ("/vmlinuz", "/initrd.img")
    assert boot_loader.kernel(["config-6.9.0"], ["bin"]) == ("", "")


def test_a_boot_sector_has_code_and_a_signature() -> None:
    code = b"\xeb\x63" + bytes(508) + b"\x55\xaa"
    assert boot_loader.has_code(code)
    assert not boot_loader.has_code(code[:510] + b"\0\0")
    assert not boot_loader.has_code(bytes(440) + b"\x01" * 70 + b"\x55\xaa"), (
        "a table alone, as protective MBRs have it"
    )
    assert not boot_loader.has_code(b"\x55\xaa")


def test_a_kernel_of_strange_digits_is_none() -> None:
    """str.isdigit() is true of ², which int() does not take."""
    assert boot_loader.kernel(["vmlinuz-²", "vmlinuz-6.1", "vmlinuz-7 init=x", "vmlinuz-\u0661"], []) == (
        "/boot/vmlinuz-6.1",
        "",
    )


@pytest.mark.parametrize(
    ("root", "argument"),
    [
        (RootDevice("/dev/sda1", "", "1f-2"), "root=UUID=1f-2"),
        (RootDevice("/dev/sda2", "@", "1f-2"), "root=UUID=1f-2 rootflags=subvol=@"),
        (
            RootDevice("/dev/sda2", "@/.snapshots/1/snapshot", "1f-2"),
            "root=UUID=1f-2 rootflags=subvol=@/.snapshots/1/snapshot",
        ),
        (RootDevice("/dev/vg/root", "", ""), "root=/dev/vg/root"),
        (RootDevice("/dev/sda1", "", ""), "root=/dev/vda1"),
    ],
)
def test_where_the_root_is(root: RootDevice, argument: str) -> None:
    assert boot_loader.root_argument(root, initrd=True) == argument


@pytest.mark.parametrize(
    ("device", "argument"),
    [
        ("/dev/sda1", "root=/dev/vda1"),
        ("/dev/sdb15", "root=/dev/vda15"),
        ("/dev/sdb", "root=/dev/vda"),
        ("/dev/sdb1/x", "root=/dev/sdb1/x"),
    ],
)
def test_a_kernel_without_an_initrd_gets_its_root_by_device(device: str, argument: str) -> None:
    assert boot_loader.root_argument(RootDevice(device, "", "1f-2"), initrd=False) == argument


def test_how_a_disk_boots_by_its_sector_and_partitions() -> None:
    code = b"\xeb\x63" + bytes(508) + b"\x55\xaa"
    assert boot_loader.facts(code, ["0x83"]) == BootFacts(bios=True)
    assert boot_loader.facts(bytes(512), [TYPE_ESP]) == BootFacts(uefi=True)
    assert boot_loader.facts(bytes(512), ["0xef"]) == BootFacts(uefi=True)


def test_only_a_machine_that_can_grow_brings_memory_online() -> None:
    """At each start, and without an error in a guest whose kernel cannot."""
    plain, grows = (
        yaml.safe_load(seed.files(IDENTITY, "abcdefgh-0", "", "52:00:00:00:00:01", grows=one)["vendor-data"])
        for one in (False, True)
    )
    *before, last = grows.pop("bootcmd")
    assert before == plain.pop("bootcmd") and grows == plain
    assert last[:2] == ["sh", "-c"] and "auto_online_blocks" in last[2] and "modprobe -q virtio_mem" in last[2]
    checked = subprocess.run(["sh", "-n", "-c", last[2]], capture_output=True, text=True, check=True)
    assert checked.stderr == ""


def test_the_seed_is_what_cloud_init_reads() -> None:
    files = seed.files(IDENTITY, "abcdefgh-0", "#cloud-config\n{x: 1}\n", "52:00:00:00:00:01")
    assert yaml.safe_load(files["meta-data"]) == {
        "instance-id": "abcdefgh-0",
        "local-hostname": "exp-0",
        "public-keys": list(IDENTITY.authorized_keys),
    }
    assert files["user-data"] == "#cloud-config\n{x: 1}\n"
    assert files["vendor-data"].startswith("#cloud-config\n")
    vendor = yaml.safe_load(files["vendor-data"])
    assert vendor["ssh_keys"]["ed25519_private"] == IDENTITY.host_key_private.decode()
    link = yaml.safe_load(files["network-config"])["ethernets"]["eth0"]
    assert link["match"] == {"macaddress": "52:00:00:00:00:01"}
    assert (link["addresses"], link["routes"][0]["on-link"]) == (["10.77.0.9/32"], True)
    script = vendor["bootcmd"][0][2]
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0


def test_a_container_has_its_network_already() -> None:
    files = seed.files(IDENTITY, "abcdefgh-0", "", None)
    assert set(files) == {"meta-data", "user-data", "vendor-data"}
    assert "bootcmd" not in json.loads(files["vendor-data"].partition("\n")[2])


@pytest.mark.parametrize(
    ("wanted", "tried", "found"),
    [
        ("kvm", (True, True, False, False), Acceleration.KVM),
        ("emulation", (True, True, True, True), Acceleration.EMULATION),
        ("auto", (True, True, True, True), Acceleration.KVM),
        ("auto", (True, True, False, True), Acceleration.EMULATION),
        ("auto", (False, True, False, True), Acceleration.EMULATION),
        ("auto", (True, True, False, False), None),
        ("auto", (True, False, False, False), None),
    ],
)
def test_what_runs_machines(wanted: str, tried: tuple[bool, ...], found: Acceleration | None) -> None:
    device, kernel, kvm, emulation = tried
    answer = acceleration.decide(wanted, device=device, kernel=kernel, kvm_boots=kvm, emulation_boots=emulation)
    assert answer.acceleration is found
    assert answer.reason


@pytest.mark.long
def test_the_probe_boots_a_kernel_and_not_any_file(tmp_path: Path) -> None:
    kernel = acceleration.kernels()[0]
    assert acceleration.boots(kernel, Acceleration.EMULATION, 120)
    broken = tmp_path / "vmlinuz-0"
    broken.write_bytes(b"\0" * MIB)
    assert not acceleration.boots(broken, Acceleration.EMULATION, 3)


def test_the_rate_of_the_counter_is_that_of_this_processor(tmp_path: Path) -> None:
    able, moved = tmp_path / "able", tmp_path / "moved"
    able.write_text("processor : 0\nflags\t\t: fpu constant_tsc tsc nonstop_tsc\n")
    moved.write_text("processor : 0\nflags\t\t: fpu tsc nonstop_tsc\n")
    one, other = acceleration.counter_rate(able), acceleration.counter_rate(able)
    assert one > 100_000 and abs(one - other) < one / 1000
    assert acceleration.counter_rate(moved) == 0, "its counter changes its rate"
    assert acceleration.counter_rate(able, Path("/bin/false")) == 0
    assert acceleration.counter_rate(able, Path("/bin/true")) == 0


def test_what_was_found_is_remembered(tmp_path: Path) -> None:
    cache = tmp_path / "acceleration.json"
    assert acceleration.find("emulation", cache.parent / "none" / "cache").acceleration is Acceleration.EMULATION
    first = acceleration.find("emulation", cache)
    assert acceleration.find("emulation", cache) == first
    cache.write_text("{}")
    assert acceleration.find("kvm", cache).acceleration is Acceleration.KVM


def test_an_agent_that_starts_again_knows_at_once_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceleration, "counter_rate", lambda: 7)
    config = config_in(tmp_path, libvirt=LibvirtConfig(acceleration="emulation"))
    config.node.state_dir.mkdir()
    found = threading.Event()
    first = Machines(config)
    first.find(found.set)
    assert found.wait(60) and first.found is not None
    again = Machines(config)
    again.find(lambda: pytest.fail("there is nothing to wait for"))
    assert (again.found, again.counter_rate) == (first.found, 7)


def test_both_formats_are_always_named() -> None:
    words = machine_disk.create_argv(Path("/o"), Path("/i"), "raw", 5)
    assert words[words.index("-F") + 1] == "raw"
    assert words[words.index("-f") + 1] == "qcow2"


def test_an_overlay_is_made_and_measured(tmp_path: Path) -> None:
    image, overlay = tmp_path / "image.raw", tmp_path / "disk.qcow2"
    image.write_bytes(bytes(MIB))
    machine_disk.make_overlay(overlay, image, "raw", 2 * MIB)
    assert machine_disk.virtual_size(overlay) == 2 * MIB
    assert machine_disk.virtual_size(image) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk.qcow2", "image.raw"]


def test_a_seed_disk_has_the_label_that_is_looked_for(tmp_path: Path) -> None:
    machine_disk.make_seed(tmp_path / "seed.img", {"meta-data": "{}\n"})
    told = subprocess.run(["mdir", "-i", tmp_path / "seed.img", "::"], capture_output=True, text=True, check=True)
    assert "CIDATA" in told.stdout and "meta-data" in told.stdout


def test_the_last_thing_a_console_said() -> None:
    assert console_log.last_of(b"first\r\n\x1b[1;31mlast \x1b[0mline\r\n\r\n  \n") == "last line"
    assert console_log.last_of(b"\x1b[2J") == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("packages: [x]\n", "starts with"),
        ("#include\nhttp://x\n", "starts with"),
        ("#cloud-config\na: [1\n", "is not YAML: line"),
        ("#cloud-config\n- a\n", "no keys"),
        ("#cloud-config\n" + "x: 1\n" * 20000, "too large"),
        ("#cloud-config\nx: a\0b\n", "zero byte"),
        (7, "must be text"),
    ],
)
def test_user_data_that_is_none(text: object, words: str) -> None:
    with pytest.raises(Refused, match=words) as caught:
        user_data.check(text)
    assert caught.value.field == "user_data"


def test_user_data_as_people_write_it() -> None:
    for text in ("#cloud-config\npackages: [iperf3]\n", "#cloud-config\n", "#!/bin/sh\nid\n"):
        assert user_data.check(text) == text

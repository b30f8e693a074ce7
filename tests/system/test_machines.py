"""Tests of virtual machines that need a boot: first boot, a disk that fills up, the end of QEMU.

The tests of a running machine are in test_guest.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from guest import qemu
from testbed import IMAGE, Node, eventually

MIB = 1 << 20
# Version 3; a backing file of 11 bytes at 104.
QCOW2_HEADER = b"QFI\xfb" + struct.pack(">IQI", 3, 104, 11) + bytes(84) + b"/etc/shadow"
# xor ax,ax; mov ds,ax; mov es,ax; with dl as the BIOS set it, by int 13h: read sector 2 to 0x8000, write sector 1 from
# there; hlt; jmp back to it.
WRITES = bytes.fromhex("31c0 8ed8 8ec0 bb0080 b80102 b90200 b600 cd13 bb0080 b80103 b90100 b600 cd13 f4 ebfd")
FILL = "dd if=/dev/urandom of=/root/fill bs=1M count=200 oflag=direct 2>&1"


@pytest.fixture(scope="module")
def node(second_node: Node) -> Node:
    return second_node


@pytest.fixture(autouse=True)
def machines(node: Node) -> Iterator[None]:
    node.ensure_machines()
    node.type = "kvm"
    yield
    node.type = "lxc"


def show(node: Node) -> dict[str, object]:
    one: dict[str, object] = node.show("exp")["slivers"][0]
    return one


@pytest.mark.long
def test_a_cloud_image_boots_by_its_own_loader_and_grows(node: Node, tmp_path: Path) -> None:
    """Debian's cloud-init applies name, address, keys, user data and the larger disk from the seed.

    Debian's guest agent changes keys of the running machine, the seed those at a start; the tenant's line stays.
    """
    wishes = tmp_path / "user-data"
    wishes.write_text("#cloud-config\nwrite_files:\n- path: /root/from-user-data\n  content: wanted\n")
    made = node.create(
        "exp", "--image", IMAGE, "--boot", "loader", "--memory", "512M", "--disk", "5G", "--user-data", str(wishes)
    )
    assert made["boot"] == "bios"
    sliver = made["slivers"][0]
    assert (sliver["booted"], sliver["acceleration"]) == (
        "yes",
        json.loads(node.ok("node", "list", "-f", "json"))[0]["facts"]["acceleration"],
    )
    told = node.inside(
        "exp",
        "hostname; id -u; cloud-init status --wait >/dev/null; cat /root/from-user-data; "
        "df -BM --output=size / | tail -1",
        timeout=600,
    )
    name, user, wanted, size = told.split()
    assert (name, user, wanted) == ("exp-0", "0", "wanted")
    assert int(size.rstrip("M")) > 4500, "the root file system has grown with the disk"
    assert eventually(lambda: show(node)["usage"]["guest_memory"], "the balloon reports the usage of the guest", 60)  # type: ignore[index]
    assert node.slicectl("ssh", "-i", node.key, "exp", "--", "ip route get 169.254.1.1").returncode == 0

    second = tmp_path / "second"
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(second)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)

    def opens() -> bool:
        return node.slicectl("ssh", "-i", second, "exp", "--", "true").returncode == 0

    node.inside("exp", "echo '# mine' >> /root/.ssh/authorized_keys")
    key = json.loads(node.ok("key", "add", f"{second}.pub", "-f", "json"))[0]["id"]
    eventually(opens, "the new key opens", 150)
    node.ok("stop", "exp")
    node.ok("key", "remove", key)
    node.ok("start", "exp")
    lines = eventually(lambda: node.ssh("exp", "cat /root/.ssh/authorized_keys").stdout, "it can be logged into", 300)
    eventually(lambda: not opens(), "the key that was taken away opens no more", 60)
    assert "# mine" in lines


@pytest.mark.long
def test_uefi_and_direct_and_what_an_image_cannot(node: Node) -> None:
    made = node.create("exp", "--boot", "uefi", "--memory", "512M")
    assert made["boot"] == "uefi"
    assert node.inside("exp", "test -d /sys/firmware/efi && echo efi") == "efi\n"
    node.ok("delete", "exp")
    node.create("exp")
    assert node.ssh("exp", "test -d /sys/firmware/efi").returncode == 1
    assert "console=ttyS0" in node.inside("exp", "cat /proc/cmdline")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--pids", "99"), "--pids: is not supported for kvm"),
        (("--memory", "900T"), "--memory"),
        (("--user-data", "/etc/passwd"), "#cloud-config"),
        (("--boot", "floppy"), "loader, bios, uefi, direct"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(node: Node, option: tuple[str, str], words: str) -> None:
    told = node.slicectl("create", "exp", *node.wishes(), *option)
    assert told.returncode == 2 or told.returncode == 5, told
    assert words in told.stderr
    assert node.slices() == []


@pytest.mark.long
def test_a_full_disk_pauses_with_its_reason_and_goes_on_when_it_may_grow(node: Node) -> None:
    """The limit is below the size of the image's disk: the guest pauses, loses nothing, and continues."""
    node.create("exp", "--disk", "64M")
    assert node.ssh("exp", f"nohup sh -c '{FILL}; sync; echo done > /root/done' >/dev/null 2>&1 &").returncode == 0
    eventually(lambda: "disk limit" in str(show(node)["error"]), "the reason is shown", 300)
    assert "slicectl resize" in str(show(node)["error"])
    node.ok("resize", "exp", "--disk", "1G")
    assert eventually(lambda: "done" in node.ssh("exp", "cat /root/done").stdout, "the guest went on", 300)
    assert show(node)["error"] is None
    smaller = node.slicectl("resize", "exp", "--disk", "512M")
    assert smaller.returncode == 4 and "cannot shrink" in smaller.stderr


@pytest.mark.long
def test_a_disk_that_grew_while_it_was_stopped_is_larger_at_its_start(node: Node) -> None:
    node.create("exp")
    node.ok("stop", "exp")
    node.ok("resize", "exp", "--disk", "4G")
    node.ok("start", "exp")
    assert node.inside("exp", "cat /sys/block/vda/size").strip() == str((4 << 30) // 512)


@pytest.mark.long
def test_block_rates_hold(node: Node) -> None:
    """Against the same write without a rate, in the same run."""
    write = "dd if=/dev/zero of=/root/file bs=64k count=64 oflag=direct conv=fsync 2>&1 | tail -1"
    write += " | sed 's/.* copied, //; s/ s,.*//'"
    node.create("exp", "--io-rate", "1M")
    node.create("free")
    slow = float(node.inside("exp", write, timeout=300))
    eventually(lambda: slow > 3 * float(node.inside("free", write, timeout=300)), "without a rate it is faster", 120)
    assert slow > 2.5, "4 MiB at 1 MiB a second"


@pytest.mark.long
def test_cpu_quota_holds(node: Node) -> None:
    sliver = node.create("exp", "--cpu", "0.5")["slivers"][0]
    node.inside("exp", "nohup sh -c 'while :; do :; done' >/dev/null 2>&1 &")
    pid = qemu(node, sliver["id"])

    def used() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    begun, before = time.monotonic(), used()
    time.sleep(4)
    assert 0.05 < (used() - before) / (time.monotonic() - begun) < 0.7


@pytest.mark.long
def test_qemu_killed_is_repaired_and_qemu_hung_can_be_deleted(node: Node) -> None:
    sliver = node.create("exp")["slivers"][0]
    node.inside("exp", "echo kept > /root/file; sync")
    os.kill(qemu(node, sliver["id"]), signal.SIGKILL)
    eventually(lambda: node.ssh("exp", "cat /root/file").stdout == "kept\n", "it runs again with its files", 300)
    os.kill(qemu(node, sliver["id"]), signal.SIGSTOP)
    paused = node.slicectl("pause", "exp")
    assert paused.returncode == 1 and "QEMU does not answer" in paused.stderr
    node.ok("delete", "exp")
    node.agrees()


@pytest.fixture
def hasty(node: Node) -> Iterator[Node]:
    """The node, whose agent waits only seconds for the boot of a machine."""
    with node.other_settings(lambda text: text.replace('boot_wait = "600s"', 'boot_wait = "15s"')):
        yield node


@pytest.fixture(scope="module")
def dead(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image that only writes its second sector over the first one, and halts. The second is a qcow2 header."""
    disk = tmp_path_factory.mktemp("dead") / "dead.raw"
    first = bytearray(WRITES.ljust(510, b"\0") + b"\x55\xaa")
    first[446:462] = bytes([0x80, 0, 2, 0, 0x83, 0, 3, 0, 1, 0, 0, 0, 0xFF, 0x1F, 0, 0])
    disk.write_bytes(bytes(first) + QCOW2_HEADER)
    os.truncate(disk, 4 * MIB)
    node.ok("image", "import", disk, "--name", "dead", "--format", "raw", timeout=300)
    yield "dead"
    node.delete_all()
    node.ok("image", "delete", "dead")


@pytest.mark.long
def test_a_guest_that_never_boots_says_so(hasty: Node, dead: str) -> None:
    """The state has the missing event, and the slice exists."""
    node = hasty
    image = json.loads(node.ok("image", "show", dead, "-f", "json"))
    assert (image["arch"], image["boot"]["bios"], image["boot"]["kernel"]) == ("", True, "")
    refused = node.slicectl("create", "exp", "--type", "lxc", "--image", dead, "--ssh-key", f"{node.key}.pub")
    assert refused.returncode == 2 and "no Linux system" in refused.stderr
    told = node.slicectl("create", "exp", *node.wishes(), "--image", dead, "--boot", "loader")
    assert told.returncode == 0, told.stderr
    assert "not verified: no ssh banner" in told.stderr
    assert (show(node)["state"], show(node)["booted"]) == ("running", "unknown")


@pytest.mark.long
def test_a_raw_image_stays_raw_whatever_the_guest_writes(hasty: Node, dead: str) -> None:
    """CVE-2026-24708: a tenant writes a qcow2 header that names a file of the host into the beginning of its disk."""
    node = hasty
    sliver = node.create("exp", "--image", dead, "--boot", "loader")["slivers"][0]
    node.ok("stop", "exp")
    disk = f"/var/lib/slicemgr/pool/slivers/{sliver['id']}/disk.qcow2"
    written = node.box.run(["qemu-io", "-r", "-f", "qcow2", "-c", "read -v 0 512", disk], check=True).stdout
    assert "51 46 49 fb" in written, "the guest has written it"
    node.ok("start", "exp")
    words = Path(f"/proc/{qemu(node, sliver['id'])}/cmdline").read_text()
    image = json.loads(node.ok("image", "show", dead, "-f", "json"))["sha256"]
    assert f"{image}.raw" in words and "shadow" not in words
    assert '"driver":"raw"' in words, "the image is opened as raw"

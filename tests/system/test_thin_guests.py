"""A thin guest: its kernel is built, its image imported, and its machine has neither firmware, screen nor PCI bus."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from terminal import Terminal
from testbed import BIN, Node, ensure_image, eventually

from slicemgr import names
from slicemgr.builder import guest_kernel
from slicemgr.errors import Code, Refused

pytestmark = pytest.mark.long

RECIPE = "debian-12-thin"
THIN = ("--image", RECIPE, "--machine", "thin", "--memory", "128M")
VIRSH = ("virsh", "-c", "qemu:///system")


@pytest.fixture(scope="module")
def node(spare_node: Node) -> Iterator[Node]:
    """The image is built once below `.run`, with the compilation of its kernel."""
    spare_node.ensure_machines()
    spare_node.await_machines()
    spare_node.ok("image", "import", ensure_image(RECIPE), "--name", RECIPE, timeout=500)
    yield spare_node
    spare_node.delete_all()
    spare_node.ok("image", "delete", RECIPE)


@pytest.fixture(autouse=True)
def machines(node: Node) -> Iterator[None]:
    node.type = "kvm"
    yield
    node.type = "lxc"


def hardware(node: Node) -> str:
    """The XML of the machine of `exp`; the machine that other tests share may run, too."""
    name = names.domain(node.show("exp")["slivers"][0]["id"])
    return str(node.box.run([*VIRSH, "dumpxml", name], check=True).stdout)


def test_its_image_boots_directly_and_has_its_configuration(node: Node) -> None:
    shown = json.loads(node.ok("image", "show", RECIPE, "-f", "json"))
    boot = shown["boot"]
    assert (boot["bios"], boot["uefi"], boot["initrd"], boot["root"], boot["mmio"]) == (
        *(False, False, ""),
        *("root=/dev/vda1", True),
    )
    release = boot["kernel"].removeprefix("/boot/vmlinux-")
    assert release.endswith("-thin") and "/" not in release, "QEMU enters the uncompressed kernel"
    node.create("exp", *THIN)
    asked = f"uname -r; stat -c %s /boot/vmlinuz-{release}; ls /lib/modules 2>/dev/null || true"
    found, size, *modules = node.inside("exp", asked).split()
    assert (found, modules) == (release, [])
    assert int(size) <= 4 << 20
    config = node.ok("image", "kernel-config", RECIPE)
    assert config == node.inside("exp", f"cat /boot/config-{release}")
    assert len(config) == shown["kernel_config"] and guest_kernel.missing(guest_kernel.wanted(()), config) == []


def test_a_thin_machine_works_like_any(node: Node) -> None:
    made = node.create("exp", *THIN)
    assert (made["machine"], made["boot"], made["slivers"][0]["booted"]) == ("thin", "direct", "yes")
    xml = hardware(node)
    assert "microvm" in xml and "<video" not in xml and "<graphics" not in xml and "pci" not in xml
    assert node.inside("exp", "hostname; ls /sys/bus/pci/devices").split() == ["exp-0"], "it has no PCI bus"

    def usage() -> dict[str, Any]:
        return dict(node.show("exp")["slivers"][0]["usage"])

    assert eventually(lambda: usage()["working"], "its usage is known", 90)
    assert usage()["guest_memory"] is None, "libvirt finds a balloon for its statistics on a bus alone"

    node.inside("exp", "echo kept > /root/file; sync")
    node.ok("snapshot", "create", "exp", "one")
    node.inside("exp", "rm /root/file; sync")
    node.ok("snapshot", "restore", "exp", "one")
    assert eventually(lambda: node.ssh("exp", "cat /root/file").stdout, "it runs again", 300) == "kept\n"
    node.ok("stop", "exp")
    node.ok("start", "exp")
    assert eventually(lambda: node.ssh("exp", "cat /root/file").stdout, "it runs again", 300) == "kept\n"


def test_a_thin_machine_has_a_console_and_no_screen(node: Node) -> None:
    node.create("exp", *THIN)
    with node.client() as client, pytest.raises(Refused, match="thin machines, which have no screen") as caught:
        client.slices.console("exp", screen=True)
    assert (caught.value.code, caught.value.field) == (Code.INVALID, "screen")
    environment = {**os.environ, "SLICEMGR_URL": node.url, "SLICEMGR_TOKEN": node.token()}
    with Terminal([str(BIN / "slicectl"), "console", "exp"], environment) as terminal:
        terminal.heard("Ctrl-] to detach")
        terminal.type("\recho of-the-$((6 * 7))\r")
        terminal.see("of-the-42")


def test_a_kernel_that_needs_a_bus_gets_one(node: Node) -> None:
    node.create("exp", "--image", "debian-12-small", "--machine", "thin")
    xml = hardware(node)
    assert "q35" in xml and "<video" not in xml and "<graphics" not in xml


@pytest.mark.parametrize("load", ["python", "redis", "nginx"])
def test_servers_run_on_a_thin_kernel(node: Node, load: str, tmp_path: Path) -> None:
    """By the benchmark, in small."""
    words = ("--guest", "thin", "--repeat", "1", "--count", "1", "--seconds", "1", "--output", tmp_path / "run")
    node.ok("bench", "guests", *words)
    records = [json.loads(line) for line in (tmp_path / "run" / "steps.jsonl").read_text().splitlines()]
    rates = next(one["data"]["rates"] for one in records if "rates" in one["data"])
    assert rates[load] > 0

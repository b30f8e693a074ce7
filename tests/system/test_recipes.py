"""Every recipe's disk boots by its own boot loader, and its files make a container: other tables, file systems, words.

An image is built once below `.run/`; importing one takes longer than all that is then asked of it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed import IMAGE, Node, ensure_image, eventually

from slicemgr.drivers import recipe

PROMPT = "debian login: "
BOOT_SECONDS = 300  # with software emulation on a machine that is busy

PACKAGE = """
set -e
mkdir -p /tmp/tiny/DEBIAN /tmp/tiny/usr/bin
printf '#!/bin/sh\\necho tiny runs\\n' > /tmp/tiny/usr/bin/tiny && chmod 755 /tmp/tiny/usr/bin/tiny
printf 'Package: tiny\\nVersion: 1\\nArchitecture: ARCHITECTURE\\nMaintainer: T <t@example.org>\\nDescription: t\\n' \\
    > /tmp/tiny/DEBIAN/control
dpkg-deb --build /tmp/tiny /tmp/tiny.deb >/dev/null
"""
CHOSEN_NETWORK = "import cloudinit.net.renderers as r; print(r.select(r.DEFAULT_PRIORITY)[0])"


@pytest.fixture(scope="module", params=[name for name in recipe.names() if name != IMAGE])
def imported(request: pytest.FixtureRequest, node: Node) -> Iterator[str]:
    """The recipe's image on the node, by the recipe's name; deleted afterwards."""
    name = str(request.param)
    node.ok("image", "import", ensure_image(name), "--name", name, timeout=500)
    yield name
    node.delete_all()
    node.ok("image", "delete", name)


@pytest.mark.parametrize("name", recipe.names())
def test_it_boots_to_a_login_prompt(name: str, tmp_path: Path) -> None:
    disk, console = ensure_image(name), tmp_path / "console"
    words = ["qemu-system-x86_64", "-machine", "q35,accel=tcg", "-m", "512", "-nic", "none", "-display", "none"]
    words += ["-serial", f"file:{console}", "-snapshot", "-drive", f"file={disk},if=virtio,format=qcow2"]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL) as machine:
        try:
            eventually(
                lambda: machine.poll() is not None or (console.exists() and PROMPT in console.read_text("latin-1")),
                "a login prompt on the serial console",
                BOOT_SECONDS,
            )
            assert machine.poll() is None, "the machine ended"
        finally:
            machine.kill()


def test_its_words_and_its_network(node: Node, imported: str) -> None:
    """What the recipe promises: seen in a container made of it, with GRUB's directory and kernel beside the root."""
    wanted = recipe.load(recipe.directory(imported))
    arch = {"amd64": "x86_64", "i386": "i686"}[wanted.architecture]
    assert json.loads(node.ok("image", "show", imported, "-f", "json"))["arch"] == arch
    node.create("exp", "--image", imported)
    asked = "uname -m; dpkg --print-architecture; getconf LONG_BIT; cat /etc/hostname"
    bits = "32" if arch == "i686" else "64"
    assert node.inside("exp", asked).split() == [arch, wanted.architecture, bits, "exp-0"]
    mounted = [line.split()[1:3] for line in node.inside("exp", "cat /etc/fstab").splitlines()]
    assert mounted == [["/", wanted.root], *([["/boot", "ext4"]] if wanted.boot else [])]
    place = "/boot" if wanted.boot else ""
    node.inside("exp", f"test -f /boot/grub/grub.cfg && test -s {place}/vmlinuz && test -s {place}/initrd.img")
    network = "eni" if "ifupdown" in wanted.packages else "netplan"
    assert node.inside("exp", f"python3 -c '{CHOSEN_NETWORK}'").strip() == network


def test_its_package_manager_works(node: Node, imported: str) -> None:
    own = recipe.load(recipe.directory(imported)).architecture
    other = {"i386": "amd64", "amd64": "i386"}[own]
    node.create("exp", "--image", imported)
    assert node.inside("exp", f"apt-get --version; apt-get check; {PACKAGE.replace('ARCHITECTURE', own)}").startswith(
        "apt 2."
    )
    node.inside("exp", "dpkg --install /tmp/tiny.deb")
    assert node.inside("exp", "tiny; dpkg --verify tiny; apt-get --yes --quiet purge tiny").startswith("tiny runs\n")
    node.inside("exp", "apt-get --yes --quiet install /tmp/tiny.deb && tiny")
    foreign = node.ssh("exp", f"{PACKAGE.replace('ARCHITECTURE', other)}\ndpkg --install /tmp/tiny.deb")
    assert foreign.returncode != 0 and "does not match system" in foreign.stderr

"""Recipes with other tables, file systems and networks: machines that boot by their own loader, and containers.

An image is built once below `.run/`; its import takes longer than all of its tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from testbed import IMAGES, Node, ensure_image

from slicemgr.builder import recipe

pytestmark = pytest.mark.long

PACKAGE = """
set -e
mkdir -p /tmp/tiny/DEBIAN /tmp/tiny/usr/bin
printf '#!/bin/sh\\necho tiny runs\\n' > /tmp/tiny/usr/bin/tiny && chmod 755 /tmp/tiny/usr/bin/tiny
printf 'Package: tiny\\nVersion: 1\\nArchitecture: ARCHITECTURE\\nMaintainer: T <t@example.org>\\nDescription: t\\n' \\
    > /tmp/tiny/DEBIAN/control
dpkg-deb --build /tmp/tiny /tmp/tiny.deb >/dev/null
"""
CHOSEN_NETWORK = "import cloudinit.net.renderers as r; print(r.select(r.DEFAULT_PRIORITY)[0])"


RECIPES = {name: recipe.load(recipe.directory(name)) for name in recipe.names()}
OTHERS = [name for name, one in RECIPES.items() if name not in IMAGES.values() and not one.kernel]
MACHINES = [name for name in OTHERS if RECIPES[name].architecture == "amd64"]


@pytest.fixture(scope="module")
def node(spare_node: Node) -> Node:
    return spare_node


@pytest.fixture(scope="module", params=OTHERS)
def imported(request: pytest.FixtureRequest, node: Node) -> Iterator[str]:
    """The recipe's image on the node, by the recipe's name; deleted afterwards."""
    name = str(request.param)
    node.ok("image", "import", ensure_image(name), "--name", name, timeout=500)
    yield name
    node.delete_all()
    node.ok("image", "delete", name)


@pytest.mark.parametrize("imported", MACHINES, indirect=True)
def test_it_boots_by_its_own_loader_and_becomes_a_slice(node: Node, imported: str) -> None:
    """With each table, file system and network, name, address, keys and the larger disk come from the seed."""
    node.await_machines()
    node.type = "kvm"
    try:
        sizes = ("--boot", "loader", "--memory", "512M", "--disk", "5G")
        sliver = node.create("exp", "--image", imported, *sizes)["slivers"][0]
    finally:
        node.type = "lxc"
    assert sliver["booted"] == "yes"
    asked = "hostname; id -u; cloud-init status --wait >/dev/null; df -BM --output=size / | tail -1; ip route"
    name, user, size, *route = node.inside("exp", asked, timeout=600).split()
    assert (name, user) == ("exp-0", "0")
    assert int(size.rstrip("M")) > 4300, "the root file system has grown with the disk"
    assert route[:3] == ["default", "via", "169.254.1.1"]
    node.inside("exp", "getent hosts localhost && test -s /etc/resolv.conf")


def test_its_words_and_its_network(node: Node, imported: str) -> None:
    """The properties of the recipe, read in a container, with GRUB's directory and kernel outside of the root."""
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

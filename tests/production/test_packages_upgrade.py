"""The Debian packages, as documented: an installation, and an upgrade while a sliver runs, which is not deleted."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from host_node import HostNode
from test_units import init_of
from testbed import Node, eventually

KEY = Path("/root/packages_ed25519")
NAMES = ("slicemgr", "slicemgr-service", "slicemgr-node")
NEWER = "/opt/packages/2"
RELEASE = f"~deb{platform.freedesktop_os_release()['VERSION_ID']}"


@pytest.fixture(scope="module")
def packaged() -> Node:
    node = HostNode()
    node.key = KEY
    node.__enter__()
    node.start()
    return node


def versions(node: Node) -> set[str]:
    words = ["dpkg-query", "--show", "--showformat", "${db:Status-Status} ${Version}\\n", *NAMES]
    return set(node.box.run(words, check=True).stdout.splitlines())


def test_the_installation_has_all_parts(packaged: Node) -> None:
    (version,) = versions(packaged)
    assert version.startswith("installed ") and version.endswith(f"-1{RELEASE}")
    for unit in ("web", "agent"):
        process = packaged.box.daemon(unit)
        assert str(Path(f"/proc/{process}/exe").resolve()).startswith("/usr/bin/python3")
        assert b"/usr/lib/slicemgr/bin/slicemgr" in Path(f"/proc/{process}/cmdline").read_bytes()
    for user in ("slicemgr", "slicemgr-import"):
        packaged.box.run(["id", user], check=True)
    assert Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3").read_text() == "65536\n"


def test_an_upgrade_leaves_slivers_running(packaged: Node) -> None:
    packaged.create("exp", "--memory", "128M")
    init, agent = init_of(packaged, "exp"), packaged.box.daemon("agent")
    settings = Path("/etc/slicemgr/slicemgr.toml").read_text()
    words = f"cd {NEWER} && DEBIAN_FRONTEND=noninteractive apt -y install ./slicemgr*.deb"
    done = packaged.box.run(["sh", "-c", words], timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    (version,) = versions(packaged)
    assert version.startswith("installed ") and version.endswith(f"-2{RELEASE}")
    eventually(lambda: packaged.box.daemon("agent") not in (None, agent), "another agent runs", 300)
    packaged.mend()
    assert init_of(packaged, "exp") == init and Path("/etc/slicemgr/slicemgr.toml").read_text() == settings
    assert packaged.inside("exp", "id -u") == "0\n"
    packaged.ok("create", "more", *packaged.wishes(), "--memory", "128M")

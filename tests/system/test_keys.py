"""The ssh keys of an account in running slivers of both types: added and removed, with the tenant's lines kept.

test_machines has the tests of a machine with cloud-init, whose boots are long.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from testbed import STARTED, Node, eventually

KEYS = "/root/.ssh/authorized_keys"
TENANTS = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDZL+rD/vRwJyc8ynlZ34fozFD0H1+ae81XD1/BIyS4U tenants-own"


@pytest.fixture(scope="module")
def node(second_node: Node) -> Node:
    return second_node


@pytest.fixture
def second(node: Node, tmp_path: Path) -> Iterator[Path]:
    """A key that no slice has yet; it is removed from the account at the end."""
    with new_key(node, tmp_path / "second") as path:
        yield path
    node.delete_all()


@contextmanager
def new_key(node: Node, path: Path) -> Iterator[Path]:
    """A key in files; it is removed from the account at the end."""
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "second", "-f", str(path)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    yield path
    ids = [one["id"] for one in json.loads(node.ok("key", "list", "-f", "json"))]
    if ids:
        node.ok("key", "remove", *ids)


def opens(node: Node, key: Path, target: str = "exp") -> bool:
    return node.slicectl("ssh", "-i", key, target, "--", "true").returncode == 0


def add(node: Node, key: Path) -> str:
    return str(json.loads(node.ok("key", "add", f"{key}.pub", "-f", "json"))[0]["id"])


def missing(node: Node, name: str = "exp") -> str:
    return str(node.show(name)["slivers"][0]["keys_missing"] or "")


def test_a_key_comes_and_goes_while_slivers_run(node: Node, each_type: str, second: Path) -> None:
    node.create("exp")
    add_and_remove(node, "exp", second)
    assert operations(node, "exp")[:3] == [("keys", "done"), ("keys", "done"), ("create", "done")]


def add_and_remove(node: Node, name: str, key: Path) -> None:
    """A key of an account is added to its slice and removed; the tenant's lines stay, and nothing is restarted."""
    node.inside(name, f"echo '{TENANTS}' >> {KEYS}; echo '# a note' >> {KEYS}")
    started = node.inside(name, STARTED)
    assert not opens(node, key, name)
    id_ = add(node, key)
    eventually(lambda: opens(node, key, name), "the new key opens", 90)
    lines = node.inside(name, f"cat {KEYS}")
    assert "tenants-own" in lines and "# a note" in lines and missing(node, name) == ""
    node.ok("key", "remove", id_)
    eventually(lambda: not opens(node, key, name), "the key that was taken away opens no more", 90)
    assert "tenants-own" in node.inside(name, f"cat {KEYS}")
    assert node.inside(name, STARTED) == started, "nothing was started again"
    assert operations(node, name)[:2] == [("keys", "done"), ("keys", "done")]


def operations(node: Node, name: str) -> list[tuple[str, str]]:
    """The operations of a slice and their final states, newest first."""
    return [(one["kind"], one["state"]) for one in json.loads(node.ok("op", "list", "--slice", name, "-f", "json"))]


def test_what_changed_while_it_was_stopped_is_so_when_it_starts(node: Node, second: Path) -> None:
    """Of machines: `test_a_cloud_image_boots_by_its_own_loader_and_grows`."""
    node.create("exp")
    id_ = add(node, second)
    eventually(lambda: opens(node, second), "the new key opens", 90)
    node.inside("exp", f"echo '{TENANTS}' >> {KEYS}; sync")
    node.ok("stop", "exp")
    node.ok("key", "remove", id_)
    node.ok("start", "exp")
    assert not opens(node, second)
    assert node.inside("exp", f"grep -c tenants-own {KEYS}; grep -c second {KEYS} || true").split() == ["1", "0"]


@pytest.mark.long
def test_a_machine_without_a_guest_agent_says_so_and_learns_it_at_its_start(node: Node, second: Path) -> None:
    node.ensure_machines()
    node.type = "kvm"
    try:
        node.create("exp")
        node.inside("exp", "pkill qemu-ga")
        add(node, second)
        eventually(lambda: "slicectl restart exp" in str(missing(node)), "the sliver says that it has not got it", 60)
        assert "slicectl restart exp" in node.ok("show", "exp")
        assert not opens(node, second)
        node.ok("restart", "exp")
        assert opens(node, second) and missing(node) == ""
    finally:
        node.type = "lxc"

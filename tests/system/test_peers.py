"""bench peers in the box of a node: slicemgr compared with the installed systems, and the cleanup."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from testbed import BIN, POOL, Node, eventually

from slicemgr.bench.frame import folder
from slicemgr.bench.peers.kinds import PEERS

SMALL = ("--count", "3", "--ports", "4", "--parallel", "2", "--seconds", "1")


def _bench(node: Node, *words: str | Path) -> list[str | Path]:
    """Run slicectl bench for the service of this node."""
    return ["env", f"SLICEMGR_URL={node.url}", f"SLICEMGR_TOKEN={node.token()}", BIN / "slicectl", "bench", *words]


def _in_box(node: Node, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return node.box.run(_bench(node, *words), timeout=900)


def _left(node: Node) -> list[str]:
    """Files on the pool, links, control groups and processes of any run's peers."""
    look = (
        f"ls -d {POOL}/bench-* /sys/fs/cgroup/bench-* /sys/fs/cgroup/*/*bench-*; ip -o link | grep -o ' bench-[^@:]*'"
    )
    found = node.box.run(["sh", "-c", f"{look}; true"], check=True)
    return found.stdout.split()


@pytest.mark.long
def test_slicemgr_beside_whatever_is_installed(node: Node, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = _in_box(node, "peers", *SMALL, "--output", run)
    assert done.returncode == 0, done.stderr
    result = folder.read(run)
    installed = [key for key, peer in PEERS.items() if not peer.missing()]
    assert {one for one in result.steps if one.startswith("1/")} == {f"1/{key}" for key in ("slicemgr", *installed)}
    assert {one for one in result.steps if one.startswith("absent/")} == {
        f"absent/{key}" for key in PEERS if key not in installed
    }
    for key in ("slicemgr", *installed):
        step = result.steps[f"1/{key}"]
        assert "stopped" not in step, step["stopped"]
        data = step["data"]
        assert data["n"] == data["reached"] == 3 and data["delete_seconds"] > 0
        assert data["charged"] > 0 and data["disk"] > 0 and min(data["rates"].values()) > 0
    assert "3 lxc slices with 4 forwarded ports" in (run / "report.md").read_text()
    assert node.slices() == [] and _left(node) == []


def test_killed_in_a_turn_and_cleaned(node: Node, tmp_path: Path) -> None:
    """The turn of slicemgr creates the sandbox, too, because throughput is measured through its link."""
    run = tmp_path / "run"
    words = _bench(node, "peers", "--with", "incus", "--count", "20", "--ports", "4", "--output", run)
    process = node.box.popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    eventually(lambda: len(node.slices()) > 2, "slices are made", 240)
    assert _left(node) != []
    process.kill()
    process.communicate(timeout=60)
    eventually(lambda: not any(one.startswith("bench-") for one in _left(node)), "the link goes by itself")
    assert node.slices() != []
    cleaned = _in_box(node, "clean", run)
    assert cleaned.returncode == 0, cleaned.stderr
    assert node.slices() == [] and _left(node) == []


NESTED = """
set -e
cd $0/bench-0123abcd
btrfs -q subvolume create outer
mkdir -p outer/a/b plain/c
btrfs -q subvolume create outer/a/b/inner
touch outer/a/b/inner/file plain/c/file
ln -s $0/bases plain/c/link
btrfs -q subvolume snapshot -r outer/a/b/inner read-only
"""


def test_subvolumes_in_subvolumes_are_deleted_and_links_are_not_followed(node: Node) -> None:
    """Docker, Podman and LXD leave them when they are killed."""
    remove = "import sys, pathlib; from slicemgr.bench.peers import namespaces; "
    remove += "namespaces.remove(pathlib.Path(sys.argv[1]), 'bench-0123abcd-')"
    bases = node.box.run(["ls", POOL / "bases"], check=True).stdout
    node.box.run(["mkdir", POOL / "bench-0123abcd"], check=True)
    node.box.run(["sh", "-c", NESTED, POOL], check=True)
    done = node.box.run([BIN / "python", "-c", remove, POOL])
    assert done.returncode == 0 and _left(node) == [], done.stderr
    assert node.box.run(["ls", POOL / "bases"], check=True).stdout == bases != ""


def test_elsewhere_than_on_the_node_it_is_refused(node: Node, tmp_path: Path) -> None:
    """Outside of the box, the pool of the node is not mounted, although the host is the same."""
    said = node.slicectl("bench", "peers", *SMALL, "--output", tmp_path / "run")
    assert said.returncode == 2 and "does not exist here" in said.stderr and len(said.stderr.splitlines()) == 1
    assert node.slices() == [] and not (tmp_path / "run").exists()

"""bench throughput between two connected boxes: the traffic passes the NAT of both nodes, and nothing remains.

If one end suffices, the peer is this host.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from testbed import BIN, IMAGE, Node, eventually

from slicemgr import names
from slicemgr.bench.frame import endpoints, folder
from slicemgr.bench.report import pages

NODEBOX = Path(__file__).parent.parent.parent / "tools" / "nodebox"
SHORT = ("--seconds", "3", "--discard", "1", "--interval", "1")
MBIT = 10**6


def enter(node: Node) -> str:
    return shlex.join([str(NODEBOX), "enter", node.box.name, "--"])


@dataclass(frozen=True)
class Pair:
    """device: of the cable, called the same in both. words: of slicectl at the first one."""

    near: Node
    far: Node
    device: str
    words: tuple[str, ...]

    def left(self) -> list[str]:
        """The slices, and the rate limits of the link."""
        held = [node.box.run(["tc", "qdisc", "show", "dev", self.device], check=True).stdout for node in self.both]
        return [*self.near.slices(), *self.far.slices(), *(one for one in held if endpoints.MARK in one)]

    @property
    def both(self) -> tuple[Node, Node]:
        return self.near, self.far

    def start(self, *words: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "SLICEMGR_URL": self.near.url, "SLICEMGR_TOKEN": self.near.token()}
        argv = [str(BIN / "slicectl"), *self.words, *words]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.fixture(scope="module")
def peer(bare_node: Node) -> Iterator[Node]:
    """A second node with the same image, joined to the first by a cable."""
    with Node("peer") as made:
        made.start()
        made.import_recipe(IMAGE)
        bare_node.box.join(made.box)
        yield made


@pytest.fixture
def pair(node: Node, peer: Node, tmp_path: Path) -> Iterator[Pair]:
    """Both have nothing of the test afterwards."""
    file = tmp_path / "peer.json"
    file.write_text(json.dumps({"url": peer.url, "token": peer.token()}))
    address = node.box.facts().lans[peer.box.name]
    device = next(lan.device for lan in node.box.spec.lans if lan.peer == peer.box.name)
    words = ["bench", "throughput", "--node-exec", enter(node), "--peer-exec", enter(peer), "--peer", str(file)]
    made = Pair(node, peer, device, (*words, "--address", address))
    yield made
    peer.delete_all()
    peer.agrees()
    assert made.left() == []


def forwarded(node: Node) -> int:
    """Bytes that the slivers of a node have sent and received through their links."""
    links = json.loads(node.box.run(["ip", "-j", "-s", "link", "show"], check=True).stdout)
    counted = [one["stats64"] for one in links if names.sliver_of_link(one["ifname"])]
    return sum(int(one[way]["bytes"]) for one in counted for way in ("rx", "tx"))


def connected(node: Node) -> bool:
    """Whether data go to a plain server."""
    return bool(node.box.run(["ss", "-Htn", "state", "established", "sport", "=", ":5201"], check=True).stdout)


def counted(process: subprocess.Popen[str], nodes: Sequence[Node]) -> list[int]:
    """The most bytes that the slivers of each node had forwarded during the run, which must succeed."""
    seen = [0 for _ in nodes]
    while process.poll() is None:
        seen = [max(most, forwarded(node)) for most, node in zip(seen, nodes, strict=True)]
        time.sleep(0.3)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    return seen


@pytest.mark.long
def test_slivers_at_both_ends_of_a_link_that_is_held(pair: Pair, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = (
        "--congestion",
        "cubic",
        "--link",
        "unlimited",
        "--link",
        "100Mbit",
        "--talkers",
        "3",
        "--direction",
        "in",
    )
    seen = counted(pair.start(*SHORT, *words, "--direction", "out", "--output", str(run)), pair.both)
    result = folder.read(run)
    assert result.info["outcome"] == "done" and pair.left() == []
    rates = {
        id_: [sum(of["samples"]) / len(of["samples"]) for of in one["data"]["pairs"]]
        for id_, one in result.steps.items()
    }
    assert all(of["arrived"] > 0 for one in result.steps.values() for of in one["data"]["pairs"])
    for direction in ("in", "out"):
        for way, count in (("vanilla", 1), ("lxc", 1), ("lxc*3", 3)):
            held, free = (rates[f"{link}/1/{direction}/{way}"] for link in ("100Mbit", "unlimited"))
            assert len(held) == len(free) == count
            assert sum(held) < 150 * MBIT < sum(free), "the control: without it they are faster"
    through = sum(sum(own) for id_, own in rates.items() if "/lxc" in id_)
    assert min(seen) > through / 8, "what a second of each carried has crossed the links of slivers of both nodes"
    titles = [one.title for one in pages.content(result).tables]
    assert "The paper's table 2: the link held to 100Mbit, from the node" in titles


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.long
def test_ended_while_it_measures(pair: Pair, tmp_path: Path, number: signal.Signals) -> None:
    run = tmp_path / "run"
    words = ("--seconds", "300", "--discard", "0", "--no-talkers", "--link", "100Mbit", "--output", str(run))
    process = pair.start(*words)
    eventually(lambda: connected(pair.near) and any("tbf" in one for one in pair.left()), "it measures", 120)
    process.send_signal(number)
    process.communicate(timeout=240)
    if number is signal.SIGKILL:
        assert pair.left() != []
        pair.near.ok("bench", "clean", run)
    assert pair.left() == []
    listening = eventually(lambda: ":5201 " not in pair.near.box.run(["ss", "-ltn"]).stdout, "the server has ended", 30)
    assert listening


@pytest.mark.long
def test_a_cable_that_is_pulled_is_told(pair: Pair, tmp_path: Path) -> None:
    pair.far.box.run(["ip", "link", "set", pair.device, "down"], check=True)
    try:
        said = pair.near.slicectl(*pair.words, *SHORT, "--no-talkers", "--output", tmp_path / "run")
    finally:
        pair.far.box.run(["ip", "link", "set", pair.device, "up"], check=True)
    assert said.returncode != 0
    assert "no way to" in said.stderr or "does the client reach" in said.stderr, said.stderr
    assert not (tmp_path / "run").exists() or not (tmp_path / "run" / "steps.jsonl").exists()


# --- one end ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_this_machine_as_the_peer_of_both_types(node: Node, tmp_path: Path) -> None:
    run = tmp_path / "run"
    node.ensure_machines()
    words = ("--type", "lxc", "--type", "kvm", "--memory", "192M", "--no-talkers", "--link", "unlimited", *SHORT)
    node.ok("bench", "throughput", *words, "--streams", "2", "--node-exec", enter(node), "--output", run, timeout=500)
    result = folder.read(run)
    assert list(result.steps) == [f"unlimited/1/in/{way}" for way in ("vanilla", "lxc", "kvm")]
    assert all(min(one["data"]["pairs"][0]["samples"]) > 0 for one in result.steps.values())
    assert any("the clients were the plain peer" in one for one in pages.content(result).outcome)
    assert node.slices() == []


def test_a_server_that_cannot_be_started_is_told_and_nothing_is_left(node: Node, tmp_path: Path) -> None:
    words = ("--no-talkers", "--link", "unlimited", *SHORT, "--output", tmp_path / "run")
    said = node.slicectl("bench", "throughput", *words, "--node-exec", "false")
    assert said.returncode == 7 and "no way to" in said.stderr and len(said.stderr.splitlines()) == 1
    assert node.slices() == [] and not (tmp_path / "run").exists()


def test_a_client_that_does_not_reach_the_node_is_told(node: Node, tmp_path: Path) -> None:
    words = ("--node-exec", enter(node), "--peer-exec", "unshare --net --", "--no-talkers", "--link", "unlimited")
    said = node.slicectl("bench", "throughput", *words, *SHORT, "--output", tmp_path / "run")
    assert said.returncode == 7 and "no way to" in said.stderr and "is the link up?" in said.stderr, said.stderr
    assert node.slices() == []

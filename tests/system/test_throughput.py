"""bench throughput: what it measures passes through the sliver's port, and it leaves nothing."""

from __future__ import annotations

import json
from pathlib import Path

from testbed import Node

NODEBOX = Path(__file__).parent.parent.parent / "tools" / "nodebox"


def test_a_sliver_beside_the_plain_link(node: Node) -> None:
    enter = f"{NODEBOX} enter {node.box.name} --"
    words = ("bench", "throughput", "--seconds", "1", "--rounds", "2", "--streams", "2", "--node-exec", enter)
    told = json.loads(node.ok(*words, "-f", "json"))
    rows = {(one["path"], one["direction"]): one for one in told["paths"]}
    assert set(rows) == {(path, direction) for path in ("plain", "lxc") for direction in ("in", "out")}
    assert all(0 < one["least"] <= one["median"] <= one["most"] for one in rows.values())
    assert rows["plain", "in"]["ratio"] is None and rows["lxc", "in"]["ratio"] > 0
    assert [len(one["rates"]) for one in told["rounds"]] == [2] * 4
    assert json.loads(node.ok("list", "-f", "json")) == []


def test_a_server_that_cannot_be_started_is_told_and_nothing_is_left(node: Node) -> None:
    said = node.slicectl("bench", "throughput", "--seconds", "1", "--node-exec", "false")
    assert said.returncode == 1
    assert "iperf3 to port 5201 (plain)" in said.stderr and len(said.stderr.splitlines()) == 1
    assert json.loads(node.ok("list", "-f", "json")) == []


def test_a_client_that_does_not_reach_the_node_is_told(node: Node) -> None:
    enter = f"{NODEBOX} enter {node.box.name} --"
    words = ("--node-exec", enter, "--client-exec", "unshare --net --", "--seconds", "1")
    said = node.slicectl("bench", "throughput", *words)
    assert said.returncode == 1
    assert "does the client reach" in said.stderr, said.stderr

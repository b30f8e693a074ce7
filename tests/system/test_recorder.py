"""The records of the agent on real slivers, compared with the kernel and with the slivers themselves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from typing import Any

import pytest
from testbed import BIN, Node, eventually

MIB = 1 << 20


def usage(node: Node, name: str, since: str = "10m") -> dict[str, Any]:
    """The slice's first sliver."""
    (first, *_) = json.loads(node.ok("usage", name, "--since", since, "-f", "json"))
    return dict(first)


def top(node: Node) -> list[dict[str, Any]]:
    return list(json.loads(node.ok("top", "--once", "-f", "json"))["slivers"])


def first(node: Node) -> dict[str, Any]:
    """The only sliver in top; on a busy node, the last sample may be too old for a moment."""
    return dict(eventually(lambda: top(node), "there is a fresh look")[0])


def test_a_process_that_is_killed_at_the_memory_limit(node: Node) -> None:
    """A process that needs more than the limit; one within the limit is the control."""
    node.create("small", "--memory", "48M")
    fill = "head -c {0}M /dev/zero | tail -c {0}M | wc -c"  # tail keeps all of it in memory
    assert node.inside("small", fill.format(8)).split() == [str(8 * MIB)]
    before = node.show("small")["slivers"][0]
    assert (before["oom_kills"], before["oom_at"]) == (0, None)
    assert node.inside("small", fill.format(300), timeout=120).split() != [str(300 * MIB)]
    eventually(lambda: node.show("small")["slivers"][0]["oom_kills"] > 0, "the killed process is counted")
    events = json.loads(node.ok("event", "list", "--slice", "small", "--action", "out of memory", "-f", "json"))
    assert [one["user"] for one in events] == ["agent"] and "at the memory limit of 48 MiB" in events[0]["detail"]
    assert "processes killed at the memory limit" in node.ok("show", "small")


@pytest.mark.usefixtures("each_type")
def test_a_sliver_at_work(node: Node) -> None:
    node.create("work")
    be_at_work(node, "work")


def be_at_work(node: Node, name: str) -> None:
    """CPU time, network in both directions, memory and disk grow by about the work of the sliver."""
    eventually(lambda: top(node), "the sliver is in top")
    before = usage(node, name)
    node.inside(name, "dd if=/dev/urandom of=/root/fill bs=1M count=24 2>/dev/null; sync")
    node.inside(name, "cat /root/fill >/dev/null; head -c 8388608 /dev/zero", timeout=120)
    node.box.run(["btrfs", "filesystem", "sync", "/var/lib/slicemgr/pool"], check=True)

    def grown(figure: str, least: float) -> bool:
        return bool(usage(node, name)[figure] - before[figure] >= least)

    eventually(lambda: grown("net_out", 8 * MIB), "what it sent is counted")
    eventually(lambda: grown("cpu_seconds", 0.05), "CPU time is counted")
    eventually(lambda: first(node)["disk"] >= 20 * MIB, "what it wrote is charged to it")
    now = first(node)
    assert now["memory"] >= now["working"] > MIB and now["net_in"] is not None
    if node.show(name)["type"] == "lxc":
        assert 1 <= now["pids"] < 50 and now["guest"] > 0
    after = usage(node, name)
    assert after["net_out"] < 4 * 24 * MIB, "nothing is counted twice"
    assert after["running_seconds"] <= after["seconds"] + 1


def test_what_comes_while_the_agent_is_away_is_counted(node: Node) -> None:
    node.create("away")
    eventually(lambda: top(node), "the sliver is in top")
    node.kill("agent")
    before = usage(node, "away")
    node.inside("away", "head -c 16777216 /dev/zero")
    node.start_agent()
    eventually(lambda: usage(node, "away")["net_out"] - before["net_out"] >= 16 * MIB, "it is counted afterwards")


def test_a_restarted_sliver_begins_anew_and_keeps_its_sums(node: Node) -> None:
    node.create("again")
    eventually(lambda: top(node), "the sliver is in top")
    node.inside("again", "head -c 8388608 /dev/zero")
    eventually(lambda: usage(node, "again")["net_out"] >= 8 * MIB, "it is counted")
    node.ok("restart", "again")
    node.inside("again", "head -c 4194304 /dev/zero")
    eventually(lambda: usage(node, "again")["net_out"] >= 12 * MIB, "both lives are counted")
    assert usage(node, "again")["net_out"] < 14 * MIB
    node.ok("stop", "again")
    eventually(lambda: not top(node), "a stopped sliver is not in top")


def test_a_libvirt_that_hangs_stops_no_sample(node: Node) -> None:
    """SIGSTOP to libvirtd: the node is measured on; it continues afterwards."""
    node.create("calm")
    eventually(lambda: top(node), "the sliver is in top")
    pid = node.box.daemon("libvirtd")
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        since = time.time()
        eventually(lambda: samples_since(node, since) >= 5, "samples go on", 30)
    finally:
        os.kill(pid, signal.SIGCONT)
    (node_usage,) = json.loads(node.ok("usage", "--node", "--since", "10m", "-f", "json"))
    assert node_usage["cpu_seconds"] > 0


def samples_since(node: Node, moment: float) -> int:
    return int(node.rows(f"select count(*) from node_samples where resolution = 0 and at > {int(moment) + 1}")[0][0])


def test_connections_through_the_port_block(node: Node) -> None:
    node.create("busy")
    eventually(lambda: top(node), "the sliver is in top")
    words = [str(BIN / "slicectl"), "ssh", "-i", str(node.key), "busy", "--", "sleep 20"]
    environment = {**os.environ, "SLICEMGR_URL": node.url, "SLICEMGR_TOKEN": node.token()}
    held = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: (first(node)["connections"] or 0) >= 1, "the ssh connection is counted")
    finally:
        held.terminate()
        held.wait(30)


@pytest.mark.long
def test_many_at_once_cost_little(node: Node) -> None:
    """Forty slivers: each has a row in every sample. The cost of a sample is recorded and shown, not asserted."""
    node.create("many", "--count", "40")
    eventually(lambda: len(top(node)) == 40, "all are in top", 120)
    query = "select lxc, sample_seconds, sample_cpu from node_samples where resolution = 0 order by at desc limit 5"
    eventually(lambda: {row[0] for row in node.rows(query)} == {40}, "five looks have seen all of them")
    looks = [row[1:] for row in node.rows(query)]
    print("seconds, CPU seconds:", looks)
    assert all(row[1] <= row[0] + 0.05 for row in looks)

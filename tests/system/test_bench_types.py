"""bench lifecycle: both types in one run, each with its raw baseline, and the cleanup."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from testbed import BIN, Node, eventually

from slicemgr.bench.frame import folder
from slicemgr.bench.report import pages


@pytest.mark.long
def test_a_machine_beside_a_container(node: Node, tmp_path: Path) -> None:
    node.ensure_machines()
    run = tmp_path / "run"
    words = ("--type", "lxc", "--type", "kvm", "--boot", "direct", "--memory", "192M", "--output", run)
    node.ok("bench", "lifecycle", *words, "--count", "1", "--parallel", "1", timeout=1000)
    result = folder.read(run)
    assert result.info["outcome"] == "done"
    ours = {series: result.steps[f"1/{series}/slices"]["data"] for series in ("lxc", "kvm-direct")}
    raw = {series: result.steps[f"1/{series}/raw"]["data"]["raw"] for series in ours}
    phases = {series: {name: one[0] for name, one in data["phases"].items()} for series, data in ours.items()}
    seen = phases["kvm-direct"]  # a console without output for 10 s is omitted
    machine = [seen[name] for name in ("prepared", "started", "console", "banner") if name in seen]
    assert machine == sorted(machine) and machine[0] > 0
    assert "console" not in phases["lxc"] and 0 < phases["lxc"]["prepared"] < phases["lxc"]["started"]
    assert phases["lxc"]["started"] < phases["lxc"]["banner"] < phases["kvm-direct"]["banner"]
    bare = [raw["kvm-direct"][name][0] for name in ("started", "spoke", "answered")]
    assert bare == sorted(bare) and bare[0] > 0
    for data in ours.values():
        looked = data["inside"]
        assert all(looked[name][0] > 0 for name in ("exec", "launch", "response"))
        assert 0 < len(looked["ping"]) <= 5 and all(one > 0 for one in looked["ping"])
        assert data["disk_each"] is not None and data["delete"] > 0
    assert ours["kvm-direct"]["memory_each"] > ours["lxc"]["memory_each"] > 0
    assert "The thesis's phases" in [one.title for one in pages.content(result).tables]
    assert "half of 1 slices answered by ssh" in (run / "report.html").read_text()
    assert node.slices() == []


@pytest.mark.long
def test_ended_while_it_creates_and_resumed_without_an_echo(node: Node, tmp_path: Path) -> None:
    """Nothing remains between the runs; an address that does not answer is not a failure."""
    run = tmp_path / "run"
    sizes = ("--count", "6", "--parallel", "2", "--ping", "192.0.2.77")
    words = ("bench", "lifecycle", *sizes, "--output", str(run))
    environment = {**os.environ, "SLICEMGR_URL": node.url, "SLICEMGR_TOKEN": node.token()}
    argv = [str(BIN / "slicectl"), *words]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        eventually(lambda: len(node.slices()) > 2 or process.poll() is not None, "it creates", 300)
    finally:
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=240)[1]
    assert process.returncode == 130 and node.slices() == [], said
    assert list(folder.read(run).steps) == ["1/lxc/raw"]
    node.ok(*words, "--resume", timeout=400)
    result = folder.read(run)
    data = result.steps["1/lxc/slices"]["data"]
    assert result.info["outcome"] == "done" and len(data["phases"]["banner"]) == 6
    assert "before the interruption" in result.info["notes"][0] and node.slices() == []
    assert data["inside"]["ping"] == []
    assert "lxc: no echo came back from 192.0.2.77." in pages.content(result).outcome

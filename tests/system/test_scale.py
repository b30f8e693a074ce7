"""bench scale on a real node: it measures the node, and cleans up after any end."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from testbed import BIN, Node, eventually

from slicemgr.bench.frame import folder

MOST, STEP = 16, 4  # long enough for a second one to be refused meanwhile


def start(node: Node, *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "SLICEMGR_URL": node.url, "SLICEMGR_TOKEN": node.token()}
    argv = [str(BIN / "slicectl"), "bench", "scale", *words]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def end(node: Node, process: subprocess.Popen[str], number: signal.Signals) -> str:
    """End the program after its first step. Returns its output."""
    try:
        eventually(lambda: len(node.slices()) > STEP or process.poll() is not None, "it is beyond its first step", 120)
        assert process.poll() is None, process.communicate()
    finally:
        process.send_signal(number)
        said = process.communicate(timeout=240)[1]
    return said


@pytest.mark.long
def test_a_run_that_is_ended_twice_and_resumed(node: Node, tmp_path: Path) -> None:
    """SIGINT leaves nothing; --resume continues after SIGKILL. No second run starts on its node or in its folder."""
    run = tmp_path / "run"
    words = ("--to", str(MOST), "--step", str(STEP), "--parallel", "2", "--output", str(run))
    first = start(node, *words)
    try:
        eventually((run / "run.json").exists, "it has its folder")
        second = node.slicectl("bench", "scale", "--to", "2", "--output", tmp_path / "second")
        assert second.returncode == 4 and "an experiment runs on this node" in second.stderr, second.stderr
        assert str(first.pid) in second.stderr and not (tmp_path / "second").exists()
    finally:
        said = end(node, first, signal.SIGINT)
    assert first.returncode == 130 and node.slices() == [], said
    taken = node.slicectl("bench", "scale", "--to", "2", "--output", run)
    assert taken.returncode == 4 and "--output" in taken.stderr and f"its to is {MOST}, not 2" in taken.stderr
    kept = (run / "steps.jsonl").read_text()
    end(node, start(node, *words, "--resume"), signal.SIGKILL)
    assert len(node.slices()) > STEP
    node.ok("bench", "scale", *words, "--resume", timeout=400)
    assert node.slices() == [] and (run / "steps.jsonl").read_text().startswith(kept) and kept
    result = folder.read(run)
    _measured_the_node(result)
    assert f"{MOST} of {MOST} lxc slivers ran on the node" in (run / "report.html").read_text()


def _measured_the_node(result: folder.Run) -> None:
    assert result.info["outcome"] == "done" and result.steps["1/check"]["data"] == {"slivers": MOST, "reached": MOST}
    looks = {one["data"]["n"]: one["data"] for one in result.steps.values() if "n" in one["data"]}
    assert list(looks) == [*range(0, MOST + 1, STEP)]
    nodes = [one["node"] for one in looks.values()]
    assert all(one["pids"] > MOST for one in nodes), "of the whole machine, where others come and go"
    assert all(one["memory_total"] > one["memory_available"] > 0 and one["disk_free"] > 0 for one in nodes)
    assert looks[MOST]["own"]["memory"] > 0 and looks[MOST]["own"]["disk"] >= 0
    facts = result.info["node"]
    assert facts["cpu_model"] and facts["filesystem"] == "btrfs" and facts["kernel"] == os.uname().release


def test_an_image_that_is_not_there(node: Node, tmp_path: Path) -> None:
    said = node.slicectl("bench", "scale", "--image", "no-such-image", "--to", "2", "--output", tmp_path / "run")
    assert said.returncode == 2 and len(said.stderr.splitlines()) == 1
    assert "image: there is no image 'no-such-image'" in said.stderr
    assert node.slices() == [] and not (tmp_path / "run").exists()

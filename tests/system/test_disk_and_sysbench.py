"""bench io and bench sysbench on a real node: in slivers, on its roots and on the node itself, and the cleanup."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from testbed import BIN, POOL, Node, eventually

from slicemgr.bench.experiments import io, sysbench
from slicemgr.bench.frame import folder

PLACES = ("lxc", "overlay", "copy", "snapshot")  # in the order that this seed chooses
SEED = "15"


def start(node: Node, directory: Path, *words: str, path: str = "") -> subprocess.Popen[str]:
    """directory: for its temporary files, which outlive it if it is killed. path: another PATH."""
    own = {"SLICEMGR_URL": node.url, "SLICEMGR_TOKEN": node.token(), "TMPDIR": str(directory)}
    environment = {**os.environ, **own, **({"PATH": path} if path else {})}
    argv = [str(BIN / "slicectl"), *words]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def end(process: subprocess.Popen[str], run: Path, place: str, number: signal.Signals) -> str:
    """End the program during its work in this place. Returns its output."""
    steps = run / "steps.jsonl"

    def begun() -> bool:
        measured = steps.exists() and f'"1/{place}/' in steps.read_text()
        return measured or process.poll() is not None

    try:
        eventually(begun, f"the first of {place} was measured", 300)
        assert process.poll() is None, process.communicate()
    finally:
        process.send_signal(number)
        said = process.communicate(timeout=300)[1]
    return said


def nothing_left(node: Node) -> bool:
    slivers = node.box.run(["ls", str(POOL / "slivers")], check=True).stdout
    return node.slices() == [] and slivers.strip() == ""


@pytest.mark.long
def test_a_sliver_and_three_roots_ended_twice_and_resumed(node: Node, tmp_path: Path) -> None:
    """After SIGINT the program waits for the operation of the node; after SIGKILL, --resume waits for it."""
    run = tmp_path / "run"
    sizes = ("--databases", "200000", "--files", "50", "--memory", "512M", "--disk", "2G", "--repeat", "1")
    on = [word for place in sorted(PLACES) for word in ("--on", place)]
    words = ("bench", "io", *on, "--seed", SEED, *sizes, "--output", str(run))
    end(start(node, tmp_path, *words), run, "overlay", signal.SIGKILL)
    resumed = start(node, tmp_path, *words, "--resume")
    said = end(resumed, run, "copy", signal.SIGINT)
    assert resumed.returncode == 130 and nothing_left(node), said
    kept = (run / "steps.jsonl").read_text()
    node.ok(*words, "--resume", timeout=900)
    assert nothing_left(node) and (run / "steps.jsonl").read_text().startswith(kept)
    result = folder.read(run)
    assert result.info["outcome"] == "done" and [one for one in result.steps.values() if one.get("missing")] == []
    found = {(one["data"]["place"], one["data"]["what"]): one["data"] for one in result.steps.values()}
    assert list(found) == [(place, what) for place in PLACES for what in (io.SQLITE, io.FILES)]
    assert all(data[name] > 0 for data in found.values() for name in io.MEASURED)
    assert all(found[place, what]["make"] > 0 for place in io.ROOTS for what in (io.SQLITE, io.FILES))
    assert found["copy", io.SQLITE]["make"] > found["snapshot", io.SQLITE]["make"], "a whole Debian is copied"
    assert "lxc sliver" in (run / "report.html").read_text()


@pytest.mark.long
def test_host_and_lxc_without_sysbench_in_the_image(node: Node, tmp_path: Path) -> None:
    """The sliver, which has no way to a mirror, gets the sysbench of this machine, or none if there is none."""
    short = ("--seconds", "1", "--size", "16M", "--memory", "512M", "--disk", "1G", "--repeat", "1")
    words = ("bench", "sysbench", "--on", "host", "--on", "lxc", *short)
    run = tmp_path / "run"
    said = node.slicectl(*words, "--output", run, timeout=600)
    assert said.returncode == 0, said.stderr
    assert "lxc has no sysbench: it gets the one of this machine" in said.stderr
    result = folder.read(run)
    for place in ("host", "lxc"):
        found = [one["data"] for one in result.steps.values() if one["series"].endswith(f"/{place}")]
        assert [data["test"] for data in found] == list(sysbench.TESTS)
        assert all(data["version"].startswith("1.") for data in found)
        assert all(data[name] > 0 for data in found for name in sysbench.MEASURED[data["test"]])
        assert all(bool(data.get("sent")) == (place == "lxc") for data in found)
    assert "the sysbench of the machine of slicectl ran" in (run / "report.md").read_text() and nothing_left(node)
    client = tmp_path / "bin"
    client.mkdir()
    (client / "ssh").symlink_to("/usr/bin/ssh")
    lacks = tmp_path / "lacks"
    process = start(node, tmp_path, *words, "--test", "cpu", "--output", str(lacks), path=str(client))
    stderr = process.communicate(timeout=600)[1]
    assert process.returncode == 0, stderr
    assert "the image debian-12: sysbench is not installed (to install it: `apt-get update &&" in stderr
    assert all(one["missing"] for one in folder.read(lacks).steps.values() if one["series"].endswith("/lxc"))
    assert "Not measured" in (lacks / "report.md").read_text() and nothing_left(node)

"""bench all --quick on a real node: every experiment measures, and one page has links to the reports of all."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from testbed import BIN, Node

from slicemgr.bench.frame import collection, folder

NODEBOX = Path(__file__).parent.parent.parent / "tools" / "nodebox"


def outcomes(path: Path) -> dict[str, str]:
    return {one.name: one.outcome for one in collection.read(path, "FOLDER").parts}


@pytest.mark.long
def test_every_experiment_measures_as_in_the_demo(node: Node, tmp_path: Path) -> None:
    """From this machine all but peers, for which it is not the node, nodes, as no other node has joined, and guests.

    Guests are compared if `kvm` is one of the types. Nothing is missing, although no mirror answers.
    """
    run = tmp_path / "all"
    end = shlex.join([str(NODEBOX), "enter", node.box.name, "--"])
    said = node.slicectl("bench", "all", "--quick", "--node-exec", end, "--output", run, timeout=1800)
    assert said.returncode == 0, said.stderr
    done = dict.fromkeys(("lifecycle", "scale", "io", "sysbench", "throughput"), "done")
    assert outcomes(run) == {**done, "peers": "left out", "nodes": "left out", "guests": "left out"}
    page = (run / "report.html").read_text()
    for name in done:
        missing = [one["missing"] for one in folder.read(run / name).steps.values() if one.get("missing")]
        assert missing == [], name
        assert f'href="{name}/report.html"' in page and (run / name / "report.html").is_file()
    assert node.slices() == []


def test_peers_measures_on_the_node_alone(node: Node, tmp_path: Path) -> None:
    run = tmp_path / "all"
    words = ("bench", "all", "--quick", "--only", "peers", "--dry-run", "--output")
    outside = node.ok(*words, run)
    assert "left out: " in outside and "run it on the node, where the pool is mounted" in outside
    own: list[str | Path] = ["env", f"SLICEMGR_URL={node.url}", f"SLICEMGR_TOKEN={node.token()}", BIN / "slicectl"]
    inside = node.box.run([*own, *words, run], timeout=300)
    assert inside.returncode == 0 and "estimated duration" in inside.stdout, inside.stderr
    assert "left out" not in inside.stdout and not run.exists()

"""bench nodes at a testbed of boxes: a centre with a node of its own, a node beside it, and one behind a slow cable."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import boxed_testbed
import demo
import pytest
from boxed_testbed import BoxedTestbed
from demo import VENV

from slicemgr.bench.frame import folder
from slicemgr.bench.report import nodes as report
from slicemgr.bench.report import pages

pytestmark = pytest.mark.long
TRIP = 0.1  # seconds


@pytest.fixture(scope="module")
def testbed() -> Iterator[BoxedTestbed]:
    demo.RUN.mkdir(mode=0o700, exist_ok=True)
    made = BoxedTestbed("bench-", trips={"n2": 1000 * TRIP}, centre_runs=True)
    made.destroy()
    try:
        made.start()
        made.import_image()
        yield made
    finally:
        made.destroy()


def test_creates_on_every_node_and_their_round_trips(testbed: BoxedTestbed, tmp_path: Path) -> None:
    run, found = tmp_path / "run", testbed.centre.client()
    service = {"SLICEMGR_URL": found["url"], "SLICEMGR_TOKEN": found["token"]}
    words: list[str | Path] = [
        VENV / "bin/slicectl",
        "bench",
        "nodes",
        "--rounds",
        "5",
        "--placements",
        "5",
        "--output",
        run,
    ]
    environment = {**os.environ, **service, "SSL_CERT_FILE": str(testbed.centre.authority)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    result = folder.read(run)
    assert result.info["outcome"] == "done" and testbed.ask("list") == []
    measured = report.found_in(result)
    assert measured.local == "centre" and set(measured.remote) == set(boxed_testbed.SITES)
    assert len(measured.rounds) == 5
    assert measured.trip("n2") >= TRIP and measured.trip("n1") < TRIP / 2
    for node in measured.nodes:
        assert len(measured.values(node, "node")) == 5, "its steps are known"
    assert min(measured.values("n2", "way")) > TRIP / 2, "rows and reports cross the slow cable"
    made = pages.content(result)
    assert len(made.aims) == len(boxed_testbed.SITES) and all(one.reached is not None for one in made.aims)
    assert (run / "report.html").is_file() and (run / "phases.png").is_file()

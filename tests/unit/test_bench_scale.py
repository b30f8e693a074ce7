"""bench scale by its command line, against a testbed on paper: steps, stops, resumption, interruption, refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plain_plots
import pytest
from canned_service import operation, problem
from canned_service import slice as a_slice
from paper_testbed import GIB, PaperTestbed

from slicemgr.bench.experiments import scale
from slicemgr.bench.frame import folder, lock, slivers
from slicemgr.cli import INTERRUPTED, main
from slicemgr.client import Client
from slicemgr.errors import Code

SMALL = ("bench", "scale", "--to", "7", "--step", "3", "--parallel", "2")


@pytest.fixture
def testbed() -> Iterator[PaperTestbed]:
    with PaperTestbed() as made:
        yield made


@pytest.fixture
def slicectl(testbed: PaperTestbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLICEMGR_URL", testbed.url)
    monkeypatch.setenv("SLICEMGR_TOKEN", "admin")


def _parameters(**more: Any) -> scale.ScaleParameters:
    return scale.ScaleParameters(lambda: Client("http://127.0.0.1:1", "x"), "node1", "key", "bench-x-", **more)


def test_steps_end_at_what_was_asked_for_and_are_the_same_each_time() -> None:
    ids = [one.id for one in scale.steps(_parameters(to=7, step=3, repeat=2))]
    assert ids == [f"{turn}/{one}" for turn in (1, 2) for one in (0, 3, 6, 7, "check", "delete")]
    assert [one.id for one in scale.steps(_parameters(to=5, step=5))] == ["1/0", "1/5", "1/check", "1/delete"]


def test_run_json_keeps_its_names() -> None:
    """A run of an earlier version can be resumed, and its report is made of the same names."""
    assert list(_parameters(type="kvm").recorded.items())[:2] == [("node", "node1"), ("kind", "kvm")]


@pytest.mark.usefixtures("slicectl")
def test_a_run_from_nothing_to_a_report(testbed: PaperTestbed, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main([*SMALL, "--repeat", "2", "--output", str(run)]) == 0
    result = folder.read(run)
    assert result.info["outcome"] == "done" and testbed.there == {} and testbed.most == 7
    assert [one["data"]["n"] for one in result.steps.values() if "n" in one["data"]] == [0, 3, 6, 7] * 2
    assert [len(one["data"]["creates"]) for one in result.steps.values() if "creates" in one["data"]] == [
        0,
        3,
        3,
        1,
    ] * 2
    assert all(
        0 < one["accepted"] <= one["operation"] <= one["banner"] for one in result.steps["1/6"]["data"]["creates"]
    )
    assert result.steps["1/6"]["data"]["again"] == {"slivers": 3, "reached": 3}
    assert result.steps["2/check"]["data"] == {"slivers": 7, "reached": 7}
    assert result.info["node"]["cpu_model"] == "paper" and result.info["noise"] == {
        "load": 0.5,
        "cpus": 2,
        "slivers": 0,
    }
    assert {"report.html", "report.md", "data.csv", "data.json"} <= {one.name for one in run.iterdir()}
    names = {one.body["name"] for one in testbed.asked("POST /slices")}
    assert all(name.startswith(result.info["prefix"]) and len(name) <= 40 for name in names)


@pytest.mark.usefixtures("slicectl")
@pytest.mark.parametrize(("ended", "waits"), [("09:59:59", True), ("09:00:00", False)])
def test_what_was_deleted_before_is_waited_for(
    testbed: PaperTestbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: str, waits: bool
) -> None:
    """The control: an old deletion causes no wait, and the first state is used."""
    monkeypatch.setattr(scale, "_WAKES", 0.1)
    testbed.uncleaned = 15
    gone = operation("done", id="gone", kind="delete", finished_at=f"2026-11-21T{ended}Z")
    testbed.on("GET /operations", {"operations": [gone]})
    run = tmp_path / "run"
    assert main(["bench", "scale", "--to", "1", "--step", "1", "--output", str(run)]) == 0
    found = folder.read(run).steps["1/0"]["data"]["node"]["disk_used"]
    assert (found == 10 * GIB) == waits


@pytest.mark.usefixtures("slicectl")
def test_a_dry_run_says_the_steps_and_does_nothing(
    testbed: PaperTestbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, "--output", str(tmp_path / "run"), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "1/3  3 lxc" in said and "6 steps into" in said
    assert testbed.asked("POST /slices") == [] and not (tmp_path / "run").exists()


def test_a_node_that_takes_no_more_is_told_and_what_ran_is_looked_at(
    testbed: PaperTestbed, slicectl: None, tmp_path: Path
) -> None:
    testbed.room = 5
    run = tmp_path / "run"
    assert main([*SMALL, "--output", str(run)]) == 0
    result = folder.read(run)
    assert result.info["outcome"] == "stopped" and "1/7" not in result.steps
    assert "of 6 slivers 5 came up" in result.info["reason"] and "no memory left" in result.info["reason"]
    assert result.steps["1/6"]["data"]["n"] == 5 and len(result.steps["1/6"]["data"]["creates"]) == 2
    assert result.steps["1/check"]["data"] == {"slivers": 5, "reached": 5} and testbed.there == {}


def test_after_the_first_that_fails_no_more_are_asked_for(
    testbed: PaperTestbed, slicectl: None, tmp_path: Path
) -> None:
    testbed.room = 2
    run = tmp_path / "run"
    assert main(["bench", "scale", "--to", "40", "--step", "40", "--parallel", "1", "--output", str(run)]) == 0
    assert testbed.most <= 3 and folder.read(run).steps["1/40"]["data"]["n"] == 2 and testbed.there == {}


def test_the_guard_stops_within_a_large_step(
    testbed: PaperTestbed, slicectl: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slivers, "_BETWEEN_LOOKS", 0.0)
    testbed.each = 2 * GIB
    run = tmp_path / "run"
    assert main(["bench", "scale", "--to", "40", "--step", "40", "--parallel", "1", "--output", str(run)]) == 0
    assert "the node has too little left: memory" in folder.read(run).info["reason"]
    assert 5 <= testbed.most <= 8 and testbed.there == {}


def test_a_service_that_takes_no_requests_is_no_full_node(
    testbed: PaperTestbed, slicectl: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create = testbed._replies["POST /slices"][0]
    testbed.on("POST /slices", create, create, problem(403, "denied", "you may not"))
    run = tmp_path / "run"
    assert main([*SMALL, "--output", str(run)]) == Code.DENIED.exit_status
    assert "you may not" in capsys.readouterr().err
    assert folder.read(run).info["outcome"] == "failed" and testbed.there == {}


def test_what_cannot_be_deleted_is_told(
    testbed: PaperTestbed, slicectl: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    testbed.stuck = True
    run = tmp_path / "run"
    assert main([*SMALL, "--output", str(run)]) == Code.FAILED.exit_status
    said = capsys.readouterr().err
    assert "7 slices of the experiment could not be deleted: the agent is stuck" in said
    assert f"remaining slices begin with {folder.read(run).info['prefix']}" in said


def test_the_guard_stops_before_the_memory_ends(testbed: PaperTestbed, slicectl: None, tmp_path: Path) -> None:
    testbed.each = 2 * GIB
    run = tmp_path / "run"
    assert main([*SMALL, "--output", str(run)]) == 0
    result = folder.read(run)
    assert result.info["outcome"] == "stopped" and result.steps["1/6"]["stopped"].startswith("memory: 6 GiB of 16 GiB")
    assert result.steps["1/6"]["data"] == {} and testbed.most == 3 and testbed.there == {}


@pytest.mark.usefixtures("slicectl")
def test_too_few_ports_are_refused_before_the_start(
    testbed: PaperTestbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    testbed.ports = 100
    assert main([*SMALL, "--output", str(tmp_path / "run")]) == Code.QUOTA.exit_status
    said = capsys.readouterr().err
    assert "--to: 7 slivers take 140 ports, and node1 has 100 (at most 5" in said
    assert testbed.most == 0 and len(said.splitlines()) == 1 and not (tmp_path / "run").exists()


@pytest.mark.usefixtures("slicectl")
def test_beside_slices_of_another_experiment_it_is_refused(
    testbed: PaperTestbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    testbed.there["bench-other-0001"] = a_slice("bench-other-0001", slivers=[])
    assert main([*SMALL, "--output", str(tmp_path / "run")]) == Code.CONFLICT.exit_status
    assert "slices of another experiment exist: bench-other-0001" in capsys.readouterr().err
    assert list(testbed.there) == ["bench-other-0001"]


@pytest.mark.usefixtures("slicectl")
def test_a_second_one_while_one_runs_is_refused(
    testbed: PaperTestbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with lock.held(lock.path(testbed.url, "node1"), "`io` into /elsewhere"):
        assert main([*SMALL, "--output", str(tmp_path / "run")]) == Code.CONFLICT.exit_status
    assert "an experiment runs on this node: `io` into /elsewhere" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--resume",), "--resume: which run should be continued?"),
        (("--boot", "uefi"), "--boot: is for virtual machines"),
        (("--to", "0"), "--to"),
        (("--resume", "--output", "/nonexistent/run"), "--output: /nonexistent/run has no run to resume"),
    ],
)
@pytest.mark.usefixtures("slicectl")
def test_bad_input_names_the_field(words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, *words]) != 0
    said = capsys.readouterr().err
    assert says in said and len(said.splitlines()) == 1


# --- interrupted, killed, resumed -------------------------------------------------------------------------------------


def _start(testbed: PaperTestbed, *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "SLICEMGR_URL": testbed.url, "SLICEMGR_TOKEN": "admin"}
    argv = [sys.executable, plain_plots.__file__, *SMALL, *words]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def _until_there(testbed: PaperTestbed, count: int, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60
    while len(testbed.there) < count:
        assert time.monotonic() < end and process.poll() is None, process.communicate()
        time.sleep(0.002)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_while_it_creates(testbed: PaperTestbed, tmp_path: Path, number: signal.Signals) -> None:
    testbed.slow = 0.3
    process = _start(testbed, "--output", str(tmp_path / "run"))
    _until_there(testbed, 4, process)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED, said
    assert "2 finished steps are stored" in said and testbed.there == {}
    result = folder.read(tmp_path / "run")
    assert list(result.steps) == ["1/0", "1/3"] and result.info["outcome"] == "interrupted"
    assert (tmp_path / "run" / "data.csv").exists()


def test_kept_when_asked_for(testbed: PaperTestbed, tmp_path: Path) -> None:
    testbed.slow = 0.3
    process = _start(testbed, "--output", str(tmp_path / "run"), "--keep")
    _until_there(testbed, 4, process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED and len(testbed.there) >= 4


@pytest.mark.usefixtures("slicectl")
def test_what_a_run_left_is_cleaned_away_and_nothing_else(testbed: PaperTestbed, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main([*SMALL, "--output", str(run), "--keep"]) == 0
    testbed.there["bench-other-0001"] = a_slice("bench-other-0001", slivers=[])
    assert len(testbed.there) == 8
    assert main(["bench", "clean", str(run)]) == 0
    assert list(testbed.there) == ["bench-other-0001"] and folder.read(run).info["outcome"] == "done"


@pytest.mark.usefixtures("slicectl")
def test_what_was_kept_is_deleted_by_the_resumption_and_timed(testbed: PaperTestbed, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main([*SMALL, "--output", str(run), "--keep"]) == 0
    assert len(testbed.there) == 7 and "1/delete" not in folder.read(run).steps
    assert main([*SMALL, "--output", str(run), "--resume"]) == 0
    result = folder.read(run)
    assert result.steps["1/delete"]["data"]["slivers"] == 7 and testbed.there == {}
    assert result.info["notes"] == ["resumed at delete: 0 of 7 slivers were made again, which is not measured"]


@pytest.mark.parametrize("prefix", ["", "bench-", "exp"])
@pytest.mark.usefixtures("slicectl")
def test_a_folder_without_a_prefix_of_its_own_cleans_nothing(
    testbed: PaperTestbed, tmp_path: Path, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    testbed.there["exp"] = a_slice("exp", slivers=[])
    with folder.Folder.take(tmp_path / "run", "scale", {}) as made:
        made.note({"prefix": prefix})
    assert main(["bench", "clean", str(tmp_path / "run")]) == Code.INVALID.exit_status
    assert "does not contain the names of its slices" in capsys.readouterr().err and list(testbed.there) == ["exp"]


@pytest.mark.parametrize("left", ["all", pytest.param("some", marks=pytest.mark.long)])
def test_killed_while_it_creates_and_resumed(testbed: PaperTestbed, tmp_path: Path, left: str) -> None:
    testbed.slow = 0.3
    run = tmp_path / "run"
    process = _start(testbed, "--output", str(run))
    _until_there(testbed, 4, process)
    process.kill()
    process.communicate(timeout=60)
    testbed.slow = 0.0
    before = (run / "steps.jsonl").read_text()
    prefix = json.loads((run / "run.json").read_text())["prefix"]
    assert len(before.splitlines()) == 2 and len(testbed.there) >= 4
    if left == "some":
        del testbed.there[f"{prefix}0001"]
    resumed = _start(testbed, "--output", str(run), "--resume")
    out, said = resumed.communicate(timeout=60)
    assert resumed.returncode == 0 and out == f"done: {run}\n", said
    assert (run / "steps.jsonl").read_text().startswith(before) and testbed.there == {}
    result = folder.read(run)
    assert [one["data"]["n"] for one in result.steps.values() if "n" in one["data"]] == [0, 3, 6, 7]
    made = 0 if left == "all" else 1
    assert result.info["notes"] == [f"resumed at 6 lxc: {made} of 3 slivers were made again, which is not measured"]
    assert [one["outcome"] for one in result.info["turns"]] == ["done"]

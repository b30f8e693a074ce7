"""bench io against a testbed on paper: its slivers run the real program here, its node measures by simple laws."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import plain_plots
import pytest
from canned_service import Answer
from canned_service import slice as a_slice
from paper_loads import IMAGE, SHA, PaperLoads, here

from slicemgr.bench.experiments import io
from slicemgr.bench.frame import folder
from slicemgr.bench.frame import run as drive
from slicemgr.bench.frame.load_hosts import numbers
from slicemgr.bench.report import pages
from slicemgr.cli import INTERRUPTED, main
from slicemgr.cli.bench import loads
from slicemgr.cli.bench.progress import Lines
from slicemgr.errors import Code, Failed, Refused

SMALL = ("bench", "io", "--databases", "70000", "--files", "3,30", "--repeat", "2")
ON_NODE = (*SMALL, "--on", "snapshot", "--on", "overlay", "--on", "copy")


@pytest.fixture
def testbed() -> Iterator[PaperLoads]:
    with PaperLoads() as made:
        yield made


@pytest.fixture
def slicectl(testbed: PaperLoads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLICEMGR_URL", testbed.url)
    monkeypatch.setenv("SLICEMGR_TOKEN", "admin")


def parameters(testbed: PaperLoads, directory: Path, **more: Any) -> io.IoParameters:
    wanted = {
        "databases": (70_000,),
        "counts": (3, 30),
        "repeat": 2,
        "images": dict.fromkeys(("lxc", "kvm"), "debian-12"),
    }
    return io.IoParameters(here(testbed, directory), **{**wanted, **more})


def carry_out(wanted: io.IoParameters, path: Path, *, resume: bool = False) -> folder.Run:
    experiment = io.Io(wanted)
    with folder.Folder.take(path, io.NAME, wanted.recorded, resume=resume) as taken:
        try:
            drive.carry_out(experiment, taken, Lines())
        finally:
            experiment.close()
    return folder.read(path)


# --- what is run ------------------------------------------------------------------------------------------------------


def test_the_command_line_knows_the_places_and_the_thesis_sizes(testbed: PaperLoads, tmp_path: Path) -> None:
    options = {one.name: one for one in loads.io.params}
    assert options["places"].default == io.PLACES
    for name, known in (("databases", io.DATABASES), ("counts", io.COUNTS)):
        assert options[name].default == ",".join(map(str, known))


def test_each_repetition_has_an_order_of_its_own_that_the_seed_chose(testbed: PaperLoads, tmp_path: Path) -> None:
    def order(seed: int, turn: int) -> list[str]:
        ids = [one.id.split("/") for one in io.steps(parameters(testbed, tmp_path, repeat=6, seed=seed))]
        return list(dict.fromkeys(place for number, place, *_ in ids if number == str(turn)))

    orders = [order(1, turn) for turn in range(1, 7)]
    assert all(set(one) == set(io.PLACES) for one in orders) and len({*map(tuple, orders)}) > 1
    assert orders == [order(1, turn) for turn in range(1, 7)] != [order(2, turn) for turn in range(1, 7)]
    steps = io.steps(parameters(testbed, tmp_path))
    assert len(steps) == len({one.id for one in steps}) == 2 * 5 * 3


def test_a_run_in_slivers_and_on_the_node(testbed: PaperLoads, tmp_path: Path) -> None:
    result = carry_out(parameters(testbed, tmp_path), tmp_path / "run")
    assert result.info["outcome"] == "done" and len(result.steps) == 30 and testbed.there == {} and testbed.most == 1
    for one in result.steps.values():
        data = one["data"]
        assert all(data[name] > 0 for name in io.MEASURED) and ("make" in data) == (data["place"] in io.ROOTS)
    assert list((tmp_path / "inside").iterdir()) == [], "the program takes away what it made"
    made = [one.body for one in testbed.asked("POST /slices") if not one.body.get("dry_run")]
    assert [one["type"] for one in made].count("lxc") == 2 and len(made) == 4
    assert all(one["name"].startswith("bench-x-") and one["cpu"] == 2 and one["ports"] == 1 for one in made)
    assert [one.get("boot") for one in made if one["type"] == "kvm"] == ["direct"] * 2
    assert {one["image"] for one in testbed.measured} == {SHA}
    seeds = {(one["what"], one["size"], one["seed"]) for one in testbed.measured}
    assert len(seeds) == 3 * 2, "all places of a repetition have the same data, and the next one others"


def test_the_need_counts_what_is_made_and_copied(testbed: PaperLoads, tmp_path: Path) -> None:
    experiment = io.Io(parameters(testbed, tmp_path))
    experiment.prepare({}, experiment.steps(), Lines())
    needs = {one.id: experiment.need(one) for one in experiment.steps()}
    assert needs["1/snapshot/sqlite/70000"].disk == 210_000
    assert needs["1/copy/sqlite/70000"].disk == 210_000 + (3 << 30)
    assert needs["1/kvm/files/30"].memory > 2 << 30 > needs["1/lxc/files/30"].memory
    experiment.close()


# --- what is not there ------------------------------------------------------------------------------------------------


def test_a_type_and_a_root_that_are_missing_are_listed_and_tried_again(testbed: PaperLoads, tmp_path: Path) -> None:
    testbed.types["kvm"] = False
    testbed.missing["overlay"] = "this kernel cannot mount overlayfs"
    result = carry_out(parameters(testbed, tmp_path), tmp_path / "run")
    assert result.info["outcome"] == "done"
    lacks = {name: one["missing"] for name, one in result.steps.items() if one.get("missing")}
    assert len(lacks) == 2 * 2 * 3
    assert set(lacks.values()) == {
        "the node runs no kvm: kvm is not for paper",
        "the node: this kernel cannot mount overlayfs",
    }
    content = pages.content(result)
    (table,) = [one for one in content.tables if one.title == "Not measured"]
    assert sorted(str(row[0]) for row in table.rows) == ["kvm", "overlay"]
    assert "Not measured: kvm (the node runs no kvm: kvm is not for paper)." in content.outcome
    assert not any("kvm sliver" in one.name for one in table.columns)
    before = (tmp_path / "run" / "steps.jsonl").read_text()
    testbed.types["kvm"] = True
    again = carry_out(parameters(testbed, tmp_path), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "steps.jsonl").read_text().startswith(before)
    assert {name for name, one in again.steps.items() if one.get("missing")} == {
        name for name in lacks if "/overlay/" in name
    }


def test_an_image_without_a_linux_makes_no_roots(testbed: PaperLoads, tmp_path: Path) -> None:
    testbed.on("GET /images/debian-12", {**IMAGE, "os": ""})
    result = carry_out(parameters(testbed, tmp_path, places=("copy",)), tmp_path / "run")
    assert {one["missing"] for one in result.steps.values()} == {
        "the image debian-12 has no Linux in it, so no root is made of it"
    }
    assert testbed.measured == []


def test_no_python_in_the_image(testbed: PaperLoads, tmp_path: Path) -> None:
    wanted = parameters(testbed, tmp_path, places=("lxc",))
    bare = replace(wanted, way=replace(wanted.way, login=lambda *_: ["sh", "-c", "PATH=/nonexistent; exec python3"]))
    result = carry_out(bare, tmp_path / "run")
    assert {one["missing"] for one in result.steps.values()} == {
        "the image debian-12 has no python3 (to install it: apt-get install python3)"
    }


def _says(what: str) -> Any:
    return lambda *_: ["sh", "-c", f"cat > /dev/null; echo '{what}'"]


def test_a_sliver_that_says_something_else_breaks_the_run(testbed: PaperLoads, tmp_path: Path) -> None:
    for said, complaint in (
        ("hello", "printed no result"),
        ('{"read": "NaN"}', "read is 'NaN'"),
        ('{"failed": "x"}', ": x"),
    ):
        wanted = parameters(testbed, tmp_path, places=("lxc",))
        lying = replace(wanted, way=replace(wanted.way, login=_says(said)))
        with pytest.raises(Failed, match=complaint):
            carry_out(replace(lying, seed=len(said)), tmp_path / str(len(said)))
        assert testbed.there == {}


@pytest.mark.parametrize("value", [None, True, "1", -1, float("nan"), float("inf")])
def test_only_numbers_are_taken(value: Any) -> None:
    assert numbers({"a": 1, "version": "3", "more": 2}, ("a",), "x") == {"a": 1.0, "version": "3"}
    with pytest.raises(Failed, match="x: a is"):
        numbers({"a": value}, ("a",), "x")


def test_a_node_that_breaks_is_told_and_what_was_measured_is_kept(
    testbed: PaperLoads, slicectl: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    testbed.broken = "the pool is gone"
    assert main([*ON_NODE, "--output", str(tmp_path / "run")]) == Code.FAILED.exit_status
    assert "on the node: the pool is gone" in capsys.readouterr().err
    testbed.broken = ""
    assert main([*ON_NODE, "--output", str(tmp_path / "run")]) == 0
    assert folder.read(tmp_path / "run").info["outcome"] == "done"


@pytest.mark.usefixtures("slicectl")
def test_what_an_earlier_process_asked_for_is_waited_for(
    testbed: PaperLoads, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = {"id": "old", "kind": "io", "state": "running", "version": 1}
    testbed.left = [one]

    def look(_: object) -> Answer:
        testbed.left = []
        return Answer(200, {**one, "state": "done", "version": 2})

    testbed.on("GET /operations/old", look)
    assert main([*ON_NODE, "--output", str(tmp_path / "run")]) == 0
    assert "the node finishes an earlier measurement" in capsys.readouterr().err
    assert testbed.asked("GET /operations/old") != []


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("slicectl")
def test_a_dry_run_says_the_steps_and_does_nothing(
    testbed: PaperLoads, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, "--output", str(tmp_path / "run"), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "1/lxc/files/30  lxc, 30 files (1 of 2)" in said and "30 steps into" in said
    assert {one.method for one in testbed.requests} == {"GET"} and not (tmp_path / "run").exists()


@pytest.mark.usefixtures("slicectl")
def test_a_run_on_the_node_makes_a_report(testbed: PaperLoads, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main([*ON_NODE, "--output", str(run)]) == 0
    assert {"report.html", "report.md", "data.csv", "make.png", "sqlite-write.png"} <= {
        one.name for one in run.iterdir()
    }
    assert len((run / "data.csv").read_text().splitlines()) == 1 + 18
    assert testbed.asked("POST /slices") == []


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("--databases", "1"), 2, "--databases"),
        (("--databases", "a,b"), 2, "whole numbers from 65536"),
        (("--databases", "", "--files", ""), 2, "--databases: nothing to measure"),
        (("--on", "moon"), 2, "--on"),
        (("--memory", "much"), 2, "--memory"),
        (("--image", "lxc=no-such-image"), 3, "no-such-image"),
        (("--image", "vmware=x"), 2, "'vmware' is not a type"),
        (("--resume",), 2, "--resume: which run should be continued?"),
    ],
)
@pytest.mark.usefixtures("slicectl")
def test_bad_input_names_the_field(
    words: tuple[str, ...], status: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = () if "--resume" in words else ("--output", str(tmp_path / "run"))
    assert main([*SMALL, *output, *words]) == status
    said = capsys.readouterr().err
    assert says in said and len(said.splitlines()) == 1 and not (tmp_path / "run").exists()


@pytest.mark.usefixtures("slicectl")
def test_beside_slices_of_another_experiment_it_is_refused(
    testbed: PaperLoads, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    testbed.there["bench-other-1-lxc"] = a_slice("bench-other-1-lxc", slivers=[])
    assert main([*SMALL, "--output", str(tmp_path / "run")]) == Code.CONFLICT.exit_status
    assert "bench-other-1-lxc" in capsys.readouterr().err and list(testbed.there) == ["bench-other-1-lxc"]


# --- interrupted, killed, resumed -------------------------------------------------------------------------------------


def start(testbed: PaperLoads, *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "SLICEMGR_URL": testbed.url, "SLICEMGR_TOKEN": "admin"}
    argv = [sys.executable, plain_plots.__file__, *ON_NODE, *words]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def until(process: subprocess.Popen[str], check: Any) -> None:
    end = time.monotonic() + 60
    while not check():
        assert time.monotonic() < end and process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_waits_for_what_the_node_was_asked(
    testbed: PaperLoads, tmp_path: Path, number: signal.Signals
) -> None:
    """The agent deletes its roots at the end of the operation; the run ends after that."""
    testbed.holds = 4
    process = start(testbed, "--output", str(tmp_path / "run"))
    until(process, lambda: len(testbed.measured) == 4)
    before = len(testbed.asked("GET /operations"))
    process.send_signal(number)
    until(process, lambda: len(testbed.asked("GET /operations")) > before)
    until(process, lambda: testbed.requests[-1].path == "/operations/node-4")
    assert testbed.left != [] and process.poll() is None
    testbed.ends.set()
    _, said = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED and "the node finishes an earlier measurement" in said, said
    assert testbed.left == []
    result = folder.read(tmp_path / "run")
    assert result.info["outcome"] == "interrupted" and len(result.steps) == 3


@pytest.mark.long
def test_killed_and_resumed(testbed: PaperLoads, tmp_path: Path) -> None:
    run = tmp_path / "run"
    testbed.holds = 6
    process = start(testbed, "--output", str(run))
    until(process, lambda: len(testbed.measured) == 6)
    process.kill()
    process.communicate(timeout=60)
    testbed.holds = 0
    testbed.ends.set()
    before = (run / "steps.jsonl").read_text()
    assert 0 < len(before.splitlines()) < 18
    resumed = start(testbed, "--output", str(run), "--resume")
    out, said = resumed.communicate(timeout=60)
    assert resumed.returncode == 0 and out == f"done: {run}\n", said
    assert (run / "steps.jsonl").read_text().startswith(before) and len(folder.read(run).steps) == 18


# --- the report -------------------------------------------------------------------------------------------------------


def run_of(path: Path, places: tuple[str, ...] = io.PLACES, *, repeat: int = 4, slow: float = 2.0) -> folder.Run:
    """Simple laws: overlay writes `slow` × as long as a snapshot, copying takes 1 s, reading is the same everywhere."""
    path.mkdir()
    lines = []
    for turn in range(1, repeat + 1):
        noise = 1 + turn / 100
        for place in places:
            for what, sizes in ((io.SQLITE, io.DATABASES), (io.FILES, io.COUNTS)):
                for size in sizes:
                    write = size / 1e6 * (slow if place == "overlay" else 1) * noise
                    data = {"turn": turn, "place": place, "what": what, "size": size, "read": size / 1e7 * noise}
                    data.update(write=write, sync=0.01)
                    if place in io.ROOTS:
                        data["make"] = (1.0 if place == "copy" else 0.004) * noise
                    head = {"step": f"{turn}/{place}/{what}/{size}", "title": place, "series": f"{turn}/{place}"}
                    lines.append(json.dumps({**head, "seconds": 1.0, "data": data}))
    info = {"format": folder.FORMAT, "experiment": "io", "parameters": {}, "outcome": "done"}
    (path / "run.json").write_text(json.dumps(info))
    (path / "steps.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder.read(path)


def test_the_thesis_statements_are_judged_by_significance(tmp_path: Path) -> None:
    content = pages.content(run_of(tmp_path / "run"))
    (table,) = [one for one in content.tables if one.title == "Compared with the thesis"]
    assert [row[2] for row in table.rows] == ["yes", "yes", "yes", "yes", "no"]
    assert table.rows[3][1] == "overlayfs 2 × btrfs snapshot, 111.6 MB"
    assert "Of 5 statements of the thesis that this run can judge, 4 hold here." in content.outcome
    equal = pages.content(run_of(tmp_path / "equal", slow=1.0))
    assert [row[2] for row in _table(equal, "Compared with the thesis")] == ["yes", "yes", "yes", "no", "no"]
    once = pages.content(run_of(tmp_path / "once", repeat=1))
    assert [row[2] for row in _table(once, "Compared with the thesis")] == [
        "undetermined",
        "yes",
        "yes",
        "undetermined",
        "undetermined",
    ]
    slivers = pages.content(run_of(tmp_path / "slivers", ("lxc", "kvm")))
    assert {row[2] for row in _table(slivers, "Compared with the thesis")} == {"undetermined"}


def _table(content: Any, title: str) -> list[Any]:
    return next(one.rows for one in content.tables if one.title == title)


def test_tables_have_each_size_and_place_with_its_interval(tmp_path: Path) -> None:
    content = pages.content(run_of(tmp_path / "run"))
    rows = _table(content, "SQLite, every table duplicated")
    assert [row[0] for row in rows] == ["151.6 kB", "536.6 kB", "2.6 MB", "11.9 MB", "111.6 MB"]
    assert rows[2][1] == "2.665 ± 0.053" and rows[2][3] == "5.33 ± 0.11"
    assert [row[0] for row in _table(content, "small files read")][-1] == "100 000 files"
    beside = {
        (row[0], row[1]): row[2:] for row in _table(content, "Compared with a btrfs snapshot, for the largest data")
    }
    assert beside["SQLite, every table duplicated, 111.6 MB", "overlayfs"][0] == pytest.approx(2)
    assert beside["SQLite, every table duplicated, 111.6 MB", "overlayfs"][2] == "yes"
    assert beside["small files read, 100 000 files", "kvm sliver"][2] == "no"
    assert {one.name for one in content.plots} == {"sqlite-read", "sqlite-write", "files-read", "files-write", "make"}


@pytest.mark.usefixtures("full_plots")
def test_the_pages_can_be_made_and_compared(tmp_path: Path) -> None:
    run, older = run_of(tmp_path / "new", slow=3.0), run_of(tmp_path / "old")
    assert (tmp_path / "new" / "report.html") in pages.write(run, older)
    text = (tmp_path / "new" / "report.md").read_text()
    assert "significantly worse: SQLite, every table duplicated, 111.6 MB, overlayfs" in text


def test_nothing_measured_is_told(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", repeat=0)
    with pytest.raises(Refused, match="no size was measured yet"):
        pages.content(run)
    assert io.label(io.FILES, 10) == "10 files"

"""bench lifecycle by its command line, against a testbed on paper: steps, phases, interruption, refusals, report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import click
import paper_ends
import paper_testbed
import pytest
from canned_service import operation, problem
from canned_service import slice as a_slice
from paper_ends import Ends
from paper_testbed import GIB, PaperTestbed

from slicemgr import wire
from slicemgr.bench.experiments import inside, lifecycle
from slicemgr.bench.experiments.lifecycle import Series
from slicemgr.bench.frame import folder, slivers
from slicemgr.bench.report import lifecycle as lifecycle_report
from slicemgr.bench.report import pages
from slicemgr.cli import INTERRUPTED, main
from slicemgr.cli.bench import lifecycle as bench_lifecycle
from slicemgr.cli.bench import options
from slicemgr.client import Client
from slicemgr.errors import Code

SMALL = ("bench", "lifecycle", "--count", "3", "--parallel", "2", "--ping", "127.0.0.1")


@pytest.fixture
def testbed() -> Iterator[PaperTestbed]:
    with PaperTestbed() as made:
        yield made


@pytest.fixture
def slicectl(testbed: PaperTestbed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLICEMGR_URL", testbed.url)
    monkeypatch.setenv("SLICEMGR_TOKEN", "admin")
    monkeypatch.setattr(slivers, "login", Ends(tmp_path / "ends").login)
    monkeypatch.setattr(inside, "server", _brief)


def _brief(port: int) -> str:
    """The real server, which ends after some time, because no sliver is deleted around it."""
    return "timeout 20 " + inside_server(port).removeprefix("setsid ")


inside_server = inside.server


def _parameters(**more: Any) -> lifecycle.LifecycleParameters:
    series = [Series("lxc", "debian-12"), Series("kvm", "small", "direct")]
    return lifecycle.LifecycleParameters(
        lambda: Client("http://127.0.0.1:1", "x"), series, "node1", ("key", b""), "bench-x-", **more
    )


def test_each_series_has_its_baseline_right_before_it() -> None:
    ids = [one.id for one in lifecycle.steps(_parameters(repeat=2))]
    once = [f"{series}/{part}" for series in ("lxc", "kvm-direct") for part in ("raw", "slices")]
    assert ids == [f"{turn}/{one}" for turn in (1, 2) for one in once]


def test_run_json_keeps_its_names() -> None:
    """A run of an earlier version can be resumed, and its report is made of the same names."""
    machines = {"kind": "kvm", "image": "small", "boot": "direct"}
    assert _parameters().recorded["series"] == [{"kind": "lxc", "image": "debian-12", "boot": ""}, machines]


@pytest.mark.usefixtures("slicectl")
def test_a_run_from_nothing_to_a_report(
    testbed: PaperTestbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main([*SMALL, "--repeat", "2", "--output", str(run)]) == 0
    result = folder.read(run)
    assert result.info["outcome"] == "done" and testbed.there == {} and testbed.most == 3
    assert list(result.steps) == [f"{turn}/lxc/{part}" for turn in (1, 2) for part in ("raw", "slices")]
    assert result.steps["1/lxc/raw"]["data"]["raw"] == paper_testbed.RAW
    data = result.steps["2/lxc/slices"]["data"]
    assert data["count"] == 3 and data["memory_each"] == testbed.each and data["create"] > 0
    phases = data["phases"]
    assert [len(phases[name]) for name in ("accepted", "prepared", "started", "operation", "banner")] == [3] * 5
    assert phases["prepared"] == [0.05] * 3 and phases["started"] == pytest.approx([0.11] * 3)
    looked = data["inside"]
    assert [len(looked[name]) for name in ("exec", "launch", "response")] == [3] * 3
    assert all(value > 0 for name in ("exec", "launch", "response") for value in looked[name])
    assert {"report.html", "report.md", "data.csv", "data.json"} <= {one.name for one in run.iterdir()}
    assert "lxc: half of 6 slices answered by ssh within" in capsys.readouterr().err
    asked = [one.body["name"] for one in testbed.asked("POST /slices")]
    assert all(name.startswith(result.info["prefix"]) for name in asked)


@pytest.mark.usefixtures("slicectl")
def test_slices_that_take_a_spare_are_measured_apart(
    testbed: PaperTestbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_SETTLED", 0.0)
    run = tmp_path / "run"
    assert main([*SMALL, "--warm", "--burst", "5", "--output", str(run)]) == 0
    result = folder.read(run)
    assert list(result.steps) == ["1/lxc/raw", "1/lxc/slices", "1/lxc/warm"] and testbed.there == {}
    warm = result.steps["1/lxc/warm"]["data"]["warm"]
    assert {name: len(values) for name, values in warm.items()} == {
        **dict.fromkeys(("accepted", "banner", "operation", "agent"), 3),
        "burst": 1,
    }
    created = [one.body for one in testbed.asked("POST /slices") if not one.body.get("dry_run")]
    assert [one["warm"] for one in created] == [False] * 3 + [True] * 8, "new slivers take no spare"
    said = pages.content(result)
    assert [one.title for one in said.tables][1] == "Slices that took a spare"
    assert [one.text for one in said.aims][-3:] == [
        "lxc, half of the creates that take a spare: ssh banner within 40 ms",
        "lxc, half of the creates that take a spare: the agent's work within 10 ms",
        "lxc, half of the creates that take a spare: a burst: for each, until all sent the banner within 15 ms",
    ]


@pytest.mark.parametrize(("most", "unfit"), [(0.5, 60.0), (3600.0, 0.5)], ids=["too long", "they do not fit"])
@pytest.mark.usefixtures("slicectl")
def test_a_node_without_spares_is_named_while_it_is_waited_for_and_then_an_error(
    testbed: PaperTestbed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    most: float,
    unfit: float,
) -> None:
    testbed.spares = False
    monkeypatch.setattr(lifecycle, "_SPARE_SECONDS", {"lxc": most})
    monkeypatch.setattr(lifecycle, "_SPARE_UNFIT", unfit)
    monkeypatch.setattr(lifecycle, "_SPARE_TOLD", 0.1)
    assert main([*SMALL, "--warm", "--output", str(tmp_path / "run")]) != 0
    told = capsys.readouterr().err
    assert told.count(f"waiting at most {most:.0f} s for spare slivers of the node: lxc image=") == 1
    assert "the node does not keep enough spares that fit these slices" in told


@pytest.mark.usefixtures("slicectl")
def test_a_dry_run_says_the_steps_and_does_nothing(
    testbed: PaperTestbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, "--output", str(tmp_path / "run"), "--dry-run"]) == 0
    assert "1/lxc/slices  lxc: slices" in capsys.readouterr().out
    assert testbed.asked("POST /slices") == [] and not (tmp_path / "run").exists()


@pytest.mark.usefixtures("slicectl")
def test_a_node_that_takes_no_more_is_told(testbed: PaperTestbed, tmp_path: Path) -> None:
    testbed.room = 2
    run = tmp_path / "run"
    assert main([*SMALL, "--output", str(run)]) == 0
    result = folder.read(run)
    assert result.info["outcome"] == "stopped" and "of 3 slivers 2 came up" in result.info["reason"]
    assert len(result.steps["1/lxc/slices"]["data"]["phases"]["banner"]) == 2 and testbed.there == {}
    said = pages.content(result)
    assert any("Stopped at lxc: slices" in one for one in said.outcome)
    assert [one.reached for one in said.aims][1:4] == [None] * 3


@pytest.mark.usefixtures("slicectl")
def test_the_guard_stops_before_the_memory_ends(
    testbed: PaperTestbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slivers, "_BETWEEN_LOOKS", 0.0)
    testbed.each = 5 * GIB
    run = tmp_path / "run"
    assert main([*SMALL, "--count", "40", "--output", str(run)]) == 0
    assert "the node has too little left: memory" in folder.read(run).info["reason"]
    assert testbed.most < 10 and testbed.there == {}


@pytest.mark.usefixtures("slicectl")
def test_a_baseline_that_fails_ends_it_with_its_reason(
    testbed: PaperTestbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    testbed.baseline = operation("failed", id="raw", kind="baseline", error="no base", hint="import it again")
    run = tmp_path / "run"
    assert main([*SMALL, "--output", str(run)]) == Code.FAILED.exit_status
    assert "the baseline: no base (import it again)" in capsys.readouterr().err
    assert folder.read(run).info["outcome"] == "failed" and testbed.most == 0


@pytest.mark.usefixtures("slicectl")
def test_a_web_server_that_does_not_start_is_told(
    testbed: PaperTestbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inside, "_LONGEST", 1.0)
    monkeypatch.setattr(inside, "server", lambda _: "true")
    assert main([*SMALL, "--output", str(tmp_path / "run")]) == Code.TIMEOUT.exit_status
    assert "no HTTP response from 127.0.0.1:" in capsys.readouterr().err and testbed.there == {}


@pytest.mark.usefixtures("slicectl")
def test_too_few_ports_an_unknown_image_and_others_are_refused_before_the_start(
    testbed: PaperTestbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    testbed.ports = 50
    assert main([*SMALL, "--output", str(run)]) == Code.QUOTA.exit_status
    assert "--count: 3 slivers take 60 ports, and node1 has 50 (at most 2" in capsys.readouterr().err
    testbed.there["bench-other-0001"] = a_slice("bench-other-0001", slivers=[])
    assert main([*SMALL, "--output", str(run)]) == Code.CONFLICT.exit_status
    del testbed.there["bench-other-0001"]
    testbed.on("POST /slices", problem(404, "not_found", "there is no image thesis", field="image"))
    assert main([*SMALL, "--image", "thesis", "--output", str(run)]) == Code.NOT_FOUND.exit_status
    assert "there is no image thesis" in capsys.readouterr().err
    assert testbed.most == 0 and not run.exists()


# --- interrupted, killed, resumed -------------------------------------------------------------------------------------


def _start(testbed: PaperTestbed, state: Path, *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "SLICEMGR_URL": testbed.url, "SLICEMGR_TOKEN": "admin"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    argv = [sys.executable, paper_ends.__file__, str(state), *SMALL, *words]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ended_while_it_creates_and_resumed(
    testbed: PaperTestbed, slicectl: None, tmp_path: Path, number: signal.Signals
) -> None:
    testbed.slow = 0.5
    run = tmp_path / "run"
    process = _start(testbed, tmp_path / "ends", "--output", str(run))
    end = time.monotonic() + 60
    while not testbed.there:
        assert time.monotonic() < end and process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    killed = number is signal.SIGKILL
    assert process.returncode == (-9 if killed else INTERRUPTED), said
    assert (testbed.there == {}) != killed
    assert list(folder.read(run).steps) == ["1/lxc/raw"]
    while testbed.under_way:  # it was asked for before the end, and would appear in the midst of what is resumed
        assert time.monotonic() < end
        time.sleep(0.01)
    testbed.slow = 0.0
    assert main([*SMALL, "--output", str(run), "--resume"]) == 0
    result = folder.read(run)
    assert list(result.steps) == ["1/lxc/raw", "1/lxc/slices"] and testbed.there == {}
    assert result.info["notes"] == ["resumed at lxc: slices: its raw baseline was measured before the interruption"]
    assert len(testbed.asked("POST /nodes/node1/baseline")) == 1


@pytest.mark.usefixtures("slicectl")
def test_a_baseline_of_an_earlier_run_is_waited_for(
    testbed: PaperTestbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = operation("running", id="old", kind="baseline")
    testbed.on("GET /operations", {"operations": [running]})
    testbed.on("GET /operations/old", running, {**running, "state": "done", "version": 2})
    assert main([*SMALL, "--output", str(tmp_path / "run")]) == 0
    assert "waiting until the node has ended the raw baseline" in capsys.readouterr().err
    assert len(testbed.asked("GET /operations/old")) == 2


# --- what is heard ----------------------------------------------------------------------------------------------------


def _operation(*steps: dict[str, Any]) -> wire.Operation:
    return cast("wire.Operation", {"steps": [{"detail": "", **one} for one in steps]})


@pytest.mark.parametrize(
    ("state", "detail", "speaks"),
    [("running", "", False), ("running", "the guest speaks", True), ("done", "not verified: no banner", False)],
)
def test_what_the_steps_say_of_a_console(state: str, detail: str, speaks: bool) -> None:
    assert lifecycle.speaks(_operation({"name": "ssh", "state": state, "detail": detail})) == speaks


def test_what_the_steps_say_of_the_domain() -> None:
    root = {"name": "root", "state": "done", "began": 0.1, "seconds": 0.1}
    domain = {"name": "domain", "state": "done", "began": 0.25, "seconds": 0.5}
    assert lifecycle.reached(_operation(root, domain)) == {"prepared": 0.25, "started": 0.75}
    assert lifecycle.reached(_operation(root, {**domain, "seconds": None})) == {}
    assert lifecycle.reached(_operation(root, {"name": "domain", "state": "done"})) == {}


def test_echoes_of_a_ping() -> None:
    said = "64 bytes from 192.0.2.1: icmp_seq=1 ttl=64 time=0.045 ms\n64 bytes: icmp_seq=2 ttl=64 time=12 ms\nrtt 1/2/3"
    assert inside.round_trips(said) == pytest.approx([0.000045, 0.012])
    assert inside.round_trips("5 packets transmitted, 0 received") == []
    assert inside.pings(["false"], "192.0.2.1") == []


@pytest.mark.parametrize(
    ("given", "images"),
    [
        ((), options.IMAGES),
        (("one",), {"lxc": "one", "kvm": "one"}),
        (("kvm=two", "one"), {"lxc": "one", "kvm": "two"}),
        (("lxc=one",), {**options.IMAGES, "lxc": "one"}),
    ],
)
def test_images_of_each_type(given: tuple[str, ...], images: dict[str, str]) -> None:
    command = bench_lifecycle.lifecycle
    option = next(one for one in command.params if one.name == "images")
    assert option.process_value(click.Context(command), given) == images


def test_an_image_of_no_type_is_refused() -> None:
    command = bench_lifecycle.lifecycle
    option = next(one for one in command.params if one.name == "images")
    with pytest.raises(click.BadParameter, match="'xen' is not a type"):
        option.process_value(click.Context(command), ("xen=one",))


# --- the report -------------------------------------------------------------------------------------------------------


def _run(path: Path, *, count: int, turns: int = 2, slow: float = 1.0) -> folder.Run:
    """lxc: twice the raw time times `slow`, the later ones slower. kvm: a console, no pings."""
    steps: dict[str, Any] = {}
    for turn in range(1, turns + 1):
        for series, one in (("lxc", 0.1), ("kvm-direct", 5.0)):
            raw = {"started": [one / 4] * count, "answered": [one] * count, "create": count * one / 4, "delete": 1.0}
            banner = [2 * slow * one * (1 + at / (2 * count)) for at in range(count)]
            phases = {"accepted": [0.01] * count, "prepared": [one / 2] * count, "started": [one] * count}
            phases |= {"banner": banner} | ({"console": [2 * one] * count} if series != "lxc" else {})
            looked = {"exec": [0.1] * count, "launch": [0.2] * count, "response": [0.3] * count}
            looked["ping"] = [0.00005] * 5 * count if series == "lxc" else []
            ours = {"count": count, "create": count * one / 3, "delete": 0.01 * count, "phases": phases}
            ours |= {"inside": looked, "available_each": 5e6, "memory_each": 1e7, "disk_each": 131072.0}
            spoke = [one / 2] * count if series != "lxc" else []
            for part, data in (("raw", {"raw": {**raw, "spoke": spoke}}), ("slices", ours)):
                steps[f"{turn}/{series}/{part}"] = {"title": part, "data": data}
    series_ = [{"kind": "lxc", "image": "a", "boot": ""}, {"kind": "kvm", "image": "b", "boot": "direct"}]
    parameters = {"count": count, "series": series_, "ping": ""}
    return folder.Run(path, {"experiment": "lifecycle", "parameters": parameters}, steps)


def test_each_phase_stands_beside_its_own_baseline(tmp_path: Path) -> None:
    content = pages.content(_run(tmp_path, count=4))
    phases = next(one for one in content.tables if one.title.startswith("Each phase"))
    names = [one.name for one in phases.columns]
    rows = {(row[0], row[1]): dict(zip(names, row, strict=True)) for row in phases.rows}
    assert ("console: the guest's first byte", "lxc") not in rows
    assert rows["started: the domain runs", "lxc"]["ratio to raw"] == "4 (4 to 4)"
    assert rows["accepted", "kvm direct"]["ratio to raw"] is None
    assert rows["ssh banner", "kvm direct"]["median"] == pytest.approx(11.875)
    assert rows["ssh banner", "lxc"]["of"] == 8


def test_the_phases_of_the_thesis(tmp_path: Path) -> None:
    content = pages.content(_run(tmp_path, count=4))
    thesis = next(one for one in content.tables if one.title == "The thesis's phases")
    means = {(row[0], row[1]): row[3] for row in thesis.rows}
    assert means["t_start: from then until it runs", "kvm direct"] == pytest.approx(2500)
    assert means["ping, one echo", "lxc"] == pytest.approx(0.05) and ("ping, one echo", "kvm direct") not in means
    network = means["network set-up: request to banner, launch, first response", "lxc"]
    assert network == pytest.approx(1000 * (0.2 * 1.1875 + 0.5), rel=0.005)
    assert any("kvm direct: no echo came back from the gateway." in one for one in content.outcome)


@pytest.mark.parametrize(
    ("count", "slow", "reached"),
    [
        (20, 0.5, [True, None, None, None, None, True]),
        (200, 0.5, [True, False, None, True, True, True]),
        (400, 2.0, [False, False, True, True, True, True]),
    ],
)
def test_aims_are_told_by_as_many_as_they_speak_of(
    tmp_path: Path, count: int, slow: float, reached: list[bool | None]
) -> None:
    content = pages.content(_run(tmp_path, count=count, slow=slow))
    assert [one.reached for one in content.aims] == reached


@pytest.mark.usefixtures("full_plots")
def test_the_report_of_one_repetition_and_its_data(tmp_path: Path) -> None:
    run = _run(tmp_path, count=3, turns=1)
    content = pages.content(run)
    assert len(content.data) == 6 and content.data[0]["raw_answered"] == 0.1 and content.data[5]["type"] == "kvm direct"
    pages.write(run)
    assert "The thesis" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "phases.png").exists() and (tmp_path / "creates.png").exists()


def test_nothing_measured_is_told(tmp_path: Path) -> None:
    run = _run(tmp_path, count=3)
    only_raw = {id_: one for id_, one in run.steps.items() if id_.endswith("raw")}
    with pytest.raises(ValueError, match="no step with slices"):
        lifecycle_report.content(folder.Run(run.folder, run.info, only_raw))

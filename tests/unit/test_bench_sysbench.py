"""bench sysbench against a simulated testbed: the host by its agent, slivers by a fake sysbench on this host."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paper_loads import CPU, FILES, MEMORY, PaperLoads, here

from slicemgr.bench.experiments import sysbench
from slicemgr.bench.frame import folder
from slicemgr.bench.frame import run as drive
from slicemgr.bench.frame.sent_program import SentProgram
from slicemgr.bench.report import pages
from slicemgr.bench.report import sysbench as sysbench_report
from slicemgr.cli import main
from slicemgr.cli.bench import loads
from slicemgr.cli.bench.progress import Lines
from slicemgr.errors import Code, Refused
from slicemgr.policy import measurements

SMALL = ("bench", "sysbench", "--on", "host", "--repeat", "2")
# Prints the output of sysbench for the requested test.
STANDS_FOR_SYSBENCH = """#!/bin/sh
case "$*" in
--version) echo "sysbench 1.0.20" ;;
cpu*run | threads*run) cat {folder}/cpu ;;
memory*run) cat {folder}/memory ;;
fileio*run) cat {folder}/files ;;
esac
"""


@pytest.fixture
def testbed(monkeypatch: pytest.MonkeyPatch) -> Iterator[PaperLoads]:
    with PaperLoads() as made:
        monkeypatch.setenv("SLICEMGR_URL", made.url)
        monkeypatch.setenv("SLICEMGR_TOKEN", "admin")
        yield made


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with python3 and no sysbench."""
    made = tmp_path / "programs"
    made.mkdir()
    for name in ("mkdir", "env", "cat", "sh", "python3"):
        (made / name).symlink_to(f"/usr/bin/{name}")
    return made


def stand(programs: Path) -> None:
    for name, said in (("cpu", CPU), ("memory", MEMORY), ("files", FILES)):
        (programs / name).write_text(said)
    (programs / "sysbench").write_text(STANDS_FOR_SYSBENCH.format(folder=programs))
    (programs / "sysbench").chmod(0o755)


def parameters(testbed: PaperLoads, directory: Path, programs: Path, **more: Any) -> sysbench.SysbenchParameters:
    way = here(testbed, directory)
    words = ["env", "-i", f"PATH={programs}", "sh", "-c"]
    wanted = {"repeat": 2, "images": dict.fromkeys(("lxc", "kvm"), "debian-12")}
    return sysbench.SysbenchParameters(replace(way, login=lambda *_: words), **{**wanted, **more})


def carry_out(wanted: sysbench.SysbenchParameters, path: Path, *, resume: bool = False) -> folder.Run:
    experiment = sysbench.Sysbench(wanted)
    with folder.Folder.take(path, sysbench.NAME, wanted.recorded, resume=resume) as taken:
        try:
            drive.carry_out(experiment, taken, Lines())
        finally:
            experiment.close()
    return folder.read(path)


def test_the_command_line_the_service_and_the_program_know_the_same_tests() -> None:
    options = {one.name: one for one in loads.sysbench.params}
    assert options["places"].default == sysbench.PLACES
    assert options["tests"].default == [*sysbench.TESTS] == [*measurements.TESTS] == [*sysbench.MEASURED]
    assert options["repeat"].default == sysbench_report.PAPER_RUNS
    known = {(row.test, row.key) for row in sysbench_report.ROWS}
    assert all(key in sysbench.MEASURED[test] for test, key in known)


def test_host_and_both_types(testbed: PaperLoads, tmp_path: Path, programs: Path) -> None:
    stand(programs)
    result = carry_out(parameters(testbed, tmp_path, programs), tmp_path / "run")
    assert result.info["outcome"] == "done" and len(result.steps) == 24 and testbed.there == {} and testbed.most == 1
    one = {step["data"]["place"]: step["data"] for step in result.steps.values() if step["data"]["test"] == "fileio"}
    assert one["host"]["read"] == 100.0 and one["lxc"]["read"] == one["kvm"]["read"] == 417.53
    assert {data["version"] for data in one.values()} == {"1.0.20"}
    seeds = {(each["test"], each["seed"]) for each in testbed.measured}
    assert len(seeds) == 8 and all(each["size"] == 1 << 30 and each["seconds"] == 0 for each in testbed.measured)


def test_where_it_is_not_installed_is_listed_with_the_command(
    testbed: PaperLoads, tmp_path: Path, programs: Path
) -> None:
    wanted = parameters(testbed, tmp_path, programs, places=("host", "lxc"))
    result = carry_out(wanted, tmp_path / "run")
    content = pages.content(result)
    (table,) = [one for one in content.tables if one.title == "Not measured"]
    reason = "the image debian-12: sysbench is not installed"
    reason += " (to install it: `apt-get update && apt-get install -y sysbench`)"
    assert table.rows == [["lxc", reason]]
    assert any(reason in one for one in pages.context(result, content, None, None)["notes"])
    stand(programs)
    again = carry_out(wanted, tmp_path / "run", resume=True)
    assert not any(one.get("missing") for one in again.steps.values()) and len(again.steps) == 16


def test_it_is_installed_when_asked_for(
    testbed: PaperLoads, tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fake apt-get installs it in each sliver; another one has no network."""
    stand(programs)
    (programs / "sysbench").rename(programs / "kept")
    (programs / "cp").symlink_to("/usr/bin/cp")
    apt = programs / "apt-get"
    apt.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ncp -a {programs}/kept {programs}/sysbench\n')
    apt.chmod(0o755)
    wanted = parameters(testbed, tmp_path, programs, places=("lxc",), install=True, tests=("cpu",))
    result = carry_out(wanted, tmp_path / "run")
    assert [one["data"]["events"] for one in result.steps.values()] == [876, 876]
    assert (tmp_path / "asked").read_text().splitlines() == ["update", "install -y sysbench"]
    (programs / "sysbench").unlink()
    apt.write_text("#!/bin/sh\necho 'E: no network' >&2\nexit 100\n")
    lacks = carry_out(replace(wanted, seed=2), tmp_path / "other")
    assert {one["missing"] for one in lacks.steps.values()} == {
        f"in a sliver of lxc this failed: {sysbench.INSTALL}: E: no network"
    }
    assert testbed.there == {}


def sent(programs: Path, text: str) -> SentProgram:
    """A fake sysbench as slicectl sends it. programs: of the sliver, which get what unpacks it."""
    for name in ("tar", "gzip"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        entry = tarfile.TarInfo("sysbench")
        entry.size, entry.mode = len(text), 0o755
        archive.addfile(entry, io.BytesIO(text.encode()))
    return SentProgram("sysbench", target.getvalue())


def test_a_sliver_without_it_gets_that_of_this_machine(
    testbed: PaperLoads, tmp_path: Path, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stand(programs)
    text = (programs / "sysbench").read_text()
    (programs / "sysbench").unlink()
    own = sent(programs, text)
    wanted = parameters(testbed, tmp_path / "work", programs, places=("host", "lxc"), own=lambda: own)
    result = carry_out(wanted, tmp_path / "run")
    slivers = [one["data"] for one in result.steps.values() if one["data"]["place"] == "lxc"]
    assert len(slivers) == 8 and all(data["sent"] and data["version"] == "1.0.20" for data in slivers)
    assert "lxc has no sysbench: it gets the one of this machine" in capsys.readouterr().err
    assert "On lxc the sysbench of the machine of slicectl ran, with its libraries." in pages.content(result).outcome


def test_a_sliver_that_has_it_gets_none(testbed: PaperLoads, tmp_path: Path, programs: Path) -> None:
    """The sysbench of the image runs, also if the one of this machine would be broken."""
    stand(programs)
    own = sent(programs, "#!/bin/sh\nexit 1\n")
    wanted = parameters(testbed, tmp_path / "work", programs, places=("lxc",), tests=("cpu",), own=lambda: own)
    result = carry_out(wanted, tmp_path / "run")
    assert [one["data"].get("sent") for one in result.steps.values()] == [None, None]
    assert not any("machine of slicectl" in one for one in pages.content(result).outcome)


def test_what_does_not_run_in_the_sliver_is_listed(testbed: PaperLoads, tmp_path: Path, programs: Path) -> None:
    own = sent(programs, "#!/bin/sh\necho 'wrong processor' >&2\nexit 126\n")
    wanted = parameters(testbed, tmp_path / "work", programs, places=("lxc",), tests=("cpu",), own=lambda: own)
    result = carry_out(wanted, tmp_path / "run")
    expected = "in a sliver of lxc, the sysbench of this machine does not run: wrong processor"
    assert {one["missing"] for one in result.steps.values()} == {expected} and testbed.there == {}


def test_a_host_without_it(testbed: PaperLoads, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    testbed.missing["host"] = "sysbench is not installed"
    run = tmp_path / "run"
    assert main([*SMALL, "--output", str(run)]) == 0
    said = capsys.readouterr().err
    assert said.count("not measured: host, cpu (1 of 2): the node: sysbench is not installed") == 1
    assert "no report" in said and "no test has ended yet" in said


def test_a_run_of_the_host_makes_a_report(testbed: PaperLoads, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main([*SMALL, "--seconds", "3", "--size", "64M", "--output", str(run)]) == 0
    assert {"report.html", "report.md", "data.csv", "speeds.png"} <= {one.name for one in run.iterdir()}
    assert {(one["seconds"], one["size"]) for one in testbed.measured} == {(3, 64 << 20)}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--on", "moon"), "--on"),
        (("--test", "mutex"), "--test"),
        (("--size", "1M"), "--size: 1M is out of range"),
        (("--size", "x"), "--size"),
        (("--seconds", "-1"), "--seconds"),
        (("--disk", "x"), "--disk"),
    ],
)
def test_bad_input_names_the_field(
    testbed: PaperLoads, words: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, "--output", str(tmp_path / "run"), *words]) == Code.INVALID.exit_status
    said = capsys.readouterr().err
    assert says in said and len(said.splitlines()) == 1 and not (tmp_path / "run").exists()


def test_the_guard_stops_before_the_disk_is_full(
    testbed: PaperLoads, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The paper's pool has 90 GiB free."""
    run = tmp_path / "run"
    assert main([*SMALL, "--size", "64G", "--output", str(run)]) == 0
    assert folder.read(run).info["outcome"] == "done"
    testbed.each, node = 0, testbed._node
    testbed.on("GET /nodes/node1", lambda _: _full(node()))
    assert main([*SMALL, "--size", "64G", "--output", str(tmp_path / "full")]) == 0
    result = folder.read(tmp_path / "full")
    assert result.info["outcome"] == "stopped" and "disk of the pool" in result.info["reason"]
    assert not any("fileio" in one and not result.steps[one].get("stopped") for one in result.steps)


def _full(node: dict[str, Any]) -> Any:
    from canned_service import Answer

    return Answer(200, {**node, "facts": {**node["facts"], "disk_free": 60 << 30}})


# --- the report -------------------------------------------------------------------------------------------------------


def run_of(path: Path, *, kvm: float = 0.1, repeat: int = 5) -> folder.Run:
    """lxc is as fast as the host, kvm `kvm` × as fast."""
    path.mkdir()
    lines = []
    speeds = {"host": 1.0, "lxc": 1.0, "kvm": kvm}
    for turn in range(1, repeat + 1):
        for place, speed in speeds.items():
            pace = speed * (1 + (turn * 7 + len(place) * 3) % 5 / 100)
            numbers: dict[str, dict[str, float]] = {
                "cpu": {"seconds": 10.0, "events": 8000 * pace, "events_per_second": 800 * pace},
                "threads": {"seconds": 20.0, "events": 90000 * pace},
                "memory": {"seconds": 20.0, "operations": 8e7 * pace, "mib_per_second": 4000 * pace},
                "fileio": {"seconds": 10.0, "read": 100 * pace, "written": 66 * pace},
            }
            for test, found in numbers.items():
                data = {"turn": turn, "place": place, "test": test, "version": "1.0.20", **found}
                head = {"step": f"{turn}/{place}/{test}", "title": test, "series": f"{turn}/{place}", "seconds": 1.0}
                lines.append(json.dumps({**head, "data": data}))
    info = {"format": folder.FORMAT, "experiment": "sysbench", "parameters": {}, "outcome": "done"}
    (path / "run.json").write_text(json.dumps(info))
    (path / "steps.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder.read(path)


def _table(content: Any, title: str) -> list[Any]:
    return next(one.rows for one in content.tables if one.title == title)


def test_mean_deviation_and_interval_of_each(tmp_path: Path) -> None:
    rows = {(row[0], row[1]): row[2:] for row in _table(pages.content(run_of(tmp_path / "run")), "Mean and deviation")}
    mean, deviation, low, high, unit, runs = rows["file I/O read", "host"]
    assert (mean, unit, runs) == (102.0, "MiB/s", 5) and deviation == pytest.approx(1.5811, rel=1e-4)
    assert low < mean < high and high - mean == pytest.approx(1.963, rel=1e-2)
    assert len(rows) == 3 * 9


def test_each_place_beside_the_host_and_the_paper(tmp_path: Path) -> None:
    content = pages.content(run_of(tmp_path / "run"))
    beside = {(row[0], row[1]): row[2:] for row in _table(content, "Compared with the host")}
    assert beside["file I/O read", "kvm"] == [pytest.approx(0.1), "< 0.001", "yes"]
    assert beside["file I/O read", "lxc"][0] == pytest.approx(1.0) and beside["file I/O read", "lxc"][2] == "no"
    assert not any("total time" in name for name, _ in beside)
    paper = {row[0]: row[1:] for row in _table(content, "Compared with the paper")}
    assert paper["file I/O write (MiB/s)"] == [
        *("67.32", "67.32", "6.732"),
        *("191.35", "188.78", "62.844", "62.875"),
        *(pytest.approx(1.0), pytest.approx(0.3284, rel=1e-3)),
    ]
    assert paper["memory access, total operations"][3:7] == ["89706804", "87056448", "99843978", "104857600"]
    assert len(paper) == 7
    assert content.outcome[0] == "sysbench ran 5 times on host, lxc, kvm."
    assert content.outcome[2].startswith("Of the host's speed kvm reached: CPU 0.10, file I/O write 0.10, ")


@pytest.mark.usefixtures("full_plots")
def test_the_pages_can_be_made_and_compared(tmp_path: Path) -> None:
    run, older = run_of(tmp_path / "new"), run_of(tmp_path / "old", kvm=0.2)
    pages.write(run, older)
    text = (tmp_path / "new" / "report.md").read_text()
    assert "significantly worse: CPU events each second, kvm" in text and "significantly better" not in text
    other = pages.content(run_of(tmp_path / "one", repeat=1))
    assert {row[-1] for row in _table(other, "Compared with the host")} == {"undetermined"}


def test_nothing_measured_is_told(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no test has ended yet"):
        pages.content(run_of(tmp_path / "run", repeat=0))

"""bench all against a simulated testbed: a folder for each experiment, failures, resumption, and the page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest
from paper_loads import PaperLoads

from slicemgr.bench.frame import collection, folder
from slicemgr.bench.report import collection as overview
from slicemgr.cli import INTERRUPTED, main
from slicemgr.cli.bench import everything
from slicemgr.client import Client
from slicemgr.errors import Code, Refused

ALL = ("bench", "all", "--quick")
FEW = (*ALL, "--only", "scale", "--only", "sysbench", "--only", "throughput", "--only", "peers", "--only", "nodes")


@pytest.fixture
def testbed(monkeypatch: pytest.MonkeyPatch) -> Iterator[PaperLoads]:
    """Its node runs containers for `scale` only: programs in slivers would need a real ssh."""
    with PaperLoads() as made:
        made.types = {"lxc": False, "kvm": False}
        monkeypatch.setenv("SLICEMGR_URL", made.url)
        monkeypatch.setenv("SLICEMGR_TOKEN", "admin")
        yield made


def outcomes(path: Path) -> dict[str, str]:
    return {one.name: one.outcome for one in collection.read(path, "FOLDER").parts}


def test_one_page_about_all(testbed: PaperLoads, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "all"
    assert main([*FEW, "--output", str(run)]) == 0
    said = capsys.readouterr()
    assert outcomes(run) == {
        "scale": "done",
        "sysbench": "done",
        **dict.fromkeys(("throughput", "peers", "nodes"), "left out"),
    }
    assert "throughput is left out: it needs a second machine; give --peer-exec" in said.err
    assert "nodes is left out: " in said.err and "no node has joined this testbed" in said.err
    assert "2 of 5 experiments ended; left out: throughput, peers, nodes." in said.out
    scale = folder.read(run / "scale")
    assert scale.info["parameters"]["to"] == 6 and testbed.there == {}
    html, markdown = (run / "report.html").read_text(), (run / "report.md").read_text()
    for name in ("scale", "sysbench"):
        assert f'href="{name}/report.html"' in html and f"({name}/report.md)" in markdown
        assert (run / name / "report.html").is_file()
    assert "sysbench ran 1 time on host" in html and "Aims of scale" in html
    assert "All experiments on node1" in markdown and "left out" in markdown
    before = html
    (run / "report.html").unlink()
    assert main(["bench", "report", str(run)]) == 0
    assert (run / "report.html").read_text() == before


def test_clean_takes_the_folder_of_all(testbed: PaperLoads, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It deletes what is left of each experiment, and not what others have."""
    run = tmp_path / "all"
    assert main([*ALL, "--only", "scale", "--only", "sysbench", "--output", str(run)]) == 0
    left = [folder.read(run / name).info["prefix"] + "x" for name in ("scale", "sysbench")]
    with Client.local() as client:
        for name in (*left, "bench-other-x"):
            client.slices.submit({"name": name, "type": "lxc"})
    assert set(testbed.there) == {*left, "bench-other-x"}
    info = json.loads((run / "scale/run.json").read_text())
    (run / "scale/run.json").write_text(json.dumps(info | {"prefix": "bench-"}))
    assert main(["bench", "clean", str(run)]) == 1
    assert "scale does not contain the names of its slices" in capsys.readouterr().err
    assert set(testbed.there) == {left[0], "bench-other-x"}, "a broken run does not stop the others"
    (run / "scale/run.json").write_text(json.dumps(info))
    assert main(["bench", "clean", str(run)]) == 0 and set(testbed.there) == {"bench-other-x"}


def test_a_failure_stops_no_other_and_is_tried_again(
    testbed: PaperLoads, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, words = tmp_path / "all", (*ALL, "--only", "sysbench", "--only", "scale")
    testbed.broken = "the disk <b>broke</b>"
    assert main([*words, "--output", str(run)]) == Code.FAILED.exit_status
    assert "1 of 2 experiments failed: sysbench" in capsys.readouterr().err
    assert outcomes(run) == {"scale": "done", "sysbench": "failed"}
    html = (run / "report.html").read_text()
    assert "the disk &lt;b&gt;broke" in html and "<b>" not in html and "FAILED" in html
    testbed.broken, kept = "", (run / "scale/steps.jsonl").read_text()
    assert main([*words, "--output", str(run), "--resume"]) == 0
    assert outcomes(run) == {"scale": "done", "sysbench": "done"}
    assert (run / "scale/steps.jsonl").read_text() == kept, "what was measured is not measured again"


def test_the_page_is_written_when_it_is_interrupted(
    testbed: PaperLoads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoke, run, words = everything._invoke, tmp_path / "all", (*ALL, "--only", "scale", "--only", "sysbench")

    def interrupted(name: str, options: Sequence[str]) -> None:
        if name == "sysbench":
            raise KeyboardInterrupt
        invoke(name, options)

    monkeypatch.setattr(everything, "_invoke", interrupted)
    assert main([*words, "--output", str(run)]) == INTERRUPTED
    assert outcomes(run) == {"scale": "done", "sysbench": ""}
    assert "1 of 2 experiments ended; not run: sysbench." in (run / "report.md").read_text()
    monkeypatch.setattr(everything, "_invoke", invoke)
    assert main([*words, "--output", str(run), "--resume"]) == 0
    assert outcomes(run) == {"scale": "done", "sysbench": "done"}


def test_a_dry_run_prints_the_steps_of_each(
    testbed: PaperLoads, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "all"
    assert main([*FEW, "--dry-run", "--output", str(run)]) == 0
    said = capsys.readouterr().out
    assert "slicectl bench scale --type lxc --to 6 --step 3\n" in said
    assert said.count("left out: ") == 3 and said.count("estimated duration") == 2
    assert not run.exists() and testbed.there == {} and testbed.measured == []


def test_folders_that_are_refused(testbed: PaperLoads, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, words = tmp_path / "all", (*ALL, "--only", "sysbench")

    def refused(*more: str) -> str:
        assert main([*words, *more]) in (Code.CONFLICT.exit_status, Code.INVALID.exit_status, 3)
        return capsys.readouterr().err

    assert "which experiments should be continued?" in refused("--resume")
    assert "has no experiments to resume" in refused("--resume", "--output", str(run))
    assert main([*words, "--output", str(run)]) == 0
    assert "--resume continues them" in refused("--output", str(run))
    other = refused("--output", str(run), "--resume", "--image", "other")
    assert "the same options, or another folder" in other and "--image other" in other
    assert "1 experiments, not 2" in refused("--output", str(run), "--resume", "--only", "throughput")
    for text in (
        "{",
        "[]",
        '{"format": 1}',
        '{"format": 1, "experiments": [{"experiment": "../x", "options": [], "outcome": "", "reason": ""}]}',
    ):
        (run / collection.FILE).write_text(text)
        with pytest.raises(Refused, match="is damaged"):
            collection.read(run, "FOLDER")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").write_text("")
    assert "has no experiments: all.json" in refused("--output", str(tmp_path / "other"))


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("types", [("lxc",), ("kvm",), ("lxc", "kvm")])
def test_each_experiment_understands_its_options(quick: bool, types: tuple[str, ...]) -> None:
    ends = [(name, "x") for name in everything._ENDS]
    images = ("all", "kvm=machine")
    choice = everything.Choice(list(everything._COMMANDS), types, images, "node1", ends, quick)
    parsed = {}
    for part in everything.parts(choice):
        command: click.Command = everything._COMMANDS[part.name]
        parsed[part.name] = command.make_context(part.name, list(part.words)).params
    assert all(found["local" if one == "nodes" else "name"] == "node1" for one, found in parsed.items())
    assert parsed["scale"]["image"] == ("machine" if types[0] == "kvm" else "all") and parsed["peers"]["image"] == "all"
    assert parsed["io"]["images"] == {"lxc": "all", "kvm": "machine"}
    assert set(parsed["sysbench"]["places"]) == {"host", *types}
    assert parsed["throughput"]["address"] == "x" and parsed["throughput"]["seconds"] == (10 if quick else 420)


def test_what_was_not_run_is_on_the_page(tmp_path: Path) -> None:
    """Before the first experiment has ended, and with characters that have a meaning in both formats."""
    found = collection.Collection(tmp_path, [collection.Part("scale", ()), collection.Part("io", ())])
    overview.write(found.ended("io", collection.FAILED, "a | <script> \x1b[0m"))
    html, markdown = (tmp_path / "report.html").read_text(), (tmp_path / "report.md").read_text()
    assert "<script>" not in html and "\x1b" not in html + markdown and "a \\| \\<script\\>" in markdown
    assert json.loads((tmp_path / collection.FILE).read_text())["experiments"][0]["outcome"] == ""
    assert "0 of 2 experiments ended; failed: io; not run: scale." in markdown

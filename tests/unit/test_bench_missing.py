"""Missing programs in the frame: reported once, other steps continue, and the next attempt measures them."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_experiment import Fake

from slicemgr.bench.frame import folder
from slicemgr.bench.frame import run as drive
from slicemgr.bench.frame.experiment import Json, Missing, Progress, Step
from slicemgr.bench.frame.folder import Folder
from slicemgr.bench.report import not_measured
from slicemgr.cli.bench.progress import Lines


class Lacking(Fake):
    """lacks: steps that cannot be measured."""

    lacks: tuple[str, ...] = ()

    def run(self, step: Step, progress: Progress) -> Json:
        found = super().run(step, progress)
        if step.id in self.lacks:
            raise Missing("there is no iperf3 (apt-get install iperf3)")
        return found


def test_what_is_missing_is_told_once_and_tried_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = tmp_path / "world"
    world.mkdir()
    fake = Lacking(world)
    fake.lacks = ("1/b", "1/c")
    with Folder.take(tmp_path / "run", "fake", {}) as taken:
        assert drive.carry_out(fake, taken, Lines()) == drive.DONE
    run = folder.read(tmp_path / "run")
    assert list(run.steps) == fake.ran == ["1/a", "1/b", "1/c", "1/d", "1/last"]
    assert [name for name, one in run.steps.items() if one.get("missing")] == ["1/b", "1/c"]
    assert run.steps["1/b"]["data"] == {} and run.info["outcome"] == "done" and fake.slices() == []
    said = capsys.readouterr().err
    assert said.count("not measured: step b: there is no iperf3 (apt-get install iperf3)") == 1
    assert said.count("no iperf3") == 1
    assert not_measured.reasons(run) == {"there is no iperf3 (apt-get install iperf3)": ["step b", "step c"]}
    again = Lacking(world)
    with Folder.take(tmp_path / "run", "fake", {}, resume=True) as taken:
        assert drive.carry_out(again, taken, Lines()) == drive.DONE
    assert again.ran == ["1/b", "1/c"]
    whole = folder.read(tmp_path / "run")
    assert not_measured.reasons(whole) == {} and not_measured.tables(whole) == [] and len(whole.steps) == 5
    with Folder.take(tmp_path / "run", "fake", {}, resume=True) as taken:
        third = Lacking(world)
        assert drive.carry_out(third, taken, Lines()) == drive.DONE and third.ran == []

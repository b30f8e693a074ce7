"""The folder of a run and the frame of experiments: refusals, ends, interruptions, kills, resumption, cleanup."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import fake_experiment
import pytest
from fake_experiment import Fake

from slicemgr.bench.frame import folder, lock, provenance
from slicemgr.bench.frame import run as drive
from slicemgr.bench.frame.folder import Folder
from slicemgr.bench.frame.run import Moment
from slicemgr.cli.bench.progress import Lines
from slicemgr.errors import Code, Failed, Refused

ALL = ["1/a", "1/b", "1/c", "1/d", "1/last"]


@pytest.fixture
def world(tmp_path: Path) -> Path:
    made = tmp_path / "world"
    made.mkdir()
    return made


def _take(path: Path, *, resume: bool = False, size: int = 4, experiment: str = "fake") -> Folder:
    return Folder.take(path, experiment, {"size": size}, resume=resume)


def _start(path: Path, world: Path, *words: str, stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
    argv = [sys.executable, fake_experiment.__file__, str(path), str(world), *words]
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment)


def _until(there: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60
    while not there.exists():
        assert time.monotonic() < end and process.poll() is None, f"{there.name}: {process.communicate()}"
        time.sleep(0.01)


# --- the folder -------------------------------------------------------------------------------------------------------


def test_a_finished_step_is_there_for_who_reads(tmp_path: Path) -> None:
    with _take(tmp_path / "run") as made:
        made.note({"seed": 3})
        made.finish("a", {"data": {"n": 1}})
        made.finish("b", {"data": {}})
        result = folder.read(tmp_path / "run")
    assert result.info["experiment"] == "fake" and result.info["seed"] == 3
    assert list(result.steps) == ["a", "b"] and result.steps["a"]["data"] == {"n": 1}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "has this run already"),
        ({"resume": True, "size": 5}, "its size is 4, not 5"),
        ({"size": 5}, "its size is 4, not 5"),
        ({"resume": True, "experiment": "other"}, "its experiment is fake, not other"),
    ],
)
def test_a_folder_of_another_run_is_refused(tmp_path: Path, change: dict[str, object], says: str) -> None:
    with _take(tmp_path / "run") as made:
        made.finish("a", {})
    before = {one.name: one.read_bytes() for one in (tmp_path / "run").iterdir()}
    with pytest.raises(Refused, match=says) as refused:
        _take(tmp_path / "run", **change)  # type: ignore[arg-type]
    assert refused.value.field == "--output" and refused.value.hint and refused.value.code is Code.CONFLICT
    assert {one.name: one.read_bytes() for one in (tmp_path / "run").iterdir()} == before


def test_a_run_without_a_finished_step_is_begun_anew(tmp_path: Path) -> None:
    _take(tmp_path / "run").__exit__()
    with _take(tmp_path / "run") as made:
        assert made.steps == {}


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(Refused, match="is not a run"):
        _take(tmp_path)
    with pytest.raises(Refused, match="is not a run"):
        _take(tmp_path, resume=True)
    assert [one.name for one in tmp_path.iterdir()] == ["thesis.tex"]


def test_nothing_to_resume_is_told(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="has no run to resume"):
        _take(tmp_path / "run", resume=True)
    assert not (tmp_path / "run").exists()


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match="--output"):
        _take(tmp_path / "file")
    with pytest.raises(Refused, match="--output"):
        _take(tmp_path / "file" / "below")


def test_a_last_line_that_was_cut_off_is_no_step(tmp_path: Path) -> None:
    with _take(tmp_path / "run") as made:
        made.finish("a", {"data": {}})
    steps = tmp_path / "run" / "steps.jsonl"
    steps.write_text(steps.read_text() + '{"step": "b", "da')
    assert list(folder.read(tmp_path / "run").steps) == ["a"]
    with _take(tmp_path / "run", resume=True) as made:
        made.finish("b", {"data": {}})
    assert list(folder.read(tmp_path / "run").steps) == ["a", "b"]


@pytest.mark.parametrize("damage", ["{", "[]", '{"no": "step"}'])
def test_a_damaged_line_is_named(tmp_path: Path, damage: str) -> None:
    with _take(tmp_path / "run") as made:
        made.finish("a", {})
    steps = tmp_path / "run" / "steps.jsonl"
    steps.write_text(f"{damage}\n{steps.read_text()}")
    with pytest.raises(Refused, match="damaged in line 1"):
        folder.read(tmp_path / "run")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"format": 99, "experiment": "fake"}'])
def test_a_damaged_run_json_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(Refused, match=r"run\.json is damaged|is not a run"):
        _take(tmp_path, resume=True)


def test_a_full_disk_is_told_and_what_was_finished_is_kept(tmp_path: Path) -> None:
    with _take(tmp_path / "run") as made:
        made.finish("a", {})
        (tmp_path / "run" / "steps.jsonl").rename(tmp_path / "kept")
        (tmp_path / "run" / "steps.jsonl").symlink_to("/dev/full")
        with pytest.raises(Failed, match="No space left on device") as failed:
            made.finish("b", {})
        assert "--resume" in failed.value.hint and list(made.steps) == ["a"]


def test_a_disk_without_room_is_refused_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "_ROOM", 1 << 62)
    with pytest.raises(Refused, match="is full"):
        _take(tmp_path / "run")


def test_two_cannot_write_into_one_folder(tmp_path: Path) -> None:
    with _take(tmp_path / "run"), pytest.raises(Refused, match="an experiment writes into"):
        _take(tmp_path / "run", resume=True)


def test_the_commit_that_runs(tmp_path: Path) -> None:
    assert provenance.commit(tmp_path) is None

    def git(*words: str) -> str:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        return subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-qm", "one")
    name = git("rev-parse", "HEAD").strip()
    commit = provenance.commit(tmp_path)
    assert commit is not None and len(commit) == 12 and name.startswith(commit)
    (tmp_path / "file").write_text("two")
    assert provenance.commit(tmp_path) == f"{commit}, changed"


# --- the lock ---------------------------------------------------------------------------------------------------------


def test_a_second_experiment_is_told_whose_the_first_is(tmp_path: Path) -> None:
    file = lock.path("http://one", "node1", tmp_path)
    with lock.held(file, "`scale` into /a"), pytest.raises(Refused) as refused, lock.held(file, "`io` into /b"):
        pass
    assert f"`scale` into /a, of {lock._user()} (process {os.getpid()})" in refused.value.message
    with lock.held(file, "`io` into /b"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("looked", [True, False])
def test_a_lock_that_was_removed_while_it_was_taken_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked: bool
) -> None:
    """Between open and lock, the holder ends and another process takes it. Not `looked`: the control."""
    file, opened = lock.path("http://one", "node1", tmp_path), lock._open
    with ExitStack() as first, ExitStack() as other:

        def slow(path: Path) -> int:
            monkeypatch.setattr(lock, "_open", opened)
            descriptor = opened(path)
            first.close()
            other.enter_context(lock.held(file, "`io` into /b"))
            return descriptor

        first.enter_context(lock.held(file, "`scale` into /a"))
        monkeypatch.setattr(lock, "_open", slow)
        if looked:
            with pytest.raises(Refused, match="`io` into /b"), lock.held(file, "`peers` into /c"):
                pass
        else:
            monkeypatch.setattr(os.path, "samestat", lambda *_: True)
            with lock.held(file, "`peers` into /c"):
                pass


def test_other_nodes_have_locks_of_their_own(tmp_path: Path) -> None:
    files = {lock.path(url, node, tmp_path) for url in ("http://one", "http://two") for node in ("a", "b")}
    assert len(files) == 4


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    file = lock.path("http://one", "node1", tmp_path)
    file.symlink_to(tmp_path / "precious")
    (tmp_path / "precious").write_text("words")
    with pytest.raises(OSError, match="symbolic links"), lock.held(file, "x"):
        pass
    assert (tmp_path / "precious").read_text() == "words"


# --- the frame --------------------------------------------------------------------------------------------------------


def test_all_steps_are_run_once_and_nothing_is_left(tmp_path: Path, world: Path) -> None:
    fake = Fake(world)
    with _take(tmp_path / "run") as made:
        assert drive.carry_out(fake, made, Lines()) == drive.DONE
    result = folder.read(tmp_path / "run")
    assert fake.ran == list(result.steps) == ALL
    assert result.info["outcome"] == "done" and result.info["planned"] == 5 and fake.slices() == []


def test_kept_where_it_is_asked_for(tmp_path: Path, world: Path) -> None:
    fake = Fake(world)
    with _take(tmp_path / "run") as made:
        drive.carry_out(fake, made, Lines(), keep=True)
    assert len(fake.slices()) == 5


def test_a_finished_run_that_is_resumed_does_nothing(tmp_path: Path, world: Path) -> None:
    with _take(tmp_path / "run") as made:
        drive.carry_out(Fake(world), made, Lines())
    fake = Fake(world)
    with _take(tmp_path / "run", resume=True) as made:
        assert drive.carry_out(fake, made, Lines()) == drive.DONE
    assert fake.ran == []


@pytest.mark.parametrize("how", ["full", "stop"])
def test_a_node_that_is_full_ends_the_series_but_not_its_last_step(tmp_path: Path, world: Path, how: str) -> None:
    fake = Fake(world, turns=2, **{how: "1/c"})
    with _take(tmp_path / "run") as made:
        assert drive.carry_out(fake, made, Lines()) == drive.STOPPED
    result = folder.read(tmp_path / "run")
    assert "1/d" not in result.steps and {"1/last", "2/a", "2/d"} <= set(result.steps)
    reason = "no more room" if how == "stop" else "memory: 1 MiB of 16 GiB are free"
    assert result.steps["1/c"]["stopped"].startswith(reason) and result.info["reason"].startswith(reason)
    assert (result.steps["1/c"]["data"] == {}) == (how == "full")
    again = Fake(world, turns=2)
    with _take(tmp_path / "run", resume=True) as made:
        assert drive.carry_out(again, made, Lines()) == drive.STOPPED
    assert again.ran == []


def test_without_limits_the_same_node_is_filled(tmp_path: Path, world: Path) -> None:
    """The control of the guard."""
    from slicemgr.bench.frame.guard import Limits

    fake = Fake(world, full="1/c")
    with _take(tmp_path / "run") as made:
        assert drive.carry_out(fake, made, Lines(), limits=Limits(memory=0)) == drive.DONE
    assert fake.ran == ALL


def test_what_breaks_is_raised_and_written_down_and_nothing_is_left(tmp_path: Path, world: Path) -> None:
    fake = Fake(world, broken="1/c")
    with _take(tmp_path / "run") as made, pytest.raises(Failed, match="it broke"):
        drive.carry_out(fake, made, Lines())
    result = folder.read(tmp_path / "run")
    assert list(result.steps) == ["1/a", "1/b"] and fake.slices() == []
    assert result.info["outcome"] == "failed" and result.info["reason"] == "it broke (mend it)"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_in_the_middle_of_a_step(tmp_path: Path, world: Path, number: signal.Signals) -> None:
    run = tmp_path / "run"
    process = _start(run, world, "--hang", "1/c")
    _until(world / "hangs", process)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    result = folder.read(run)
    assert list(result.steps) == ["1/a", "1/b"] and result.info["outcome"] == "interrupted"
    assert Fake(world).slices() == []


def test_interrupted_again_while_it_deletes(tmp_path: Path, world: Path) -> None:
    process = _start(tmp_path / "run", world, "--hang", "1/c", "--slow-clean", "3")
    _until(world / "hangs", process)
    (world / "cleans").unlink()
    process.send_signal(signal.SIGTERM)
    _until(world / "cleans", process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "are being deleted" in said
    assert Fake(world).slices() == []


def test_killed_in_the_middle_of_a_step_and_resumed(tmp_path: Path, world: Path) -> None:
    run = tmp_path / "run"
    process = _start(run, world, "--hang", "1/c")
    _until(world / "hangs", process)
    process.kill()
    process.communicate(timeout=60)
    assert len(Fake(world).slices()) == 3
    before = (run / "steps.jsonl").read_text()
    resumed = _start(run, world, "--resume")
    out, said = resumed.communicate(timeout=60)
    assert (resumed.returncode, out.strip()) == (0, "done"), said
    assert (run / "steps.jsonl").read_text().startswith(before)
    result = folder.read(run)
    assert list(result.steps) == ALL and result.steps["1/c"]["data"]["there"] == 3
    assert result.info["notes"] == ["resumed with 2 steps"] and Fake(world).slices() == []


def test_on_a_pipe_a_line_for_each_step(tmp_path: Path, world: Path) -> None:
    process = _start(tmp_path / "run", world)
    _, said = process.communicate(timeout=60)
    lines = said.splitlines()
    assert [line.split(":")[1].strip() for line in lines] == [
        *(f"{place}/5 step {one}" for place, one in enumerate("abcd", 1)),
        "5/5 last",
    ]


def test_on_a_terminal_a_bar(tmp_path: Path, world: Path) -> None:
    terminal, end = os.openpty()
    process = _start(tmp_path / "run", world, stderr=end)
    os.close(end)
    said = b""
    with suppress(OSError), os.fdopen(terminal, "rb", buffering=0) as reader:
        while part := reader.read(4096):
            said += part
    process.communicate(timeout=60)
    assert (
        process.returncode == 0
        and b"5/5" in said
        and b"last" in said
        and b"\x1b[" in said
        and b"slicectl: 1/5" not in said
    )


def test_a_clock_that_is_set_during_a_step_is_noted(
    tmp_path: Path, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count()
    moments = ((1000.0 + tick + (3600 if tick >= 3 else 0), 50.0 + tick) for tick in ticks)
    monkeypatch.setattr(Moment, "now", classmethod(lambda cls: cls(*next(moments))))
    with _take(tmp_path / "run") as made:
        drive.carry_out(Fake(world), made, Lines())
    result = folder.read(tmp_path / "run").steps
    assert {one: record.get("clock_jump") for one, record in result.items()} == {
        **dict.fromkeys(ALL),
        "1/b": 3600.0,
    }
    assert {record["seconds"] for record in result.values()} == {1.0}


@pytest.mark.parametrize(("set_by", "jumped"), [(0.0, 0.0), (0.5, 0.0), (3600.0, 3600.0), (-90.0, -90.0)])
def test_a_clock_that_is_set(set_by: float, jumped: float) -> None:
    assert drive.jump(Moment(1000.0, 50.0), Moment(1010.0 + set_by, 60.0)) == jumped


def test_run_json_is_whole_or_as_it_was(tmp_path: Path) -> None:
    with _take(tmp_path / "run") as made:
        with pytest.raises(ValueError, match="JSON"):
            made.note({"bad": float("nan")})
        made.note({"good": 1})
        assert json.loads((tmp_path / "run" / "run.json").read_text())["experiment"] == "fake"

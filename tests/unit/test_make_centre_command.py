"""`slicemgr make-centre`: wrong options and an interrupted attempt are named, and nothing is changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from slicemgr import agent_process
from slicemgr.conversion.conversion import RECORD
from slicemgr.errors import SlicemgrError
from slicemgr.main import cli

URL = "postgresql://slicemgr:secret@127.0.0.1/slicemgr"
PLACE = "testbed.example:5671"
CONTROL = ("--service-control", "/bin/true")


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    file = tmp_path / "slicemgr.toml"
    file.write_text(f'[node]\nstate_dir = "{tmp_path}/state"\nrun_dir = "{tmp_path}/run"\n')
    (tmp_path / "state").mkdir()
    return file


def refused(settings: Path, *words: str) -> SlicemgrError:
    before = settings.read_text()
    result = CliRunner().invoke(cli, ["--config", str(settings), "make-centre", *words])
    assert isinstance(result.exception, SlicemgrError), result.output
    assert settings.read_text() == before and not (settings.parent / "run").exists()
    return result.exception


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("--broker", PLACE), "--database"),
        (("--database", "mysql://x/y", "--broker", PLACE), "--database"),
        (("--database", URL), "--broker"),
        (("--database", URL, "--broker", "testbed.example"), "--broker"),
        (("--database", URL, "--broker", "testbed.example:x"), "--broker"),
        (("--undo", "--check"), "--undo"),
        (("--undo", "--database", URL), "--undo"),
    ],
)
def test_an_option_that_is_wrong_is_named(settings: Path, words: tuple[str, ...], field: str) -> None:
    error = refused(settings, *words, *CONTROL)
    assert error.field == field and "secret" not in str(error)


def test_there_is_nothing_to_undo(settings: Path) -> None:
    assert "no conversion was interrupted" in str(refused(settings, "--undo", *CONTROL))


def test_an_interrupted_attempt_is_undone_first(settings: Path) -> None:
    (settings.parent / "state" / RECORD).touch()
    error = refused(settings, "--database", URL, "--broker", PLACE, *CONTROL)
    assert "interrupted" in error.message and "--undo" in error.hint


def test_all_that_is_missing_is_listed_without_the_password(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_process, "checks", lambda _: [])
    words = ["--config", str(settings), "make-centre", "--database", URL, "--broker", PLACE, *CONTROL]
    result = CliRunner().invoke(cli, words)
    assert isinstance(result.exception, SlicemgrError) and "cannot become a centre" in result.exception.message
    failed = [line.split(":")[0] for line in result.output.splitlines() if line.startswith("FAIL")]
    assert {"FAIL settings", "FAIL web page", "FAIL services", "FAIL database", "FAIL user of the hub"} <= set(failed)
    assert "secret" not in result.output

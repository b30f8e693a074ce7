"""What the tools that kill programs at random rely on: the comparison of nodes with rows, and their exit status."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bench_outage
import boxed_faults
import demo
import pytest
from bench_faults import Record, shortfalls
from boxed_faults import Host, differences
from nodebox_linux import BoxError


def test_the_comparison_with_the_rows_shows_what_differs() -> None:
    """The control of the tool that kills programs at random."""
    right = frozenset({"aaaaaaaa-0"})
    assert not differences({"n1": right}, {"n1": Host(right, right, right)})
    more = right | {"bbbbbbbb-0"}
    for one in (Host(more, right, right), Host(right, more, right), Host(right, right, more)):
        assert len(differences({"n1": right}, {"n1": one})) == 1
    assert len(differences({"n1": more}, {"n1": Host(right, right, right)})) == 3
    assert len(differences({}, {"n1": Host(right, right, right)})) == 3


def run_of(**changes: Any) -> Record:
    """A complete run, with changes."""
    values: dict[str, Any] = {"creates": 0, "kills": Counter(hub=1), "logins": 1}
    return Record(**(values | changes))


@pytest.mark.parametrize(
    ("changes", "lack"),
    [
        ({"creates": 3}, "3 slices were not requested in time"),
        ({"kills": Counter()}, "there were no kills"),
        ({"logins": 0}, "there were no logins"),
    ],
)
def test_a_run_that_shows_too_little_is_no_success(changes: dict[str, Any], lack: str) -> None:
    assert shortfalls(run_of(), []) == []
    assert shortfalls(run_of(), ["user-1"]) == ["user-1 has not ended its work"]
    assert shortfalls(run_of(**changes), []) == [lack]


def outage(waited: dict[str, int], reported: dict[str, float]) -> list[str]:
    return bench_outage.missed({bench_outage._WAITED: waited, bench_outage._REPORTED: reported})


def test_an_outage_is_judged_by_each_node() -> None:
    times = {"n1": 0.7, "n2": 10.0, "n3": 0.1}
    assert outage({"n1": 3, "n2": 5, "n3": 0}, times) == []
    [late] = outage({"n1": 3, "n2": 5, "n3": 0}, times | {"n3": 10.1})
    assert late.startswith("n3 had reported 10.1 s after")
    [idle] = outage({"n1": 3, "n2": 0, "n3": 1}, times)
    assert "nothing waited on n2" in idle


@pytest.fixture
def testbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens to the testbed of a tool that runs without one."""
    seen: list[str] = []
    made = SimpleNamespace(start=lambda: seen.append("start"), destroy=lambda: seen.append("destroy"))
    monkeypatch.setattr(boxed_faults, "BoxedTestbed", lambda boxes: made)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(demo, "RUN", tmp_path / "run")
    monkeypatch.setattr(sys, "argv", ["tool", "--json", str(tmp_path / "result.json")])
    return seen


@pytest.mark.parametrize(("good", "status"), [(True, 0), (False, 1)])
def test_the_exit_status_is_the_verdict(testbed: list[str], tmp_path: Path, good: bool, status: int) -> None:
    with pytest.raises(SystemExit) as ended:
        boxed_faults.main("tool", argparse.ArgumentParser(), lambda testbed, asked: ({"figure": 1}, good))
    assert ended.value.code == status and testbed == ["start", "destroy"]
    assert json.loads((tmp_path / "result.json").read_text()) == {"figure": 1}


def test_a_run_that_breaks_is_no_success(testbed: list[str]) -> None:
    def work(*_: object) -> tuple[dict[str, Any], bool]:
        raise BoxError("a sliver does not run")

    with pytest.raises(BoxError):  # which ends the process with status 1
        boxed_faults.main("tool", argparse.ArgumentParser(), work)
    assert testbed == ["start", "destroy"]

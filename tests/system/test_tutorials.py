"""Every command block of the tutorials, run against a node; a failure shows the terminal up to the command."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import tutorial
from testbed import BIN, Node

REPO = Path(__file__).parents[2]
TUTORIALS = REPO / "docs" / "tutorials"
PASSWORD = "correct horse battery"
SECONDS = 900  # of a whole tutorial, on a machine ten times slower
RUNS = ("researcher", "administrator", "testbed-team")


@pytest.fixture
def reader(node: Node, tmp_path: Path) -> dict[str, str]:
    """A home directory of their own, and slicectl on the path."""
    (tmp_path / "tools").symlink_to(REPO / "tools")
    path = f"{BIN}:{os.environ['PATH']}"
    return {"HOME": str(tmp_path), "PATH": path, "LANG": "C.UTF-8", "TERM": "dumb", "COLUMNS": "120"}


@pytest.fixture
def invited(node: Node) -> Iterator[str]:
    """The link of ada, a member of a project of her own."""
    node.ok("project", "create", "photonics", "--slices", "3")
    link = re.search(r"https?://\S+/invitation/\S+", node.ok("user", "invite", "ada"))
    assert link is not None
    node.ok("project", "add", "photonics", "ada")
    yield link[0]
    node.ok("user", "disable", "ada")


def follow(name: str, folder: Path, environment: dict[str, str]) -> str:
    """Run a tutorial. Returns the output of its terminal."""
    lines = tutorial.commands((TUTORIALS / f"{name}.md").read_text())
    assert len(lines) > 10
    done = tutorial.run(lines, folder, environment, PASSWORD, SECONDS)
    assert done.status == 0, f"{name}: the last command failed\n{done.shown[-3000:]}"
    return done.shown


def test_every_tutorial_is_run() -> None:
    assert {path.stem for path in TUTORIALS.glob("*.md")} == set(RUNS)


def test_a_command_that_fails_is_noticed(tmp_path: Path) -> None:
    """The control: the shell stops there, and the answer to a password prompt arrives."""
    read = "read -rsp 'Password: ' given"
    done = tutorial.run([read, '[ "$given" = "p w" ]', "false | true", "echo late"], tmp_path, os.environ, "p w", 60)
    assert done.status == 1 and done.shown.count("late") == 0
    with pytest.raises(ValueError):
        tutorial.commands("```console\nfalse\n```\n")


def test_the_researchers(node: Node, tmp_path: Path, reader: dict[str, str], invited: str) -> None:
    shown = follow("researcher", tmp_path, {**reader, "LINK": invited})
    assert "exp-1" in shown and PASSWORD not in shown


def test_the_administrators(node: Node, tmp_path: Path, reader: dict[str, str]) -> None:
    follow("administrator", tmp_path, {**reader, "SLICEMGR_URL": node.url, "SLICEMGR_TOKEN": node.token()})
    assert "optics" not in {one["name"] for one in json.loads(node.ok("project", "list", "-f", "json"))}


@pytest.mark.long
def test_the_testbed_teams(node: Node, tmp_path: Path, reader: dict[str, str]) -> None:
    follow("testbed-team", tmp_path, {**reader, "SLICEMGR_URL": node.url, "SLICEMGR_TOKEN": node.token()})
    assert json.loads(node.ok("bench", "published", "-f", "json")) == []

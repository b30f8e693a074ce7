"""The help of groups of commands, and names that do not exist."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from slicemgr import cli
from slicemgr.cli.root import root


def groups(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    yield path
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from groups(command, (*path, name))


def test_no_group_cuts_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """At the width of 80 columns, at which click cuts sentences by default."""
    found = list(groups(root))
    assert len(found) > 10
    for path in found:
        assert cli.main([*path, "--help"]) == 0
        listed = capsys.readouterr().out.partition("Commands:\n")[2]
        assert listed and "..." not in listed, path


@pytest.mark.parametrize("words", [("lst",), ("image", "lst")])
def test_a_wrong_name_is_answered_with_the_nearest(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Also among commands whose modules were not imported."""
    assert cli.main(words) == 2
    assert "there is no command 'lst'; did you mean 'list'?" in capsys.readouterr().err
    assert cli.main([*words[:-1], "\x1b[2J"]) == 2
    assert "there is no command '\\x1b[2J' (see" in capsys.readouterr().err

"""Errors as lines on stderr: `slicectl: FIELD: message (hint)`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from slicemgr.cli.render.human import printable

if TYPE_CHECKING:
    import click

    from slicemgr.errors import SlicemgrError


def say(text: str) -> None:
    """Print one line to stderr, without characters of the service that control the terminal."""
    sys.stderr.write(f"slicectl: {printable(text)}\n")


def print_error(error: SlicemgrError, about: str = "") -> None:
    """Print an error with its notes. about: the object that it belongs to, if there are several."""
    prefix = f"{about}: " if about else ""
    say(f"{prefix}{error}")
    for note in getattr(error, "__notes__", ()):
        say(f"{prefix}{note}")


def print_usage_error(error: click.ClickException) -> None:
    """Print an error of click in the form of `print_error`; for a group without a command, its help."""
    import click

    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show(sys.stderr)
        return
    message = error.format_message()
    if type(error) is click.BadParameter and error.param is not None:
        message = f"{field_of(error.param)}: {error.message}"
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f" (see `{context.command_path} --help`)" if context is not None else ""
    say(message.rstrip(".") + hint)


def field_of(param: click.Parameter) -> str:
    """A parameter as the user writes it: `--memory` or `NAME`."""
    longest = max(param.opts, key=len)
    return longest if longest.startswith("-") else (param.metavar or longest.upper()).rstrip(".")

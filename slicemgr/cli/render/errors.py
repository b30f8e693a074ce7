"""Errors as lines on stderr: `slicectl: FIELD: message (hint)`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from slicemgr.cli.render.human import printable

if TYPE_CHECKING:
    import click

    from slicemgr.errors import SlicemgrError


def say(text: str) -> None:
    """One line to the person, harmless for the terminal whatever the service put into it."""
    sys.stderr.write(f"slicectl: {printable(text)}\n")


def complain(error: SlicemgrError, about: str = "") -> None:
    """about: which of several things the error belongs to."""
    prefix = f"{about}: " if about else ""
    say(f"{prefix}{error}")
    for note in getattr(error, "__notes__", ()):
        say(f"{prefix}{note}")


def complain_usage(error: click.ClickException) -> None:
    """click's own errors in our form; a group without a command gets its help."""
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

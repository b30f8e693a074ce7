"""Options, arguments and functions of several commands."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from slicemgr.errors import Failed, SlicemgrError, invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import click

Command = TypeVar("Command", bound="Callable[..., Any]")

FAILED = 1
_COMPLETION_TIMEOUT = 2.0  # seconds after pressing Tab
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(_context: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Callback of an option that takes `90`, `30s`, `2m`, `1h`; seconds."""
    if value is None:
        return None
    text = value.strip()
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    try:
        amount = float(number) * _UNITS[unit]
    except ValueError:
        amount = -1.0
    if not 0 < amount < 1e9:
        raise invalid(f"--{param.name}", f"{value!r} is not a duration", "write it as 30s, 2m or 1h")
    return amount


def moment(context: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Callback of an option that takes a date or how long ago; RFC 3339."""
    from datetime import UTC, datetime, timedelta

    if value is None:
        return None
    if value.strip()[-1:] in _UNITS:
        ago = timedelta(seconds=seconds(context, param, value) or 0)
        return (datetime.now(UTC) - ago).strftime("%Y-%m-%dT%H:%M:%SZ")
    try:
        given = datetime.fromisoformat(value.strip())
    except ValueError as error:
        hint = "write it as 2h (ago), 2026-01-31 or 2026-01-31T12:00:00Z"
        raise invalid(f"--{param.name}", f"{value!r} is not a point in time", hint) from error
    return given.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def time_options(command: Command) -> Command:
    """`--since` and `--until`."""
    import click

    until = click.option("--until", callback=moment, metavar="WHEN", help="Only before this time.")
    return click.option("--since", callback=moment, metavar="WHEN", help="Only from this time: 2h (ago) or a date.")(
        until(command)
    )


def sliver_name(target: str) -> tuple[str, int]:
    """The slice and the number of the sliver in NAME, NAME/N, PROJECT/NAME or PROJECT/NAME/N. Raises Refused.

    A number after one slash is a sliver's: a slice that is called 7 is written PROJECT/7/0.
    """
    slice, slash, index = target.rpartition("/")
    if not slash or ("/" not in slice and not index.isdecimal()):
        return target, 0
    if not index.isdecimal() or not index.isascii() or target.count("/") > 2 or len(index) > 4:
        raise invalid("NAME", f"{target!r} is not the name of a sliver", "write it as exp/0 or lab/exp/0")
    return slice, int(index)


def slice_names(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The names of slices for completion in the shell, with their projects after a slash; none without a service."""
    from slicemgr.client import Client

    try:
        with Client.local(timeout=_COMPLETION_TIMEOUT) as client:
            with_project = "/" in incomplete
            names = [f"{one['project']}/{one['name']}" if with_project else one["name"] for one in client.slices.list()]
            return [name for name in names if name.startswith(incomplete)]
    except SlicemgrError:
        return []


def _choose_project(context: click.Context, _param: click.Parameter, value: str | None) -> None:
    from slicemgr.client.settings import choose_project

    if value:
        context.call_on_close(choose_project(value))


def project_option(command: Command) -> Command:
    """`--project`, for every client that the command creates."""
    import click

    text = "Project ($SLICEMGR_PROJECT)."
    return click.option("--project", expose_value=False, callback=_choose_project, is_eager=True, help=text)(command)


def ask_password(prompt: str, *, twice: bool = False, from_stdin: bool = False) -> str:
    """A password from the terminal, without echo, or from the first line of stdin."""
    import click

    if from_stdin:
        return sys.stdin.readline().rstrip("\n")
    return str(click.prompt(prompt, hide_input=True, confirmation_prompt=twice, err=True))


def yes_option(command: Command) -> Command:
    """`--yes`, for `confirm`."""
    import click

    return click.option("--yes", is_flag=True, help="Do not ask for confirmation.")(command)


def asks(yes: bool) -> bool:
    """Whether `confirm` asks: not with `--yes`, and no scripts, whose stdin is no terminal."""
    return not yes and sys.stdin is not None and sys.stdin.isatty()


def confirm(question: str, yes: bool) -> None:
    """Ask before a change that is hard to undo; any other answer than yes ends the command."""
    import click

    if asks(yes):
        click.confirm(question, abort=True, err=True)


def replace_process(words: list[str], hint: str) -> NoReturn:
    """Replace this process by a program. hint: how to install it, for the error if it cannot run."""
    sys.stdout.flush()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and the program would inherit that
    try:
        os.execvp(words[0], words)
    except OSError as error:
        raise Failed(f"cannot run {words[0]}: {error.strerror}", hint=hint) from error


def each(names: Iterable[str], job: Callable[[str], object]) -> int:
    """Call job for every name, also after one that fails.

    The exit status: 0 if all succeed, that of the errors if all names fail with the same one, else 1.
    """
    from slicemgr.cli.render.errors import print_error

    names = list(dict.fromkeys(names))
    statuses = []
    for name in names:
        try:
            job(name)
        except SlicemgrError as error:
            print_error(error, name if len(names) > 1 else "")
            statuses.append(error.code.exit_status)
    if not statuses:
        return 0
    return statuses[0] if len(set(statuses)) == 1 and len(statuses) == len(names) else FAILED

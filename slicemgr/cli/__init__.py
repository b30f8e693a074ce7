"""slicectl: the command line. `main` turns every result into an exit status and every error into one line.

0 ok, 1 failed or partly failed, 2 usage or invalid input, 3 not found, 4 conflict, 5 denied or quota, 6 timeout,
7 the service cannot be reached, 130 interrupted. A command imports what it needs when it runs, so that a list is quick.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

INTERRUPTED = 130
_GARBAGE_THRESHOLD = 100_000  # objects; imports alone make tens of thousands, none of them garbage


def main(args: Sequence[str] | None = None) -> int:
    """Run slicectl; the exit status. args: without the name of the program; None: those of the process."""
    sys.excepthook = _say_bug
    gc.set_threshold(_GARBAGE_THRESHOLD)
    try:
        status = _run(args)
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if args is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else the interpreter reports an error at its last flush
        if not isinstance(error, BrokenPipeError):  # the reader of a pipe may close it
            sys.stderr.write(f"slicectl: {error}\n")
        return 1
    finally:
        if args is None:
            gc.freeze()  # the process ends: the interpreter need not search all it holds for cycles
    return status


def _run(args: Sequence[str] | None) -> int:
    import click

    from slicemgr.cli.render.errors import print_error, print_usage_error
    from slicemgr.cli.root import root
    from slicemgr.errors import SlicemgrError, missing_extra

    try:
        try:
            return int(root.main(args, prog_name="slicectl", standalone_mode=False) or 0)
        except ModuleNotFoundError as error:
            raise missing_extra(error, "bench") from error
    except SlicemgrError as error:
        print_error(error)
        return error.code.exit_status
    except click.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        print_usage_error(error)
        return error.exit_code


def _say_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report an unexpected exception as one line, or with its traceback if SLICECTL_TRACEBACK is set."""
    if issubclass(kind, KeyboardInterrupt):
        return
    if os.environ.get("SLICECTL_TRACEBACK"):
        sys.__excepthook__(kind, error, trace)
        return
    text = ascii(str(error))[1:-1]
    hint = "set SLICECTL_TRACEBACK=1 for a traceback, and please report this error"
    sys.stderr.write(f"slicectl: internal error: {kind.__name__}: {text} ({hint})\n")

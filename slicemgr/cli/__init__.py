"""slicectl: the command line. `main` turns every ending into an exit status and, if it was not good, one line.

0 ok, 1 failed or partly failed, 2 usage or invalid input, 3 not found, 4 conflict, 5 denied or quota, 6 timeout,
7 the service cannot be reached, 130 interrupted. What a command needs is imported when it runs: a list is quick.
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
    """Run slicectl; the exit status. args: without the program's name, None means the process's own."""
    sys.excepthook = _say_bug
    gc.set_threshold(_GARBAGE_THRESHOLD)
    try:
        status = _run(args)
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if args is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter complains when it flushes at its end
        if not isinstance(error, BrokenPipeError):  # whoever reads us may leave
            sys.stderr.write(f"slicectl: {error}\n")
        return 1
    finally:
        if args is None:
            gc.freeze()  # the process ends: the interpreter need not search all it holds for cycles
    return status


def _run(args: Sequence[str] | None) -> int:
    import click

    from slicemgr.cli.render.errors import complain, complain_usage
    from slicemgr.cli.root import root
    from slicemgr.errors import SlicemgrError

    try:
        return int(root.main(args, prog_name="slicectl", standalone_mode=False) or 0)
    except SlicemgrError as error:
        complain(error)
        return error.code.exit_status
    except click.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        complain_usage(error)
        return error.exit_code


def _say_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The last resort: what nobody foresaw is still one line, and the whole story for those who want it."""
    if issubclass(kind, KeyboardInterrupt):
        return
    if os.environ.get("SLICECTL_TRACEBACK"):
        sys.__excepthook__(kind, error, trace)
        return
    text = ascii(str(error))[1:-1]
    hint = "set SLICECTL_TRACEBACK=1 for a traceback, and please report this error"
    sys.stderr.write(f"slicectl: internal error: {kind.__name__}: {text} ({hint})\n")

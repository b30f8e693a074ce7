"""Web processes that have their modules from the start: importing them takes most of the time until they serve.

They are forked from a process of their own, which has no thread, no open file and no state of a test.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from slicemgr.config import PACKAGE

_MODULES = ("server", "api", "pages", "console", "metrics", "reference", "repeats", "follow", "access_log")

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([*(f"slicemgr.web.{one}" for one in _MODULES), "gunicorn.workers.gthread"])


def start(file: Path, *, plain: bool = False, clean: bool = True, log: Path | None = None) -> ForkServerProcess:
    """Serve by a settings file until SIGTERM.

    plain: use gunicorn's own worker. clean: remove secrets from the log. log: the file of the log, which is configured
    by the settings; None: the output of the tests.
    """
    process = _context.Process(target=_serve, args=(file, plain, clean, log))
    process.start()
    return process


def end(process: ForkServerProcess) -> None:
    """Send SIGTERM and wait. Raises AssertionError if the process does not end."""
    process.terminate()
    process.join(timeout=60)
    ended = not process.is_alive()
    process.kill()
    process.join()
    assert ended, "the web process ignores SIGTERM"


def _serve(file: Path, plain: bool, clean: bool, log: Path | None) -> None:
    from slicemgr import logs
    from slicemgr.config import load
    from slicemgr.web import server

    os.chdir(PACKAGE.parent)
    config = load(file)
    if plain:
        from gunicorn.workers.gthread import ThreadWorker

        changed: Any = server
        changed.Worker = ThreadWorker
    if not clean:
        logs.clean = lambda text: text
    if log is not None:
        with log.open("wb") as opened:
            for number in (1, 2):
                os.dup2(opened.fileno(), number)
        logs.configure(config.log.format)
    server.serve(config)

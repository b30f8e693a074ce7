"""slicectl console: connects the terminal to the console of a sliver."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import termios
import time
import tty
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from slicemgr.cli.render.errors import say
from slicemgr.cli.shared import project_option, slice_names, sliver_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicemgr.ipc.websocket import Channel

_DETACH = b"\x1d"  # Ctrl-]
_QUIET = 1.0  # seconds without output after the end of stdin that is no terminal
_CHUNK = 32768
_TYPED_AHEAD = 1 << 20  # bytes kept for a sliver that does not read; further input is lost, as at any terminal
_SILENT = 90.0  # seconds; the service sends a ping every 20
_LAST = 2.0  # seconds for the service to receive the end of the session


@click.command()
@project_option
@click.argument("target", metavar="[PROJECT/]NAME[/N]", shell_complete=slice_names)
def console(target: str) -> None:
    """Attach to the console of sliver N (0) of slice NAME. Press Ctrl-] to detach.

    The console of an lxc sliver is a shell with the size of your terminal. The console of a kvm sliver is its serial
    line; set the size inside, such as `stty rows 50 cols 160`. An existing session is disconnected. Without a terminal,
    the command sends stdin and ends after one second without output.
    """
    from slicemgr.client import Client

    name, index = sliver_name(target)
    with Client.local() as client, client.slices.console(name, index) as channel:
        by_hand = sys.stdin is not None and sys.stdin.isatty()
        with _raw_terminal(by_hand), _size_changes(by_hand) as changes:
            # From here on, all input goes to the sliver, also Ctrl-C. A raw terminal does not begin a line by itself.
            say(f"connected to {name}/{index}; press Ctrl-] to detach" if by_hand else f"connected to {name}/{index}")
            if by_hand:
                sys.stderr.write("\r")
                _send_size(channel)
            _attend(channel, by_hand, changes)
        error = channel.ended.error(f"the connection to {client.url} was lost") if channel.ended else None
        if error is not None:
            raise error
        channel.close()
        channel.drain(_LAST)


@contextmanager
def _raw_terminal(wanted: bool) -> Iterator[None]:
    """Every key goes to the sliver. At the end the terminal is restored, also after SIGTERM or SIGHUP."""
    if not wanted:
        yield
        return
    before = termios.tcgetattr(0)
    handlers = {number: signal.signal(number, _exit_by_signal) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        tty.setraw(0, termios.TCSANOW)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSANOW, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        sys.stderr.write("\n")


def _exit_by_signal(number: int, _frame: object) -> None:
    sys.exit(128 + number)


@contextmanager
def _size_changes(wanted: bool) -> Iterator[socket.socket | None]:
    """A socket that is readable after the size of the terminal has changed."""
    if not wanted:
        yield None
        return
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        before = signal.signal(signal.SIGWINCH, lambda *_: None)
        waker = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(waker)
            signal.signal(signal.SIGWINCH, before)


def _send_size(channel: Channel) -> None:
    columns, rows = os.get_terminal_size(0)
    if rows and columns:  # some terminals do not have a size
        channel.resize(rows, columns)


def _attend(channel: Channel, by_hand: bool, changes: socket.socket | None) -> None:
    """Pass bytes both ways until Ctrl-], or `_QUIET` after the end of stdin, or the end of the connection."""
    typing, silent_from = True, 0.0
    _show(channel.receive())
    while channel.ended is None:
        now = time.monotonic()
        patience = channel.heard + _SILENT if typing or channel.pending else silent_from + _QUIET
        if now > patience:
            if typing or channel.pending:
                channel.lost("the service did not respond in time")
            return
        asking = typing and (by_hand or not channel.pending)  # a pipe may wait, Ctrl-] must not
        from_service, from_user, resized = _wait(channel, asking, changes, patience - now)
        if resized and changes is not None:
            changes.recv(_CHUNK)
            _send_size(channel)
        if from_service & select.POLLOUT:
            channel.flush()
        if from_service & ~select.POLLOUT:
            output = channel.receive()
            _show(output)
            if output:
                silent_from = time.monotonic()
        if from_user:
            typed = os.read(0, _CHUNK)
            before, key, _ = typed.partition(_DETACH) if by_hand else (typed, b"", b"")
            if before and channel.pending < _TYPED_AHEAD:
                channel.send(before)
            if key:
                return
            if not typed:
                typing, silent_from = False, time.monotonic()


def _wait(channel: Channel, asking: bool, changes: socket.socket | None, seconds: float) -> tuple[int, int, int]:
    """The poll events of the service, of stdin, and of the size of the terminal."""
    poll = select.poll()
    poll.register(channel, select.POLLIN | (select.POLLOUT if channel.pending else 0))
    if asking:
        poll.register(0, select.POLLIN)
    if changes is not None:
        poll.register(changes, select.POLLIN)
    ready = dict(poll.poll(seconds * 1000))
    return ready.get(channel.fileno(), 0), ready.get(0, 0), ready.get(changes.fileno(), 0) if changes else 0


def _show(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]

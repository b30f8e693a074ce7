"""Answer the questions of the service on a host that has joined a testbed: samples, which stay in its database.

The link passes them on over a socket that only root may use. A question is one packet; the answer is JSON in as many
packets as it needs, or an error packet.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from slicemgr.config import Config
from slicemgr.errors import Code, Refused, SlicemgrError
from slicemgr.figures import RAW
from slicemgr.ipc import console_socket, unix_socket
from slicemgr.policy import node_answers
from slicemgr.store import Store, samples
from slicemgr.store import tables as t

_MOST = 8  # questions at the same time
_TIMEOUT = 20.0  # seconds without progress
_RAW_STEP = 60  # seconds by which times of raw rows are changed
_LONGEST_SPAN = 400 * 86400  # seconds


class Questions:
    """A context manager: serves `config.question_socket` until its end, with a thread for each question."""

    def __init__(self, config: Config, store: Store) -> None:
        self._config, self._store = config, store
        self._room = threading.BoundedSemaphore(_MOST)
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        self._listener = console_socket.listen(self._config.question_socket)
        self._thread = threading.Thread(target=self._accept, name="questions", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._config.question_socket.unlink(missing_ok=True)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()

    def _accept(self) -> None:
        for stream in unix_socket.connections(self._listener, self._stopping, "a question"):
            threading.Thread(target=self._serve, args=(stream,), name="question", daemon=True).start()

    def _serve(self, stream: socket.socket) -> None:
        with stream, suppress(OSError):  # the link has ended
            stream.settimeout(_TIMEOUT)
            try:
                with self._room:
                    stream.recv(console_socket.CHUNK)  # the order of the link
                    stream.send(console_socket.OPENED)
                    content = self._answer(console_socket.parse_input(stream.recv(console_socket.CHUNK + 1)))
                for at in range(0, len(content), console_socket.CHUNK):
                    stream.send(console_socket.data_packet(content[at : at + console_socket.CHUNK]))
            except SlicemgrError as error:
                stream.send(console_socket.error_packet(error))

    def _answer(self, packet: object) -> bytes:
        try:
            question = json.loads(packet) if isinstance(packet, bytes) else None
            with self._store.read() as c:
                tables = answer(c, self._config.node.name, question or {})
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Refused(Code.INVALID, "the node does not understand the question", hint="update the node") from error
        if sum(len(one["rows"]) for one in tables.values()) > node_answers.MOST_ROWS:
            raise _too_large()
        content = json.dumps({"tables": tables}, separators=(",", ":")).encode()
        if len(content) > node_answers.LARGEST:
            raise _too_large()
        return content


def answer(c: Connection, node: str, question: Mapping[str, Any], now: float | None = None) -> dict[str, Any]:
    """The tables that a question asks for, with times by the clock of the service.

    now: by the clock of this host, seconds since 1970. KeyError, TypeError or ValueError for another form.
    """
    ahead = _ahead(question, time.time() if now is None else now)
    since, until = int(question["since"]) + ahead, int(question["until"]) + ahead
    found = _tables(c, node, question, since, until)
    return {name: _table(table, rows, ahead) for name, (table, rows) in found.items()}


def _ahead(question: Mapping[str, Any], now: float) -> int:
    """Seconds by which the clock of this host is ahead of that of the service: whole steps of the rows asked for."""
    if "now" not in question:  # from an earlier version of the service
        return 0
    step = int(question.get("resolution", RAW)) or _RAW_STEP
    return round((now - int(question["now"])) / step) * step


def _tables(
    c: Connection, node: str, question: Mapping[str, Any], since: int, until: int
) -> dict[str, tuple[sa.Table, Sequence[Row[*tuple[Any, ...]]]]]:
    kind = question["kind"]
    serials = [int(one) for one in question.get("slivers", ())]
    if not 0 < until - since <= _LONGEST_SPAN:
        raise ValueError("the time range is not valid")
    if kind == "slivers":
        resolution, together = int(question["resolution"]), question["together"] is True
        rows = samples.of_slivers(c, serials, resolution, since, until, together=together)
        return {"slivers": (t.samples, rows)}
    if kind == "node":
        return {"node": (t.node_samples, samples.of_node(c, node, int(question["resolution"]), since, until))}
    if kind == "newest":
        newest = samples.newest(c, since).get(node)
        rows = samples.at(c, node, newest.at, serials) if newest is not None else []
        return {"node": (t.node_samples, [newest] if newest else []), "slivers": (t.samples, rows)}
    raise ValueError("the kind is unknown")


def _table(table: sa.Table, rows: Sequence[Row[*tuple[Any, ...]]], ahead: int) -> dict[str, Any]:
    names = [one.name for one in table.columns if one.name not in ("node", "resolution")]
    found = [[getattr(row, name) for name in names] for row in rows]
    at = names.index("at")
    for row in found:
        row[at] -= ahead
    return {"columns": names, "rows": found}


def _too_large() -> Refused:
    hint = "request a shorter period, a coarser resolution, or the sum of all slivers"
    return Refused(Code.INVALID, "the response would be too large", hint=hint, field="since")

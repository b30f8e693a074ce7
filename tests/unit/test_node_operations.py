"""The table of node operations has every operation that the service addresses to a node or an image."""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from bare_service import Service, databases_on, service, settings
from demo import REPO
from postgres_server import Server

from slicemgr.agent import node_operations
from slicemgr.agent.chores.memory import MemoryController
from slicemgr.agent.journal import Journal
from slicemgr.agent.node import Node
from slicemgr.agent.node_operations import NodeOperations
from slicemgr.errors import Code, Refused
from slicemgr.model import OperationState
from slicemgr.store import StoreError, pending

# The functions that insert operations, and which of their arguments is the kind.
_INSERTING = {"operations.add": 1, "nodes.request": 3, "_measurement": 1}


def inserted_kinds() -> Iterator[str]:
    """The kinds that are written out where the service, the routes and the pages insert an operation."""
    for folder in (REPO / "slicemgr/service", REPO / "web"):
        for path in folder.rglob("*.py"):
            for call in ast.walk(ast.parse(path.read_text())):
                match call:
                    case ast.Call(func=function, args=args):
                        position = _INSERTING.get(ast.unparse(function))
                        if position is not None and isinstance(args[position], ast.Constant):
                            yield ast.literal_eval(args[position])


def operation(kind: str) -> pending.Operation:
    return pending.Operation("1", kind, OperationState.QUEUED, "", "", "", "", "admin", {}, ())


def test_each_operation_on_a_node_or_an_image_has_an_entry_and_no_entry_is_idle() -> None:
    kinds = set(inserted_kinds())
    assert {"image-import", "doctor", "tables"} <= kinds  # the search found both functions
    assert kinds - set(pending.SLIVER_OPERATIONS) == set(node_operations.TABLE)


def test_no_operation_has_two_entries() -> None:
    assert not set(pending.SLIVER_OPERATIONS) & set(node_operations.TABLE)


def test_the_table_decides_and_an_unknown_kind_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(tmp_path)
    with service(config) as store, Journal(store, "node1") as journal:
        operations = NodeOperations(
            Node.open(config, store, journal, threading.Event()), MemoryController(config, store)
        )
        monkeypatch.setattr(node_operations, "TABLE", {"echo": lambda parts, asked: {"kind": asked.kind}})
        assert operations.serve(operation("echo")) == {"kind": "echo"}
        with pytest.raises(Refused, match="this agent does not support the operation 'doctor'") as refused:
            operations.serve(operation("doctor"))
    assert (refused.value.code, refused.value.hint) == (Code.INVALID, "update it")


def test_the_rows_are_waited_for_while_the_database_restarts(tmp_path: Path) -> None:
    with Server() as server, databases_on(server), Service(tmp_path) as made, ThreadPoolExecutor(1) as pool:
        stop = threading.Event()
        with Journal(made.store, "node1") as journal:
            operations = NodeOperations(
                Node.open(made.config, made.store, journal, stop), MemoryController(made.config, made.store)
            )
            there = operations.images()
            assert there
            server.stop()
            found = pool.submit(operations.images)
            with pytest.raises(TimeoutError):
                found.result(1.5)
            server.start()
            assert found.result(60) == there
            with pytest.raises(Refused, match="the node is on hold"):
                operations.node.query(refused)
            server.stop()
            found = pool.submit(operations.images)
            stop.set()
            with pytest.raises(StoreError):
                found.result(60)
            server.start()


def refused(connection: object) -> None:
    raise Refused(Code.CONFLICT, "the node is on hold")

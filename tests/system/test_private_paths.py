"""Files of agent and service that a local user of the node, neither root nor the web process, can access."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbed import Node

STATE, RUN = "/var/lib/slicemgr", "/run/slicemgr"
# Directories whose names every local user may read. The pool is mounted by the admin.
OPEN = {STATE, f"{STATE}/pool", RUN, *(f"{RUN}/{name}" for name in ("root", "mask", "measured", "appliance"))}
TENANTS = ("root", "snapshots")  # of a sliver's directory: behind a directory of root's
NOBODY = ["setpriv", "--reuid", "64126", "--regid", "64126", "--clear-groups", "--bounding-set", "-all"]
# Prints as JSON which of the paths on stdin may be read, and which written.
ASK = """
import json, os, sys
paths = json.load(sys.stdin)
print(json.dumps([[one for one in paths if os.access(one, how)] for how in (os.R_OK, os.W_OK)]))
"""
OLD = ("recorder.json", "init.lock")


@pytest.fixture(scope="module")
def node(second_node: Node) -> Node:
    return second_node


def written(node: Node) -> Iterator[str]:
    """Every file and directory of agent and service, by its path in the box."""
    for top in (STATE, RUN):
        outside = node.box.path(top)
        for folder, folders, files in os.walk(outside):
            inside = f"{top}/{Path(folder).relative_to(outside)}".removesuffix("/.")
            if Path(inside).parent == Path(STATE, "pool/slivers"):
                folders[:] = [one for one in folders if one not in TENANTS]
            if Path(inside) == Path(STATE, "pool/bases"):
                folders.clear()
            yield inside
            yield from (f"{inside}/{name}" for name in files)


def accessible(node: Node) -> tuple[set[str], set[str]]:
    """The paths that a local user may read, and those that it may write."""
    paths = [one for one in written(node) if not node.box.path(one).is_symlink()]
    assert len(paths) > 20, "the walk finds what is there"
    asked = node.box.run([*NOBODY, "/usr/bin/python3", "-c", ASK], input=json.dumps(paths), check=True)
    readable, writable = json.loads(asked.stdout)
    return set(readable), set(writable)


@pytest.mark.usefixtures("each_type")
def test_a_local_user_reads_and_writes_nothing(node: Node) -> None:
    node.create("exp")
    readable, writable = accessible(node)
    assert readable <= OPEN
    assert writable == set()


def test_what_an_earlier_version_left_readable_is_found_and_tightened(node: Node) -> None:
    """The control: the walk finds them before the agent starts again."""
    node.create("exp")
    sliver = node.show("exp")["slivers"][0]["id"]
    old = {f"{RUN}/{name}" for name in OLD} | {f"{STATE}/images/{one.name}" for one in notes(node)}
    node.kill("agent")
    limit = f"{STATE}/pool/slivers/{sliver}"
    node.box.path(limit).chmod(0o711)
    for path in (*old, f"{limit}/limit"):
        node.box.path(path).chmod(0o644)
    assert accessible(node)[0] - OPEN == old | {f"{limit}/limit"}
    node.start_agent()
    assert accessible(node)[0] <= OPEN


def notes(node: Node) -> list[Path]:
    found = list(node.box.path(f"{STATE}/images").glob("*.json"))
    assert found, "an image is imported"
    return found

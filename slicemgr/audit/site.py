"""The projects and slices of an audit, and their deletion.

All names begin with `audit-`, and all leases last one hour. A separate process, the watchdog, deletes the objects if
this process ends before it has deleted them, and the next audit deletes what remains even then.
"""

from __future__ import annotations

import json
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from slicemgr import wire
from slicemgr.audit import leftovers
from slicemgr.bench.frame import slivers
from slicemgr.client import Client
from slicemgr.drivers import command
from slicemgr.errors import Code, Refused, SlicemgrError

PREFIX = "audit-"
DONE = "done"
_LEASE = "1h"
_LONGEST = 3600.0  # timeout of an audit in seconds
_MEMORY, _DISK, _PORTS = {"lxc": "256M", "kvm": "512M"}, {"lxc": "256M", "kvm": "2G"}, 4


def new_tag() -> str:
    """The common prefix of the names of one audit."""
    return f"{PREFIX}{secrets.token_hex(3)}"


def clean(client: Client, prefix: str, say: Callable[[str], None] = lambda _: None) -> None:
    """Delete the slices and projects whose names have the prefix. Raises SlicemgrError if a deletion fails."""
    leftovers.clean(client, lambda name: name.startswith(prefix), say=say)


@contextmanager
def watched(client: Client, token: str, prefix: str) -> Iterator[None]:
    """Within the context, the watchdog deletes objects with the prefix if this process ends. token: of the client."""
    words = [sys.executable, "-m", "slicemgr.audit.watchdog"]
    with command.converse(words, timeout=2 * _LONGEST) as talk:
        talk.say(json.dumps({"url": client.url, "token": token, "prefix": prefix}))
        try:
            yield
        finally:
            with suppress(command.CommandFailed):
                talk.say(DONE)


@contextmanager
def projects(client: Client, tag: str, say: Callable[[str], None]) -> Iterator[tuple[str, str]]:
    """Create the projects of the attacker and of the neighbour; delete them with all their slices at the end."""
    names = (f"{tag}-a", f"{tag}-b")
    try:
        for name in names:
            client.projects.create(name, description="Made by `slicectl audit`, which deletes it.")
        yield names
    finally:
        clean(client, tag, say)


def make(
    client: Client,
    names: tuple[str, str],
    tag: str,
    sliver_type: str,
    image: str,
    node: str,
    key: str,
    init: str,
    stop: threading.Event,
) -> tuple[Sequence[wire.Sliver], Sequence[wire.Sliver]]:
    """Create running slices, with two slivers in the first project and one in the second. Raises SlicemgrError.

    init: of containers, "" for machines.
    """
    asked = []
    # A machine starts faster without its boot loader, which no check concerns.
    boot = "direct" if sliver_type == "kvm" and client.images.get(image)["boot"].get("kernel") else ""
    for project, count in zip(names, (2, 1), strict=True):
        wanted = slivers.request(
            f"{tag}-{sliver_type}", sliver_type, image, node, key, project=project, count=count, lease=_LEASE,
            ports=_PORTS, memory=_MEMORY[sliver_type], disk=_DISK[sliver_type], boot=boot, init=init,
        )  # fmt: skip
        asked.append((project, slivers.ask(client, wanted)))
    made = []
    for project, created in asked:
        slivers.wait(client, created["operation"], stop)
        made.append(client.of_project(project).slices.get(f"{tag}-{sliver_type}")["slivers"])
    return made[0], made[1]


def remove(client: Client, names: tuple[str, str], tag: str, sliver_type: str) -> None:
    """Delete the slices of one type."""
    for project in names:
        with suppress(SlicemgrError):
            client.operations.wait(client.of_project(project).slices.delete(f"{tag}-{sliver_type}")["id"], 600)


@contextmanager
def paused(client: Client, project: str, name: str) -> Iterator[None]:
    """Within the context, a slice is paused. Raises SlicemgrError."""
    _act(client, project, name, "pause")
    try:
        yield
    finally:
        _act(client, project, name, "resume")


def _act(client: Client, project: str, name: str, action: str) -> None:
    operation = client.of_project(project).slices.act(name, action)
    slivers.succeeded(client.operations.wait(operation["id"], 120))


def check_admin(client: Client) -> None:
    """Raises Refused unless the user is an admin: only admins may create projects and start checks of a node."""
    if not client.account.get().get("admin"):
        raise Refused(Code.DENIED, "an audit creates projects and checks the node", hint="use an admin's token")

"""Kill programs of a testbed of boxes, start them again, and compare its nodes with the rows of the centre."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import demo
import nodebox_cgroups as cgroups
from boxed_centre import STATE, WEB
from boxed_node import BoxedNode
from boxed_testbed import BoxedTestbed
from nodebox_box import Box
from nodebox_linux import BoxError, locked, wait_until

from slicemgr import names

# The result, and whether it is as it should be.
Work = Callable[[BoxedTestbed, argparse.Namespace], tuple[dict[str, Any], bool]]

CENTRE = ("rabbitmq", "hub", "postgres", "web")
NODE = ("link", "agent", "libvirtd")
_ENDS = 30.0  # seconds until a killed program has ended
_LOOK = """\
ls /var/lib/slicemgr/pool/slivers
echo --
ls /sys/class/net
echo --
virsh -c lxc:///system list --name
"""


def kill(testbed: BoxedTestbed, victim: str, node: str = "n1") -> None:
    """By SIGKILL: a program of the centre, or one of a node."""
    if victim == "rabbitmq":
        _kill_broker(testbed.centre.box)
    else:
        box = testbed.centre.box if victim in CENTRE else testbed.nodes[node].box
        box.signal_daemon(victim, signal.SIGKILL)
    if victim == "web" and not wait_until(lambda: not testbed.centre.daemons.listens(WEB), _ENDS):
        raise BoxError("the workers of the service do not end")


def _kill_broker(box: Box) -> None:
    """Its server is a grandchild of the program that started it."""
    state = box.state
    for pid in cgroups.members([Path(state.members[0])]) if state else ():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "beam.smp":
                os.kill(pid, signal.SIGKILL)
    if not wait_until(lambda: box.daemon("rabbitmq") is None, _ENDS):
        raise BoxError("the broker does not end")


def heal(testbed: BoxedTestbed, victim: str, node: str = "n1") -> None:
    """Start what was killed, and wait until it is ready. Raises BoxError."""
    if victim in CENTRE:
        testbed.centre.start_programs()
    else:
        testbed.nodes[node].start_programs()


def mirror(node: BoxedNode, query: str) -> list[tuple[Any, ...]]:
    """Rows of the database of a node, also while its box does not run."""
    file = node.box.directory / "root" / str(STATE).lstrip("/") / "mirror.db"
    with closing(sqlite3.connect(file, timeout=30)) as database:
        return database.execute(query).fetchall()


def unsent(node: BoxedNode) -> int:
    """The number of updates that the centre has not acknowledged."""
    return int(mirror(node, "select count(*) from outbox")[0][0])


def domains(node: BoxedNode) -> set[str]:
    """The domains of slivers that run."""
    done = node.box.run(["virsh", "-c", "lxc:///system", "list", "--name"], check=True)
    return {one for one in done.stdout.split() if names.sliver_of_domain(one)}


@dataclass(frozen=True, slots=True)
class Host:
    """What a node has: the slivers of its subvolumes, links and running domains."""

    subvolumes: frozenset[str]
    links: frozenset[str]
    domains: frozenset[str]


def host(node: BoxedNode) -> Host:
    """Raises BoxError if libvirt does not answer."""
    done = node.box.run(["sh", "-ec", _LOOK])
    if done.returncode != 0:
        raise BoxError(f"{node.name}: {done.stderr.strip()}")
    parts = [part.split() for part in done.stdout.split("--\n")]
    return Host(
        frozenset(one for one in parts[0] if names.is_sliver_id(one)),
        frozenset(one for found in parts[1] if (one := names.sliver_of_link(found))),
        frozenset(one for found in parts[2] if (one := names.sliver_of_domain(found))),
    )


def differences(wanted: Mapping[str, Iterable[str]], found: Mapping[str, Host]) -> list[str]:
    """How nodes differ from the rows. Pure. wanted: the running slivers of each node. found: what each node has."""
    problems = []
    for node, has in found.items():
        rows = set(wanted.get(node, ()))
        for what in ("subvolumes", "links", "domains"):
            there = set(getattr(has, what))
            problems += [f"{node} lacks the {what[:-1]} of {one}" for one in sorted(rows - there)]
            problems += [f"{node} has a {what[:-1]} of {one}, which no row names" for one in sorted(there - rows)]
    return problems


def main(name: str, parser: argparse.ArgumentParser, work: Work) -> NoReturn:
    """Run a tool for faults with its options and the usual ones, print its result, and exit."""
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--boxes", default="storm-", help="begin of the names of the boxes; existing ones are used")
    parser.add_argument("--keep", action="store_true", help="leave the boxes")
    asked = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit(f"{name}: must be root: it makes namespaces and btrfs pools")
    demo.RUN.mkdir(mode=0o700, exist_ok=True)
    testbed = BoxedTestbed(asked.boxes)
    with locked(demo.RUN / "testbed"):
        try:
            testbed.start()
            found, good = work(testbed, asked)
        finally:
            if not asked.keep:
                testbed.destroy()
    text = json.dumps(found, indent=2)
    print(text)
    if asked.json:
        asked.json.write_text(text + "\n")
    sys.exit(0 if good else 1)

"""`make testbed`: a centre and three nodes in boxes at a switch, the third node behind NAT, and a slice on all nodes.

Each step first checks whether it is already done, so that it can be run again at any time. `make down` removes it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import demo
from boxed_centre import NAME as CENTRE
from boxed_centre import READY, Centre
from boxed_node import BoxedNode
from demo import CLONE, HERE, RUN, VENV
from nodebox_box import Box
from nodebox_linux import BoxError, locked, wait_until
from nodebox_switch import Switch

SITES = {"n1": "a", "n2": "a", "n3": "b"}
BEHIND_NAT = ("n3",)
RECIPE, SLICE = demo.RECIPE, "demo"


def say(text: str) -> None:
    print(f"testbed: {text}", file=sys.stderr, flush=True)


class BoxedTestbed:
    """prefix: of the names of its boxes, so that several testbeds of a clone have different ones.

    nodes_venv: the virtual environment with the nodes' version of slicemgr. centre_venv: that of the centre. trips:
    milliseconds of the round trip that the cables of nodes add. centre_runs: the centre is a node, too.
    """

    def __init__(
        self,
        prefix: str = "",
        nodes_venv: Path = VENV,
        centre_venv: Path = VENV,
        *,
        trips: Mapping[str, float] | None = None,
        centre_runs: bool = False,
    ) -> None:
        self.switch = Switch(f"{prefix}switch-{CLONE}")
        self.centre = Centre(Box(f"{prefix}centre-{CLONE}"), self.switch, centre_venv, with_agent=centre_runs)
        self.nodes = {
            name: BoxedNode(
                Box(f"{prefix}{name}-{CLONE}"),
                self.switch,
                name,
                site,
                behind_nat=name in BEHIND_NAT,
                venv=nodes_venv,
                trip=(trips or {}).get(name, 0.0),
            )
            for name, site in SITES.items()
        }

    def start(self) -> None:
        """Bring everything up, and wait until all nodes are active. Raises BoxError."""
        self.switch.make()
        say("the centre: PostgreSQL, RabbitMQ, signer, hub, web")
        self.centre.start()
        for node in self.nodes.values():
            say(f"node {node.name}, site {node.site}{', behind NAT' if node.name in BEHIND_NAT else ''}")
            node.start(self.centre)
        wanted = {name: ("active", node.address) for name, node in self.nodes.items()}
        found: dict[str, Any] = {}

        def active() -> bool:
            found.update({one["name"]: (one["state"], one["address"]) for one in self.listed()})
            return found.items() >= wanted.items()

        if not wait_until(active, READY, 0.5):
            raise BoxError(f"not all nodes are active: {found}")

    def listed(self) -> list[dict[str, Any]]:
        """The nodes as `slicectl node list` shows them."""
        found: list[dict[str, Any]] = self.ask("node", "list")
        return found

    def create_slice(self, key: Path) -> str:
        """A slice of containers, one on each node, and a login to each through its port. Returns what they print."""
        self.import_image()
        if any(one["name"] == SLICE for one in self.ask("list")):
            say("deleting the slice of the last time")
            self.centre.slicectl("delete", SLICE)
        every = {*self.nodes, CENTRE} if self.centre.with_agent else set(self.nodes)
        count = len(every)
        say(f"slicectl create {SLICE} --type lxc --count {count}")
        words = ("--type", "lxc", "--image", RECIPE, "--count", str(count), "--ssh-key", f"{key}.pub")
        self.centre.slicectl("create", SLICE, *words)
        slivers = self.ask("show", SLICE)["slivers"]
        if {one["node"] for one in slivers} != every:
            raise BoxError(f"the slice is not on all nodes: {[one['node'] for one in slivers]}")
        login = ("ssh", "-i", key)
        return "".join(
            self.centre.slicectl(*login, f"{SLICE}/{number}", "--", "id -un; hostname") for number in range(count)
        )

    def import_image(self) -> None:
        """Import the image of the slice, unless the testbed has it."""
        if not any(one["name"] == RECIPE for one in self.ask("image", "list")):
            say(f"importing {RECIPE}")
            self.centre.slicectl("image", "import", demo.ensure_image(), "--name", RECIPE)

    def ask(self, *words: str) -> Any:
        """What `slicectl` prints as JSON."""
        return json.loads(self.centre.slicectl(*words, "-f", "json"))

    def destroy(self) -> None:
        for node in self.nodes.values():
            node.box.destroy()
        self.centre.box.destroy()
        self.switch.destroy()


def _trip(text: str) -> tuple[str, float]:
    """NODE=MS. Raises ValueError."""
    name, _, milliseconds = text.partition("=")
    if name not in SITES or not 0 <= float(milliseconds) <= 10_000:
        raise ValueError(text)
    return name, float(milliseconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    help_ = "the virtual environment with the nodes' version of slicemgr, such as that of the release before"
    parser.add_argument("--nodes-venv", type=Path, default=VENV, help=help_)
    help_ = "milliseconds of the round trip that the cable of a node adds, such as n2=100; can be repeated"
    parser.add_argument("--delay", type=_trip, action="append", default=[], metavar="NODE=MS", help=help_)
    parser.add_argument("--centre-runs", action="store_true", help="the centre runs slivers, too")
    asked = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("testbed: must be root: it makes namespaces and btrfs pools")
    started, found = time.monotonic(), {"trips": dict(asked.delay), "centre_runs": asked.centre_runs}
    testbed = BoxedTestbed(nodes_venv=asked.nodes_venv.absolute(), **found)
    RUN.mkdir(mode=0o700, exist_ok=True)
    try:
        with locked(RUN / "testbed"):
            testbed.start()
            key = demo.ensure_key()
            demo.write_client(VENV / "etc/slicemgr/client.json", {**testbed.centre.client(), "identity": str(key)})
            inside = testbed.create_slice(key)
    except BoxError as error:
        sys.exit(f"testbed: {error}")
    print(inside, end="")
    print(testbed.centre.slicectl("node", "list"), end="")
    print(f"\nThe web page: {testbed.centre.url}/ (its certificate is from {testbed.centre.authority})")
    print(f"Sign in:      {testbed.centre.sign_in_link()}")
    print("              (once, within an hour, as admin; `make testbed` prints another link)")
    print(f"slicectl:     export SSL_CERT_FILE={testbed.centre.authority}; {VENV}/bin/slicectl node list")
    print(f"On a node:    {HERE}/nodebox enter {testbed.nodes['n1'].box.name} -- {VENV}/bin/slicemgr doctor")
    print(f"In all:       {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()

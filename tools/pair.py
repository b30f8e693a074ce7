"""Create two nodes in boxes on this host, connected by a link, for `slicectl bench throughput`.

One is the node of the demo, the other an equal peer; both get the images of the named recipes (default: debian-12).
It prints the command for the measurement. It may be repeated; `make down` removes both boxes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import demo

PEER = f"pair-{demo.CLONE}"
PEER_FILE = demo.RUN / "peer.json"


@contextmanager
def speaking_to(settings: Mapping[str, str]) -> Iterator[None]:
    """Within the context, slicectl uses this service."""
    os.environ.update(SLICEMGR_URL=settings["url"], SLICEMGR_TOKEN=settings["token"])
    try:
        yield
    finally:
        del os.environ["SLICEMGR_URL"], os.environ["SLICEMGR_TOKEN"]


def ensure_images(recipes: list[str]) -> None:
    demo.await_node()
    for recipe in recipes:
        demo.ensure_imported(demo.ensure_image(recipe), recipe)


def command(address: str) -> str:
    """The command line for the measurement, without further options."""
    box = demo.HERE / "nodebox"
    ends = [f"--{end}-exec '{box} enter {name} --'" for end, name in (("node", demo.BOX), ("peer", PEER))]
    words = [f"{demo.VENV}/bin/slicectl bench throughput", *ends, f"--peer {PEER_FILE} --address {address}"]
    return " \\\n    ".join([*words, "--output throughput"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=[demo.RECIPE], metavar="RECIPE", help="debian-12 if left out")
    recipes = parser.parse_args().recipes
    if os.geteuid() != 0:
        sys.exit("pair: must be root: it makes namespaces and btrfs pools")
    demo.RUN.mkdir(mode=0o700, exist_ok=True)
    demo.ensure_service(demo.ensure_key())
    ensure_images(recipes)
    settings = demo.ensure_box(PEER, "peer")
    demo.write_client(PEER_FILE, settings)
    with speaking_to(settings):
        ensure_images(recipes)
    demo.nodebox("join", demo.BOX, PEER)
    lans = json.loads(demo.nodebox("show", demo.BOX, "-f", "json"))["lans"]
    print(command(lans[PEER]))


if __name__ == "__main__":
    main()

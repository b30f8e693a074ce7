"""slicectl bench io, sysbench: programs in slivers of each type, compared with the node itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from slicemgr.cli.bench.frame import carry_out, frame_options
from slicemgr.cli.bench.options import (
    BOOTS,
    IMAGES,
    SEEDS,
    Command,
    images_option,
    node_option,
    repeat_option,
    seed_option,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from slicemgr import wire
    from slicemgr.bench.frame.load_hosts import Way

_IMAGE = "debian-12"  # of both types: the small one does not grow to its disk
_SIZES = "151600,536600,2600000,11900000,111600000"
_COUNTS = "10,100,1000,10000,100000"


def _list(least: int, most: int) -> Callable[[click.Context, click.Parameter, str], tuple[int, ...]]:
    """A callback for integers with commas between, without duplicates, in the order given."""

    def parse(_context: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
        found = {one.strip() for one in value.split(",")} - {""}
        if not all(one.isascii() and one.isdigit() and least <= int(one) <= most for one in found):
            raise click.BadParameter(
                f"{value!r}: use whole numbers from {least} to {most}, separated by commas", param=param
            )
        return tuple(sorted({int(one) for one in found}))

    return parse


def _once(_context: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _on(places: tuple[str, ...]) -> Callable[[Command], Command]:
    return click.option(
        "--on",
        "places",
        type=click.Choice(places),
        multiple=True,
        default=places,
        callback=_once,
        metavar="PLACE",
        help=f"Can be repeated ({', '.join(places)})  [default: all].",
    )


_OPTIONS = (
    node_option,
    seed_option("the data and the order of the places", SEEDS),
    click.option(
        "--boot",
        type=BOOTS,
        default="direct",
        show_default=True,
        help="Boot method of virtual machines.",
    ),
    click.option("--disk", default="8G", show_default=True, help="Of each sliver."),
    click.option("--memory", default="2G", show_default=True, help="Of each sliver."),
    images_option(dict.fromkeys(IMAGES, _IMAGE), f"({_IMAGE}). Images need python3."),
)


def _common(command: Command) -> Command:
    for option in _OPTIONS:
        command = option(command)
    return command


@click.command()
@_on(("lxc", "snapshot", "overlay", "copy", "kvm"))
@click.option(
    "--databases", callback=_list(65536, 1 << 32), default=_SIZES, show_default=True, help="Size of each file."
)
@click.option(
    "--files", "counts", callback=_list(1, 1_000_000), default=_COUNTS, show_default=True, help="Number of files."
)
@repeat_option(3)
@_common
@frame_options
def io(name: str | None, frame: Any, databases: tuple[int, ...], counts: tuple[int, ...], **how: Any) -> None:
    """Measure SQLite and small files in slivers and on three kinds of roots.

    The workload follows the thesis on INGINious (4.2.2, 5.1): it reads a database and duplicates each of its tables,
    and reads small files and unpacks them with tar. lxc, kvm: in a sliver. snapshot, overlay, copy: on the node, on a
    root of the lxc image made as a btrfs snapshot, with overlayfs, or as a plain copy. The report lists what was not
    measured.
    """
    from slicemgr.bench.experiments import io as experiment
    from slicemgr.errors import invalid

    if not databases and not counts:
        raise invalid("--databases", "nothing to measure", "give a number there, or in --files")

    def parameters(way: Way) -> experiment.IoParameters:
        return experiment.IoParameters(way, databases=databases, counts=counts, **how)

    _run(name, frame, experiment.NAME, parameters, experiment.Io, how)


@click.command()
@_on(("host", "lxc", "kvm"))
@click.option(
    "--test",
    "tests",
    type=click.Choice(["cpu", "threads", "memory", "fileio"]),
    multiple=True,
    default=["cpu", "threads", "memory", "fileio"],
    callback=_once,
    help="Can be repeated  [default: all].",
)
@click.option(
    "--seconds", type=click.IntRange(0, 600), default=0, help="Duration of each test  [default: as in the table]."
)
@click.option("--size", default="1G", show_default=True, help="Total size of the files of fileio.")
@click.option("--install", is_flag=True, help="Install sysbench with apt-get in slivers that do not have it.")
@repeat_option(5)
@_common
@frame_options
def sysbench(name: str | None, frame: Any, size: str, **how: Any) -> None:
    """Run the CPU, threads, memory and file I/O tests of sysbench on host, lxc and kvm.

    The results are those of the table of "Create Simple Container": five runs, mean and deviation. The node needs
    sysbench 1.0 (apt-get install sysbench). A sliver whose image has no sysbench gets the one of this machine with its
    libraries, or with --install its own by apt-get, which needs a network. The report lists the places without sysbench
    as not measured.
    """
    from functools import partial

    from slicemgr.bench.experiments import sysbench as experiment
    from slicemgr.bench.frame import sent_program
    from slicemgr.config import parse_size
    from slicemgr.errors import invalid
    from slicemgr.policy.measurements import LEAST_FILES, MOST_FILES

    if not LEAST_FILES <= parse_size(size, "--size") <= MOST_FILES:
        raise invalid("--size", f"{size} is out of range", "16M to 64G")

    def parameters(way: Way) -> experiment.SysbenchParameters:
        own = partial(sent_program.find, "sysbench")
        return experiment.SysbenchParameters(way, size=size, own=own, **how)

    _run(name, frame, experiment.NAME, parameters, experiment.Sysbench, how)


def _run(
    name: str | None,
    frame: Any,
    experiment: str,
    parameters: Callable[[Way], Any],
    make: Callable[[Any], Any],
    how: Mapping[str, Any],
) -> None:
    from slicemgr.bench.frame import slivers
    from slicemgr.bench.frame.load_hosts import Way
    from slicemgr.cli.bench.keys import new_key
    from slicemgr.cli.commands.node import the_node
    from slicemgr.client import Client
    from slicemgr.config import parse_size

    for option in ("memory", "disk"):
        parse_size(how[option], f"--{option}")
    key = new_key()

    def login(name: str, sliver: wire.Sliver, identity: Path) -> list[str]:
        words = slivers.login(name, sliver, identity)
        return [words[0], "-o", "BatchMode=yes", *words[1:]]

    with Client.local() as client:
        node = name or the_node(client)
        cpus = client.nodes.get(node)["capacity"]["cpus"]
        requests: dict[str, wire.SliceRequest] = {}
        for sliver_type, image in how["images"].items():
            requests[sliver_type] = {"image": image, "memory": how["memory"], "disk": how["disk"], "cpu": cpus}
        requests["kvm"]["boot"] = how["boot"]

        def way(prefix: str) -> Way:
            return Way(Client.local, node, key, login, prefix, requests)

        recorded = parameters(way("")).recorded
        carry_out(frame, client, node, experiment, recorded, lambda prefix: make(parameters(way(prefix))))

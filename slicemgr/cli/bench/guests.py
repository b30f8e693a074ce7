"""slicectl bench guests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from slicemgr.cli.bench.frame import carry_out, frame_options
from slicemgr.cli.bench.keys import new_key
from slicemgr.cli.bench.options import SEEDS, memory_option, node_option, repeat_option, seed_option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicemgr.bench.frame.sent_program import SentProgram
    from slicemgr.cli.bench.frame import Frame
    from slicemgr.client import Client

_USUAL = ("lxc", "debian", "small", "small-thin", "thin-standard", "thin")
_GUESTS = (*_USUAL, "thin-size", "thin-unprotected")
# The programs that guests are sent, their files on this machine where the names differ, and the options that try them.
# Redis' server is the same file as its checker, which Debian's redis-tools has.
_SENT = {
    "redis-server": ("redis-check-rdb", "--version"),
    "redis-benchmark": ("", "--version"),
    "nginx": ("", "-v"),
    "wrk": ("", ""),
}


def _images(_context: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for value in values:
        guest, named, image = value.partition("=")
        if not named or guest not in _GUESTS:
            raise click.BadParameter(f"{value!r}: write GUEST=NAME, with one of {', '.join(_GUESTS)}")
        found[guest] = image
    return found


@click.command()
@click.option(
    "--guest",
    "names",
    type=click.Choice(_GUESTS),
    multiple=True,
    default=_USUAL,
    metavar="GUEST",
    help=f"Can be repeated ({', '.join(_GUESTS)})  [default: those before thin-size].",
)
@click.option(
    "--image",
    "images",
    multiple=True,
    callback=_images,
    metavar="GUEST=NAME",
    help="Image of a guest; can be repeated.",
)
@click.option(
    "--count", type=click.IntRange(1, 50), default=3, show_default=True, help="Starts of each guest in a repetition."
)
@click.option("--seconds", type=click.FloatRange(1, 600), default=5.0, show_default=True, help="Duration of each load.")
@seed_option("the order of the guests", SEEDS)
@memory_option("guest")
@repeat_option(3)
@node_option
@frame_options
def guests(names: tuple[str, ...], images: dict[str, str], name: str | None, frame: Frame, **how: Any) -> None:
    """Compare guests by their kernel and their machine: start, memory, system calls, servers.

    After Lupine (EuroSys 2020). The images debian-12, debian-12-small and debian-12-thin must be imported, and for
    the last two guests debian-12-thin-size and debian-12-thin-unprotected (`image build --kernel`). Guests get
    sliver-latency and, if this machine has them, redis-server, redis-benchmark, nginx and wrk (Debian: redis-tools,
    nginx, wrk). The report compares all with `small`, which has Debian's kernel.
    """
    from slicemgr.bench.experiments import guests as experiment
    from slicemgr.cli.commands.node import the_node
    from slicemgr.client import Client

    chosen = experiment.with_images(tuple(dict.fromkeys(names)), images)
    with Client.local() as client:
        node = name or the_node(client)

        def parameters(prefix: str) -> experiment.GuestsParameters:
            return experiment.GuestsParameters(Client.local, chosen, node, new_key(), prefix, programs=_programs, **how)

        carry_out(
            frame,
            client,
            node,
            experiment.NAME,
            parameters("").recorded,
            lambda prefix: experiment.Guests(parameters(prefix)),
        )


def need_images(client: Client, node: str) -> None:
    """Raises Refused if the service does not have the images of all guests, or the node runs no such guest."""
    from slicemgr.bench.experiments import guests as experiment
    from slicemgr.bench.frame import slivers

    for one in experiment.with_images(_USUAL, {}):
        more = {"boot": one.boot, "machine": one.machine}
        slivers.dry_run(client, slivers.request("guests-try", one.type, one.image, node, new_key()[0], **more))


def _programs() -> Mapping[str, SentProgram]:
    from slicemgr.bench.frame import sent_program
    from slicemgr.config import PACKAGE

    found = {name: sent_program.find(name, *how) for name, how in _SENT.items()}
    latency = PACKAGE / "libexec" / "sliver-latency"
    return {latency.name: sent_program.static(latency), **{name: one for name, one in found.items() if one is not None}}

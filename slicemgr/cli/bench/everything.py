"""slicectl bench all: every experiment, one after another, and one page about them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slicemgr.cli.bench import guests, lifecycle, loads, nodes, peers, runs, throughput
from slicemgr.cli.bench.frame import folder_options, new_folder
from slicemgr.cli.bench.options import node_option, types_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicemgr.bench.frame.collection import Collection, Part

_COMMANDS = {
    "lifecycle": lifecycle.lifecycle,
    "scale": runs.scale,
    "io": loads.io,
    "sysbench": loads.sysbench,
    "throughput": throughput.throughput,
    "peers": peers.peers,
    "nodes": nodes.nodes,
    "guests": guests.guests,
}
_SMALL = ("--repeat", "1", "--memory", "512M", "--disk", "4G")
_QUICK = {
    "lifecycle": ("--count", "4", "--parallel", "2"),
    "scale": ("--to", "6", "--step", "3"),
    "io": ("--databases", "536600", "--files", "100", *_SMALL),
    "sysbench": ("--seconds", "1", "--size", "64M", *_SMALL),
    "throughput": (
        *("--link", "unlimited", "--talkers", "1", "--talkers", "4"),
        *("--seconds", "10", "--discard", "4", "--interval", "2"),
    ),
    "peers": ("--count", "3", "--ports", "2", "--seconds", "1", "--parallel", "2"),
    "nodes": ("--rounds", "5", "--placements", "10", "--resyncs", "2"),
    "guests": ("--repeat", "1", "--count", "1", "--seconds", "1"),
}
_PLACES = {"io": ("lxc", "snapshot", "overlay", "copy", "kvm"), "sysbench": ("host", "lxc", "kvm")}
_ENDS = ("node-exec", "peer-exec", "peer", "peer-node", "address")
_NO_PEER = "it needs a second machine; give --peer-exec or --node-exec, see `slicectl bench throughput --help`"


@dataclass(frozen=True, slots=True)
class Choice:
    """What the command line chose. ends: the options of `throughput` that name its two ends, without empty ones."""

    names: Sequence[str]
    types: Sequence[str]
    images: Sequence[str]
    node: str
    ends: Sequence[tuple[str, str]]
    quick: bool


def parts(choice: Choice) -> list[Part]:
    """The experiments with their options."""
    from slicemgr.bench.frame.collection import Part

    return [Part(name, _words(name, choice)) for name in _COMMANDS if name in choice.names]


def _words(name: str, choice: Choice) -> list[str]:
    types = choice.types[:1] if name == "scale" else choice.types
    found: list[str] = []
    if name in _PLACES:
        found += [word for one in _PLACES[name] if one in types or one not in ("lxc", "kvm") for word in ("--on", one)]
    elif name not in ("peers", "nodes", "guests"):
        found += [word for one in types for word in ("--type", one)]
    if name in ("scale", "peers", "nodes"):
        image = _image(choice.images, types[0] if name == "scale" else "lxc")
        found += ["--image", image] if image else []
    elif name != "guests":
        found += [word for image in choice.images for word in ("--image", image)]
    if name == "throughput":
        found += [word for option, value in choice.ends for word in (f"--{option}", value)]
    found += ["--local" if name == "nodes" else "--node", choice.node] if choice.node else []
    return [*found, *(_QUICK[name] if choice.quick else ())]


def _image(images: Sequence[str], sliver_type: str) -> str:
    """The image of a type, from values NAME and TYPE=NAME, of which the latter has precedence; "" for the default."""
    found = {named: image for named, _, image in (one.rpartition("=") for one in images)}
    return found.get(sliver_type, found.get("", ""))


@click.command("all")
@click.option("--quick", is_flag=True, help="Measure in small: minutes instead of hours, for a first overview.")
@click.option(
    "--only",
    "names",
    type=click.Choice(list(_COMMANDS)),
    multiple=True,
    default=list(_COMMANDS),
    help="Experiment to run; can be repeated  [default: all].",
)
@types_option
@click.option(
    "--image",
    "images",
    multiple=True,
    metavar="[TYPE=]NAME",
    help="Image of all types, or of one type; can be repeated  [default: as in each experiment].",
)
@click.option(
    "--node-exec", default="", metavar="WORDS", help="For throughput: command that runs programs on the node."
)
@click.option(
    "--peer-exec", default="", metavar="WORDS", help="For throughput: command that runs programs on the peer."
)
@click.option("--peer", default="", metavar="FILE", help="For throughput: client.json of the peer.")
@click.option("--peer-node", default="", help="For throughput: node of the service of the peer.")
@click.option("--address", default="", help="For throughput: address of the node for the peer.")
@node_option
@folder_options
def all_experiments(
    quick: bool,
    names: tuple[str, ...],
    types: tuple[str, ...],
    images: tuple[str, ...],
    name: str | None,
    output: Path | None,
    resume: bool,
    dry_run: bool,
    **ends: str,
) -> None:
    """Run every experiment, one after another, and write one page about them.

    Each experiment has its own folder in FOLDER, with its data and report. FOLDER/report.html and report.md show the
    result and the aims of each and link to its report. A failed experiment does not stop the others; the exit status is
    then 1, and --resume tries it again. `throughput` is left out without a second machine (--peer-exec or --node-exec),
    `peers` unless it runs as root on the node, and `nodes` on a testbed of one machine. --resume needs the same
    options.
    """
    from slicemgr.bench.frame import collection
    from slicemgr.errors import Failed, invalid

    if resume and output is None:
        raise invalid("--resume", "which experiments should be continued?", "--output FOLDER")
    given = [(one, value) for one in _ENDS if (value := ends[one.replace("-", "_")])]
    choice = Choice(names, tuple(dict.fromkeys(types)), images, name or "", given, quick)
    found = collection.look(output or new_folder("all", {}), parts(choice), resume=resume)
    if dry_run:
        _show(found, choice)
        return
    ended = _run(found, choice)
    if ended.failed:
        hint = f"--resume --output {ended.folder} tries again"
        raise Failed(
            f"{len(ended.failed)} of {len(ended.parts)} experiments failed: {', '.join(ended.failed)}", hint=hint
        )


def _run(found: Collection, choice: Choice) -> Collection:
    """Run the experiments; the page is also written if they are interrupted. Raises Failed if the disk is full."""
    from slicemgr.bench.frame import folder
    from slicemgr.bench.report import collection as overview
    from slicemgr.errors import SlicemgrError, invalid

    try:
        found.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise invalid(folder.FIELD, f"{found.folder}: {error.strerror}", "a folder that can be written to") from error
    found.write()
    try:
        for number, part in enumerate(found.parts, 1):
            click.echo(f"slicectl: {number} of {len(found.parts)}: {part.name}", err=True)
            found = found.ended(part.name, *_one(found, part, choice))
    finally:
        try:
            page = overview.write(found)[0]
            click.echo(f"{overview.outcome(found)} {page}")
        except SlicemgrError as error:
            click.echo(f"slicectl: no page: {error}", err=True)
    return found


def _one(found: Collection, part: Part, choice: Choice) -> tuple[str, str]:
    """Run an experiment. Returns its outcome and the reason of a failure, which is also printed."""
    from slicemgr.bench.frame import collection, folder
    from slicemgr.cli.render.human import printable
    from slicemgr.errors import SlicemgrError

    words = [*part.words, "--output", str(found.folder / part.name), *(["--resume"] if found.begun(part.name) else [])]
    try:
        if reason := _lacks(part.name, choice):
            click.echo(f"slicectl: {part.name} is left out: {printable(reason)}", err=True)
            return collection.LEFT_OUT, reason
        _invoke(part.name, words)
    except (SlicemgrError, click.ClickException) as error:
        reason = _message(error)
        click.echo(f"slicectl: {part.name} failed: {printable(reason)}", err=True)
        return collection.FAILED, reason
    return str(folder.read(found.folder / part.name).info["outcome"]), ""


def _lacks(name: str, choice: Choice) -> str:
    """Why an experiment cannot run from this place; "" if it can."""
    from slicemgr import config
    from slicemgr.bench.experiments import peers as experiment
    from slicemgr.cli.commands.node import the_node
    from slicemgr.client import Client
    from slicemgr.errors import Refused

    if name == "throughput" and not {"node-exec", "peer-exec"} & {option for option, _ in choice.ends}:
        return _NO_PEER
    try:
        if name == "peers":
            image = _image(choice.images, "lxc") or str(_default(name, "image"))
            with Client.local() as client:
                experiment.base(client, choice.node or the_node(client), config.load().node.pool, image)
        elif name == "nodes":
            with Client.local() as client:
                nodes.chosen(client, choice.node or None, ())
        elif name == "guests":
            if "kvm" not in choice.types:
                return "it compares virtual machines; give --type kvm"
            with Client.local() as client:
                guests.need_images(client, choice.node or the_node(client))
    except Refused as error:
        return str(error)
    return ""


def _default(name: str, option: str) -> object:
    return next(one.default for one in _COMMANDS[name].params if one.name == option)


def _invoke(name: str, words: Sequence[str]) -> None:
    command = _COMMANDS[name]
    with command.make_context(name, list(words), parent=click.get_current_context()) as context:
        command.invoke(context)


def _message(error: Exception) -> str:
    return error.format_message() if isinstance(error, click.ClickException) else str(error)


def _show(found: Collection, choice: Choice) -> None:
    """Print the steps of each experiment, or why it would not run."""
    from slicemgr.errors import SlicemgrError

    for part in found.parts:
        click.echo(shlex.join(["slicectl", "bench", part.name, *part.words]))
        words = [*part.words, "--output", str(found.folder / part.name), "--dry-run"]
        try:
            if reason := _lacks(part.name, choice):
                click.echo(f"left out: {reason}")
                continue
            _invoke(part.name, [*words, *(["--resume"] if found.begun(part.name) else [])])
        except (SlicemgrError, click.ClickException) as error:
            click.echo(f"would fail: {_message(error)}")

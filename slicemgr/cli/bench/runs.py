"""slicectl bench scale, report, clean."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slicemgr.cli.bench.frame import carry_out, frame_options
from slicemgr.cli.bench.options import (
    BOOTS,
    IMAGES,
    TYPES,
    memory_option,
    node_option,
    parallel_option,
    repeat_option,
    seed_option,
)
from slicemgr.cli.shared import each

if TYPE_CHECKING:
    from slicemgr.cli.bench.frame import Frame

_FOLDER = click.Path(file_okay=False, path_type=Path)
_CLEANERS = {  # experiment that creates more than slices → module with clean(…)
    "nodes": "slicemgr.cli.bench.nodes",
    "peers": "slicemgr.cli.bench.peers",
}


@click.command()
@click.option("--type", "sliver_type", type=TYPES, default="lxc", show_default=True, help="Type of all slivers.")
@click.option("--image", help="Image of all slivers (lxc: debian-12, kvm: debian-12-small).")
@click.option("--to", type=click.IntRange(1, 2000), default=200, show_default=True, help="Number of slivers.")
@click.option(
    "--step", type=click.IntRange(1, 500), default=5, show_default=True, help="Number of slivers added at each step."
)
@parallel_option("slivers")
@memory_option("sliver")
@click.option(
    "--boot",
    type=BOOTS,
    help="Boot method of virtual machines (kvm: direct).",
)
@click.option("--machine", type=click.Choice(["standard", "thin"]), help="Hardware of virtual machines (standard).")
@repeat_option()
@seed_option("the slivers that are checked again")
@node_option
@frame_options
def scale(
    sliver_type: str,
    image: str | None,
    boot: str | None,
    machine: str | None,
    name: str | None,
    frame: Frame,
    **how: Any,
) -> None:
    """Measure memory, swap and disk of the node and the create time by the number of slivers.

    The experiment reproduces figures 3 and 4 of the CoreLab paper. It adds slices of one sliver step by step. A create
    ends when the SSH banner arrives through the port of the sliver. The experiment stops before the node runs out of
    memory, disk, swap or processes, and reports the number of slivers. It writes run.json, steps.jsonl, data.csv,
    data.json, report.html and report.md to FOLDER. Ctrl-C deletes the slices and keeps the measurements.
    """
    from slicemgr.bench.experiments import scale as experiment
    from slicemgr.cli.bench.keys import any_key
    from slicemgr.cli.commands.node import the_node
    from slicemgr.client import Client
    from slicemgr.errors import invalid

    if boot and sliver_type == "lxc":
        raise invalid("--boot", "is for virtual machines", "omit the option, or use --type kvm")
    if machine and sliver_type == "lxc":
        raise invalid("--machine", "is for virtual machines", "omit the option, or use --type kvm")
    with Client.local() as client:
        node = name or the_node(client)
        wanted: dict[str, Any] = {
            "type": sliver_type,
            "image": image or IMAGES[sliver_type],
            "boot": boot or ("direct" if sliver_type == "kvm" else ""),
            "machine": machine or "",
        }

        def parameters(prefix: str) -> experiment.ScaleParameters:
            return experiment.ScaleParameters(Client.local, node, any_key(), prefix, **wanted, **how)

        carry_out(
            frame,
            client,
            node,
            experiment.NAME,
            parameters("").recorded,
            lambda prefix: experiment.Scale(parameters(prefix)),
        )


@click.command()
@click.argument("run", metavar="FOLDER", type=_FOLDER)
@click.option("--compare", type=_FOLDER, metavar="OLDER", help="The folder of an earlier run of the same experiment.")
def report(run: Path, compare: Path | None) -> None:
    """Write report.html (a single file), report.md with pictures, data.csv and data.json.

    With --compare, the report shows the figures of both runs and the significance of the difference. It needs
    matplotlib and scipy: pip install 'slicemgr[bench]'. For the folder of `bench all` it writes the page of all
    experiments.
    """
    from slicemgr.bench.frame import collection, folder
    from slicemgr.bench.report import collection as overview
    from slicemgr.bench.report import pages

    if compare is None and collection.is_one(run):
        for path in overview.write(collection.read(run, "FOLDER")):
            click.echo(path)
        return
    older = folder.read(compare, "--compare") if compare is not None else None
    for path in pages.write(folder.read(run, "FOLDER"), older):
        click.echo(path)


@click.command()
@click.argument("run", metavar="FOLDER", type=_FOLDER)
def clean(run: Path) -> int:
    """Delete the slices of a run that was killed or used --keep. The measurements remain.

    For `throughput`, this includes the slices of its peer and the rate limit of the link. For `peers`, it includes the
    containers on the node; run it as root on the node. For `nodes`, it includes the image. For the folder of `bench
    all`, it cleans each experiment.
    """
    from slicemgr.bench.frame import collection

    folders = {str(one): one for one in collection.run_folders(run, "FOLDER")}
    return each(folders, lambda name: _clean(folders[name]))


def _clean(run: Path) -> None:
    from slicemgr.bench.experiments import throughput
    from slicemgr.bench.frame import cleanup, folder, lock
    from slicemgr.cli.bench.progress import progress_display
    from slicemgr.client import Client
    from slicemgr.errors import invalid

    info = folder.read(run, "FOLDER").info
    prefix, node = str(info.get("prefix", "")), str((info.get("node") or {}).get("name", ""))
    if not prefix.startswith(cleanup.COMMON) or prefix == cleanup.COMMON:
        raise invalid("FOLDER", f"{run} does not contain the names of its slices", "use a run that has started")
    about = f"`clean` of {run.resolve()}"
    with Client.local() as client, lock.held(lock.path(client.url, node), about), progress_display() as progress:
        if info.get("experiment") == throughput.NAME:
            throughput.clean(info, progress)
        cleanup.delete(client, prefix, progress)
        if info["experiment"] in _CLEANERS:
            importlib.import_module(_CLEANERS[info["experiment"]]).clean(client, node, prefix)

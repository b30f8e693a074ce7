"""slicectl bench publish, published, unpublish."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slicemgr.cli.render import tables_experiments as tables
from slicemgr.cli.render.output import Output, output_options
from slicemgr.cli.shared import each, time_options

if TYPE_CHECKING:
    from slicemgr import wire
    from slicemgr.client import Client


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--name", help="Name on the page  [default: the name of the folder].")
@click.option("--note", help="One paragraph for the readers of the report.")
@click.option("--hidden", is_flag=True, help="Publish for admins only, for a review.")
@output_options(tables.EXPERIMENTS)
def publish(folder: Path, name: str | None, note: str | None, hidden: bool, output: Output) -> int:
    """Publish the report of the run in FOLDER on the page Experiments for all users (admins).

    The command sends report.html, report.md, data.csv, data.json, run.json and the pictures next to them. Publishing
    the same report again makes it visible if it was hidden, and changes its name and note if --name or --note is given.
    For the folder of `bench all`, it publishes each report, with the experiment after the name.
    """
    from slicemgr.bench.frame import collection
    from slicemgr.client import Client

    whole = collection.is_one(folder)
    runs = {str(one): one for one in collection.run_folders(folder, "FOLDER")}
    published: list[wire.Experiment] = []
    with Client.local() as client:

        def send(path: str) -> None:
            run = runs[path]
            called = name or folder.resolve().name
            wanted = {"name": f"{called} {run.name}" if whole else name, "note": note, "public": not hidden}
            published.append(_publish(client, run, wanted))

        status = each(runs, send)
    if published:
        output.show(published, published if whole else published[0])
    return status


def _publish(client: Client, run: Path, wanted: dict[str, Any]) -> wire.Experiment:
    """Send the report. wanted: name, note and public; None: as it is, or the default for a new one."""
    from slicemgr.bench.frame.publish import archive

    with archive(run) as (packed, size):
        called, note = wanted["name"] or run.resolve().name, wanted["note"] or ""
        found = client.experiments.publish(packed, size, name=called, note=note, public=wanted["public"])
    known = {"name": found["name"], "note": found["note"], "public": found["public"]}
    changes = {key: value for key, value in wanted.items() if value is not None and value != known[key]}
    return client.experiments.change(found["id"], **changes) if changes else found


@click.command()
@click.argument("id", required=False)
@click.option("--kind", help="Only this experiment: scale, throughput, ...")
@click.option("--node", help="Only of this node.")
@time_options
@output_options(tables.EXPERIMENTS)
def published(id: str | None, output: Output, **filters: str | None) -> None:
    """List the published experiments, newest first, or show the one with the given ID."""
    from slicemgr.client import Client

    with Client.local() as client:
        if id is None:
            output.show(client.experiments.list(**filters))
        else:
            found = client.experiments.get(id)
            output.show([found], found)


@click.command()
@click.argument("ids", metavar="ID…", nargs=-1, required=True)
@click.option("--delete", is_flag=True, help="Delete the report and its files. The folder of the run remains.")
def unpublish(ids: tuple[str, ...], delete: bool) -> int:
    """Make published experiments visible to admins only, or delete them (admins)."""
    from slicemgr.client import Client

    with Client.local() as client:
        return each(
            ids, client.experiments.delete if delete else lambda id: client.experiments.change(id, public=False)
        )

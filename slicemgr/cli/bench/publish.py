"""slicectl bench publish, published, unpublish."""

from __future__ import annotations

from pathlib import Path

import click

from slicemgr.cli.render import tables_experiments as tables
from slicemgr.cli.render.output import Output, output_options
from slicemgr.cli.shared import each, time_options


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--name", help="Name on the page  [default: the name of the folder].")
@click.option("--note", help="One paragraph for the readers of the report.")
@click.option("--hidden", is_flag=True, help="Publish for admins only, for a review.")
@output_options(tables.EXPERIMENTS)
def publish(folder: Path, name: str | None, note: str | None, hidden: bool, output: Output) -> None:
    """Publish the report of the run in FOLDER on the page Experiments for all users (admins).

    The command sends report.html, report.md, data.csv, data.json, run.json and the pictures next to them. Publishing
    the same report again makes it visible if it was hidden, and changes its name and note if --name or --note is given.
    """
    from slicemgr.bench.frame.publish import archive
    from slicemgr.client import Client

    with archive(folder) as (packed, size), Client.local() as client:
        called = name or folder.resolve().name
        found = client.experiments.publish(packed, size, name=called, note=note or "", public=not hidden)
        wanted = {"name": name, "note": note, "public": not hidden}
        known = {"name": found["name"], "note": found["note"], "public": found["public"]}
        changes = {key: value for key, value in wanted.items() if value is not None and value != known[key]}
        if changes:
            found = client.experiments.change(found["id"], **changes)
        output.show([found], found)


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

"""slicectl bench publish, published, unpublish."""

from __future__ import annotations

from pathlib import Path

import click

from slicemgr.cli import tables_experiments as tables
from slicemgr.cli.output import Output, output_options
from slicemgr.cli.shared import each, time_options


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--name", help="What it is called on the page; the folder's name if left out.")
@click.option("--note", help="What its readers should know; one paragraph.")
@click.option("--hidden", is_flag=True, help="For admins alone, to look at it first.")
@output_options(tables.EXPERIMENTS)
def publish(folder: Path, name: str | None, note: str | None, hidden: bool, output: Output) -> None:
    """Put the report of the run in FOLDER on the page Experiments, for everybody who is signed in (admins).

    Sent are report.html, report.md, data.csv, data.json, run.json and the pictures beside them. The same report again
    is the same experiment: it is shown if it was hidden, and --name and --note are changed if they are given.
    """
    from slicemgr.bench.publish import archive
    from slicemgr.client import Client

    with archive(folder) as (packed, size), Client.local() as client:
        called = name or folder.resolve().name
        found = client.publish_experiment(packed, size, name=called, note=note or "", public=not hidden)
        wanted = {"name": name, "note": note, "public": not hidden}
        known = {"name": found["name"], "note": found["note"], "public": found["public"]}
        changes = {key: value for key, value in wanted.items() if value is not None and value != known[key]}
        if changes:
            found = client.change_experiment(found["id"], **changes)
        output.show([found], found)


@click.command()
@click.argument("id", required=False)
@click.option("--kind", help="Only these: scale, throughput, ...")
@click.option("--node", help="Only of this node.")
@time_options
@output_options(tables.EXPERIMENTS)
def published(id: str | None, output: Output, **filters: str | None) -> None:
    """The published experiments, the newest first; or the one called ID."""
    from slicemgr.client import Client

    with Client.local() as client:
        if id is None:
            output.show(client.experiments(**filters))
        else:
            found = client.experiment(id)
            output.show([found], found)


@click.command()
@click.argument("ids", metavar="ID…", nargs=-1, required=True)
@click.option("--delete", is_flag=True, help="Delete it with its files; the run's own folder stays.")
def unpublish(ids: tuple[str, ...], delete: bool) -> int:
    """Hide published experiments from all but admins, or delete them (admins)."""
    from slicemgr.client import Client

    with Client.local() as client:
        return each(ids, client.delete_experiment if delete else lambda id: client.change_experiment(id, public=False))

"""slicectl top, usage."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from slicemgr.cli.render import tables_samples as tables
from slicemgr.cli.render.output import Output, output_options
from slicemgr.cli.shared import seconds, slice_names

if TYPE_CHECKING:
    from slicemgr.cli.render.output import Table
    from slicemgr.client import Client

_SORTS = (
    "cpu",
    "charged",
    "memory",
    "working",
    "disk",
    "net_in",
    "net_out",
    "io_read",
    "io_written",
    "pids",
    "connections",
)
_INTERVAL = 5.0  # seconds
_HOME, _REST = "\x1b[H", "\x1b[J"


@click.command()
@click.option("--sort", type=click.Choice(_SORTS), default="cpu", help="Sort by this resource, highest first.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Maximum number of slivers.")
@click.option("--once", is_flag=True, help="Print once and exit. This is the default if stdout is not a terminal.")
@click.option("--interval", callback=seconds, metavar="TIME", help="Refresh interval, such as 10s (default 5s).")
@output_options(tables.TOP)
def top(sort: str, count: int | None, once: bool, interval: float | None, output: Output) -> None:
    """Show the running slivers with the highest usage in the last sample. Press Ctrl-C to exit."""
    from slicemgr.client import Client

    with Client.local() as client:
        if once or not output.for_people or not sys.stdout.isatty():
            _print_top(client, sort, count, output)
            return
        try:
            while True:
                sys.stdout.write(_HOME + _REST)
                _print_top(client, sort, count, output)
                sys.stdout.flush()
                time.sleep(interval or _INTERVAL)
        except KeyboardInterrupt:
            return


def _print_top(client: Client, sort: str, count: int | None, output: Output) -> None:
    answer = client.samples.latest()
    _report_missing(answer)
    rows = sorted(answer["slivers"], key=lambda row: (-(row[sort] or 0), row["project"], row["slice"], row["index"]))
    if output.for_people and output.header:
        for node in answer["nodes"]:
            click.echo(_headline(node))
    table = tables.REPORTED if output.table is tables.TOP and any(row.get("reported") for row in rows) else output.table
    _shown_as(output, table).show(rows[:count], {**answer, "slivers": rows[:count]})


def _report_missing(answer: dict[str, Any]) -> None:
    from slicemgr.cli.render.errors import say
    from slicemgr.cli.render.human import text

    if missing := answer.get("missing"):
        say(f"no samples from {', '.join(map(text, missing))}, because they do not answer")


def _headline(node: dict[str, Any]) -> str:
    from slicemgr.cli.render.human import number, size, text, when

    cores = "-" if node["cpu"] is None else f"{node['cpu']:.2f}"
    return (
        f"{text(node['node'])}: {node['lxc']} lxc, {node['kvm']} kvm; cpu {cores} cores, load {number(node['load'])}; "
        f"memory {size(node['memory'])} of {size(node['memory_total'])}; swap {size(node['swap'])}; "
        f"disk {size(node['disk'])} of {size(node['disk_total'])}; sampled {when(node['at'])}"
    )


@click.command()
@click.argument("name", required=False, shell_complete=slice_names)
@click.option("--node", is_flag=True, help="NAME is a node. It is optional if there is only one node.")
@click.option("--project", help="Without NAME: usage of this project by month. With NAME: project of the slice.")
@click.option("--month", help="For projects: only this month, such as 2026-11 (UTC).")
@click.option("--since", help="Start: 7d (ago, default 24h), or a date; for projects a month.")
@click.option("--until", help="End, written the same way  [default: now].")
@click.option("--resolution", type=click.Choice(["auto", "raw", "5m", "1h"]), help="Resolution of the samples.")
@click.option("--series", is_flag=True, help="With json: print all samples, not only their totals.")
@output_options(tables.ANY_USAGE)
def usage(name: str | None, node: bool, output: Output, **options: Any) -> None:
    """Show the usage of a slice or a node in a period, or of projects by month.

    The units are sliver hours, CPU core hours, GiB hours of memory and disk, and bytes. Without NAME and --project, it
    shows all your projects. For a slice, it shows the sums and means of each sliver.
    """
    from slicemgr.client import Client
    from slicemgr.client.settings import choose_project

    for_projects = not (name or node)
    wrong = ("until", "resolution") if for_projects else ("month",)
    for option in wrong:
        if options[option]:
            raise click.UsageError(
                f"--{option} is {'for slices and nodes only' if for_projects else 'for projects only'}"
            )
    _check_columns(output, tables.ACCOUNTS if for_projects else tables.USAGE)
    if options["project"] and not for_projects:
        click.get_current_context().call_on_close(choose_project(options["project"]))
    with Client.local() as client:
        if for_projects:
            found = client.samples.accounts(options["project"], month=options["month"], since=options["since"])
            _shown_as(output, tables.ACCOUNTS).show(found)
        else:
            _print_usage(client, name, node, output, options)


def _print_usage(client: Client, name: str | None, node: bool, output: Output, options: dict[str, Any]) -> None:
    from slicemgr.cli.commands.node import the_node

    wanted = {one: options[one] for one in ("until", "resolution")} | {"since": options["since"] or "24h"}
    if node:
        answer = client.samples.of_node(name or the_node(client), **wanted)
        rows = [{"what": answer["node"], **answer["totals"]}]
    else:
        answer = client.samples.of_slice(name or "", **wanted)
        rows = [{"what": f"{answer['slice']}/{one['index']}", **one["totals"]} for one in answer["slivers"]]
    _report_missing(answer)
    window = {key: answer[key] for key in ("since", "until", "resolution")}
    _shown_as(output, tables.USAGE).show([{**row, **window} for row in rows], answer if options["series"] else None)


def _check_columns(output: Output, table: Table) -> None:
    known = [one.name for one in table.columns]
    for unknown in (one for one in output.chosen or () if one not in known):
        raise click.UsageError(f"unknown column {unknown!r}; the columns are {', '.join(known)}")


def _shown_as(output: Output, table: Table) -> Output:
    return Output(table, output.format, output.chosen, output.header)

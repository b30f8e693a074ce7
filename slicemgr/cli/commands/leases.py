"""slicectl project lease, slicectl clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from slicemgr.cli.groups import Group
from slicemgr.cli.render.human import span, text
from slicemgr.cli.render.output import Column, Output, Table, field, output_options

if TYPE_CHECKING:
    from slicemgr import wire

_NODE = "node"


def _any_time(value: object) -> str:
    return span(float(value)) if isinstance(value, int) and value else "any time"


def _span(value: object) -> str:
    return span(float(value)) if isinstance(value, int) else "-"


RULES = Table(
    (
        field("project", whole=True),
        field("default", _span),
        field("longest", _span),
        field("window", _any_time),
        Column("reminders", lambda row: ", ".join(_span(one) for one in row["reminders"]) or "none"),
        field("grace", _span),
        field("exempt"),
        Column("own", lambda row: ", ".join(row["own"])),
    ),
    ("project", "default", "longest", "window", "reminders", "grace", "exempt"),
)
CLOCK = Table((field("says"), field("leases_go_by"), field("held"), field("doubt", text)), ())


@click.command("lease")
@click.argument("name")
@click.option("--default", "default", metavar="TIME", help="Default lease, such as 7d (PIs).")
@click.option("--reminders", metavar="TIMES", help="Reminders before the end, such as 3d,1d,2h, or `none` (PIs).")
@click.option("--window", metavar="TIME", help="Renewal window before the end, such as 2d; 0s: at any time (admins).")
@click.option("--exempt/--no-exempt", default=None, help="Leases of the project do not expire (admins).")
@output_options(RULES)
def lease(
    name: str, default: str | None, reminders: str | None, window: str | None, exempt: bool | None, output: Output
) -> None:
    """Show or change the lease policy of project NAME. The value `node` restores the default of the testbed."""
    from slicemgr.client import Client

    given: dict[str, Any] = {"default": default, "window": window}
    changes = {key: None if value == _NODE else value for key, value in given.items() if value is not None}
    if reminders is not None:
        changes["reminders"] = _list(reminders)
    if exempt is not None:
        changes["exempt"] = exempt
    with Client.local() as client:
        rules: wire.LeaseRules = client.leases.change(name, **changes) if changes else client.leases.get(name)
    output.show([rules], rules)


def _list(value: str) -> list[str] | None:
    if value == _NODE:
        return None
    return [] if value == "none" else [one.strip() for one in value.split(",")]


@click.group(cls=Group)
def clock() -> None:
    """Show or confirm the clock that leases use."""


@clock.command("show")
@output_options(CLOCK)
def show_clock(output: Output) -> None:
    """Show the clock of the node, the clock that leases use, and why they differ."""
    from slicemgr.client import Client

    with Client.local() as client:
        found = client.leases.clock()
    output.show([found], found)


@clock.command("confirm")
@output_options(CLOCK)
def confirm_clock(output: Output) -> None:
    """Confirm that the clock of the node is right. Leases that have expired by it then end (admins)."""
    from slicemgr.client import Client

    with Client.local() as client:
        found = client.leases.confirm_clock()
    output.show([found], found)

"""The columns of published experiments."""

from __future__ import annotations

from slicemgr.cli.render.human import size, when
from slicemgr.cli.render.output import Column, Table, field

EXPERIMENTS = Table(
    (
        field("id", whole=True),
        field("name"),
        field("kind"),
        field("node"),
        field("public"),
        field("summary"),
        field("note"),
        field("started_at", when),
        field("published_at", when),
        field("published_by"),
        field("size", size),
        Column("files", lambda row: ", ".join(one["name"] for one in row["files"])),
        field("sha256"),
    ),
    ("id", "name", "kind", "public", "started_at", "published_at", "size", "summary"),
)

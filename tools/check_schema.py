"""Check that the migrations create the tables that the code describes, on SQLite and on PostgreSQL.

Exit status 1 if `alembic check` finds a difference.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from postgres_server import Server

from slicemgr.config import PACKAGE
from slicemgr.store import schema


def difference(url: str) -> str:
    """The differences between the upgraded database at `url` and the code; "" if there are none."""
    alembic = Config(cmd_opts=Namespace(x=[f"url={url}"]), stdout=sys.stderr)
    alembic.set_main_option("script_location", str(PACKAGE / "migrations"))
    try:
        command.check(alembic)
    except CommandError as error:
        return str(error)
    return ""


def main() -> int:
    with tempfile.TemporaryDirectory() as directory, Server() as server:
        found = {}
        for name, url in (("SQLite", f"sqlite:///{Path(directory) / 'fresh.db'}"), ("PostgreSQL", server.url())):
            schema.upgrade(url)
            found[name] = difference(url)
    for name, text in found.items():
        if text:
            print(f"on {name} the tables differ from the migrations: {text}")
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

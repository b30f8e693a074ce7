"""Whether the migrations make exactly the tables that the code says, and can be taken back."""

from __future__ import annotations

import sys
import tempfile
from datetime import timedelta

from alembic import command
from alembic.config import Config
from alembic.util import CommandError

from slicemgr.config import PACKAGE
from slicemgr.store import schema
from slicemgr.store.engine import make_engine


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/check.db"
        schema.upgrade(url)
        alembic = Config(stdout=sys.stderr)
        alembic.set_main_option("script_location", str(PACKAGE / "migrations"))
        engine = make_engine(url, timedelta(seconds=5))
        try:
            with engine.connect() as connection:
                alembic.attributes["connection"] = connection
                command.check(alembic)
        except CommandError as error:
            print(error)
            return 1
        finally:
            engine.dispose()
        schema.downgrade(url, "base")
    return 0


if __name__ == "__main__":
    sys.exit(main())

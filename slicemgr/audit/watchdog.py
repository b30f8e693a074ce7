"""The process that cleans up after an audit that was killed: `python -m slicemgr.audit.watchdog`.

Reads one line of JSON (url, token, prefix) from its standard input and then waits: for the line `done`, which ends it,
or for the end of its input, after which it deletes what carries the prefix.
"""

from __future__ import annotations

import json
import sys
import time

from slicemgr.audit import site
from slicemgr.client import Client
from slicemgr.errors import SlicemgrError

_TRIES, _PAUSE = 20, 3.0  # and seconds between them: operations of the audit may still run


def main() -> int:
    settings = json.loads(sys.stdin.readline() or "{}")
    if not settings or sys.stdin.readline().strip() == site.DONE:
        return 0
    for attempt in range(_TRIES):
        try:
            with Client(settings["url"], settings["token"]) as client:
                site.clean(client, settings["prefix"])
            return 0
        except SlicemgrError:
            if attempt + 1 == _TRIES:
                return 1
            time.sleep(_PAUSE)
    return 1


if __name__ == "__main__":
    sys.exit(main())

"""The process that deletes the objects of a killed audit: `python -m slicemgr.audit.watchdog`.

It reads one line of JSON (url, token, prefix) from its standard input. It then ends at the line `done`; at the end of
the input, it deletes all objects with the prefix.
"""

from __future__ import annotations

import json
import sys
import time

from slicemgr.audit import site
from slicemgr.client import Client
from slicemgr.errors import SlicemgrError

_TRIES, _PAUSE = 20, 3.0  # number of attempts, and seconds between them: operations of the audit may still run


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

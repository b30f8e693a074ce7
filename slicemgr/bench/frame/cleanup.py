"""Deletion of the slices of an experiment, found by the prefix of their names; and waiting for a node's next facts."""

from __future__ import annotations

import time
from collections.abc import Collection

from slicemgr.bench.frame import guard
from slicemgr.bench.frame.experiment import Progress
from slicemgr.client import Client
from slicemgr.errors import Code, Failed, Refused, SlicemgrError

COMMON = "bench-"  # the names of the slices of all experiments begin with this
_TRIES = 3
_LONGEST = 600.0  # seconds that one deletion may take
_LOOK_SECONDS = 180.0  # within this time the agent observes its node and all slivers again


def prefix(run: str) -> str:
    """The prefix of the names of the slices of a run. run: the eight characters that identify it."""
    return f"{COMMON}{run}-"


def refuse_others(client: Client, mine: str) -> None:
    """Raises Refused if slices of another experiment exist, which runs elsewhere or was killed."""
    others = sorted(one["name"] for one in client.slices.list(prefix=COMMON) if not one["name"].startswith(mine))
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        hint = "if it no longer runs: `slicectl bench clean FOLDER`, or continue it with --resume"
        raise Refused(Code.CONFLICT, f"slices of another experiment exist: {others[0]}{more}", hint=hint)


def delete(client: Client, mine: str, progress: Progress, but: Collection[str] = ()) -> None:
    """Delete every slice whose name begins with `mine`, also one that another process made or left incomplete.

    but: names of slices to keep. Raises Failed if some slices could not be deleted.
    """
    trouble = ""
    for _ in range(_TRIES):
        names = [one["name"] for one in client.slices.list(prefix=mine) if one["name"] not in but]
        if not names:
            return
        asked = []
        for name in names:
            try:
                asked.append(client.slices.delete(name)["id"])
            except SlicemgrError as error:
                if error.code is not Code.NOT_FOUND:
                    trouble = str(error)
        for done, operation in enumerate(asked, 1):
            ended = client.operations.wait(operation, _LONGEST)
            trouble = f"{ended['error']}" if ended["state"] == "failed" else trouble
            progress.inside("delete", done, len(asked))
    left = [one["name"] for one in client.slices.list(prefix=mine) if one["name"] not in but]
    if left:
        hint = f"`slicectl delete {' '.join(left[:5])}`{' and so on' if len(left) > 5 else ''}"
        raise Failed(f"{len(left)} slices of the experiment could not be deleted: {trouble}", hint=hint)


def next_look(client: Client, node: str) -> guard.State:
    """The facts of the node's next observation. Raises Failed if there is none within `_LOOK_SECONDS`."""
    end = time.monotonic() + _LOOK_SECONDS
    first = shown = client.nodes.get(node)
    while shown["agent_seen_at"] == first["agent_seen_at"]:
        if time.monotonic() > end:
            hint = "does its agent run? `slicectl node list`"
            raise Failed(f"the agent of {node} has not observed its node for {_LOOK_SECONDS:g} s", hint=hint)
        time.sleep(0.2)
        shown = client.nodes.get(node)
    return guard.state(shown["facts"])

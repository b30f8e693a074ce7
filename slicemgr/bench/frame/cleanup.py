"""What an experiment leaves: nothing. Its slices are known by the prefix of their names; and the node's next look."""

from __future__ import annotations

import time
from collections.abc import Collection

from slicemgr.bench.frame import guard
from slicemgr.bench.frame.experiment import Progress
from slicemgr.client import Client
from slicemgr.errors import Code, Failed, Refused, SlicemgrError

COMMON = "bench-"  # how the names of all experiments' slices begin
_TRIES = 3
_LONGEST = 600.0  # seconds of one deletion
_LOOK_SECONDS = 180.0  # within which the agent looks at its node and all slivers again


def prefix(run: str) -> str:
    """Of the names of what a run makes. run: its own eight characters."""
    return f"{COMMON}{run}-"


def refuse_others(client: Client, mine: str) -> None:
    """Refused if slices of another experiment are there: one that runs elsewhere, or one that was killed."""
    others = sorted(one["name"] for one in client.slices.list(prefix=COMMON) if not one["name"].startswith(mine))
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        hint = "if it does not run any more: `slicectl bench clean FOLDER`, or go on with it by --resume"
        raise Refused(Code.CONFLICT, f"slices of another experiment are there: {others[0]}{more}", hint=hint)


def delete(client: Client, mine: str, progress: Progress, but: Collection[str] = ()) -> None:
    """Every slice whose name begins so, whoever made it and however far that came. Raises Failed if some stay."""
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
    """What the node says when it looks at itself next. Raises Failed if it does not in time."""
    end = time.monotonic() + _LOOK_SECONDS
    first = shown = client.nodes.get(node)
    while shown["agent_seen_at"] == first["agent_seen_at"]:
        if time.monotonic() > end:
            hint = "does its agent run? `slicectl node list`"
            raise Failed(f"the agent of {node} has not looked at its node for {_LOOK_SECONDS:g} s", hint=hint)
        time.sleep(0.2)
        shown = client.nodes.get(node)
    return guard.state(shown["facts"])

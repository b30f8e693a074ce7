"""Wait for an operation; on a terminal, stderr shows its steps meanwhile."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from slicemgr.cli.render.human import printable
from slicemgr.errors import Code, Failed

if TYPE_CHECKING:
    from slicemgr import wire
    from slicemgr.client import Client

_MOST_NODES = 3  # names in a line


def follow(
    client: Client, operation: wire.Operation, timeout: float | None = None, *, cancel: str = ""
) -> wire.Operation:
    """The operation once it is done. Raises Failed with its error and hint. After TIMEOUT and Ctrl-C it continues.

    cancel: the command that cancels it, if there is one.
    """
    hint = f"watch it with `slicectl op wait {operation['id']}`"
    hint += f", cancel it with `{cancel}`" if cancel else ""
    try:
        ended = _watch(client, operation, timeout)
    except KeyboardInterrupt:
        from slicemgr.cli.render.errors import say

        say(f"operation {operation['id']} continues; {hint}")
        raise
    except Failed as error:
        if error.code is Code.TIMEOUT:
            error.hint = f"it continues; {hint}"
        raise
    if ended["state"] == "failed":
        raise Failed(ended["error"] or "the operation failed", hint=ended["hint"] or "")
    return ended


def _watch(client: Client, operation: wire.Operation, timeout: float | None) -> wire.Operation:
    if not sys.stderr.isatty():
        return client.operations.wait(operation["id"], timeout)
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(operation["kind"], total=None)

        def draw(now: wire.Operation) -> None:
            progress.update(task, description=_line(now), **_amount(now))

        return client.operations.wait(operation["id"], timeout, draw)


def _line(operation: wire.Operation) -> str:
    """What is running, with the nodes that have yet to end their parts if others have ended theirs."""
    running = [step for step in operation["steps"] if step["state"] == "running"]
    words = [operation["kind"], operation["slice"] or operation["image"] or ""]
    if len(running) == 1:
        words.append(f"{running[0]['name']} {running[0]['detail']}")
    elif operation["progress"]["total"] > 1:
        words.append(f"{operation['progress']['done']} of {operation['progress']['total']} slivers")
    parts = operation.get("parts", [])
    left = [part["node"] for part in parts if part["state"] not in ("done", "failed")]
    if 0 < len(left) < len(parts):
        words.append(f"(waiting for {', '.join(left[:_MOST_NODES])}{' and others' if len(left) > _MOST_NODES else ''})")
    return printable(" ".join(filter(None, words)))


def _amount(operation: wire.Operation) -> dict[str, Any]:
    if operation["progress"]["total"] > 1:
        return {"completed": operation["progress"]["done"], "total": operation["progress"]["total"]}
    percents = [step["percent"] for step in operation["steps"] if step["state"] == "running" and step["percent"]]
    return {"completed": percents[-1], "total": 100} if percents else {"total": None}

"""What a run was: version, commit, command line, the node it ran on and the noise there before it began."""

from __future__ import annotations

import platform
import secrets
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import slicemgr
from slicemgr.bench.frame import cleanup
from slicemgr.client import Client
from slicemgr.drivers import command

_OMITTED = ("addresses", "boot_id", "kinds_reason", "net_rate_missing", "acceleration_reason")


def head(client: Client, node: str, words: Sequence[str], seed: int | None) -> dict[str, Any]:
    """For run.json, with the prefix of what the run makes. words: the command line. Raises SlicemgrError."""
    shown = client.nodes.get(node)
    facts = {name: value for name, value in shown["facts"].items() if name not in _OMITTED}
    return {
        "prefix": cleanup.prefix(secrets.token_hex(4)),
        "seed": seed,
        "slicemgr": slicemgr.__version__,
        "commit": commit(Path(slicemgr.__file__).parent.parent),
        "command": shlex.join(words),
        "measured_from": f"{platform.platform()}, Python {platform.python_version()}",
        "node": {"name": node, **facts},
        "noise": {"load": facts.get("load"), "cpus": facts.get("cpus"), "slivers": shown["used"]["slivers"]},
    }


def commit(repository: Path) -> str | None:
    """Of a clone that slicemgr runs from, with a word if files in it were changed; None if it is no clone."""
    if not (repository / ".git").exists():
        return None
    git = ["git", "-c", f"safe.directory={repository}", "-C", str(repository)]
    try:
        name = command.run([*git, "rev-parse", "--short=12", "HEAD"], timeout=20).decode().strip()
        changed = command.run([*git, "status", "--porcelain", "--untracked-files=no"], timeout=60).strip()
    except command.CommandFailed:
        return None
    return f"{name}, changed" if changed else name

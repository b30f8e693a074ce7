"""Provenance of a run: version, commit, command line, facts of the node, and its load before the run began."""

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
    """The provenance for run.json, and the prefix of its slices. words: the command line. Raises SlicemgrError."""
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
    """The commit of the clone that slicemgr runs from, marked if files were changed; None if it is not a clone."""
    if not (repository / ".git").exists():
        return None
    git = ["git", "-c", f"safe.directory={repository}", "-C", str(repository)]
    try:
        name = command.run([*git, "rev-parse", "--short=12", "HEAD"], timeout=20).decode().strip()
        changed = command.run([*git, "status", "--porcelain", "--untracked-files=no"], timeout=60).strip()
    except command.CommandFailed:
        return None
    return f"{name}, changed" if changed else name

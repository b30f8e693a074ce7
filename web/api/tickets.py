"""Tokens for a console or a screen, for REST and for the pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slicemgr.errors import invalid
from slicemgr.policy.access import Principal
from slicemgr.service.slices import consoles, specs
from slicemgr.web import console
from slicemgr.web.api import reading
from slicemgr.web.state import state


def give(name: str, raw: Mapping[str, Any], by: Principal, project: str | None) -> dict[str, str]:
    """Issue the one-time token for the console or screen in `raw`: `token`, to use at `path` within a short time.
    Refused.
    """
    reading.only(raw, "sliver", "screen")
    screen = raw.get("screen", False)
    if not isinstance(screen, bool):
        raise invalid("screen", "must be true or false")
    index = specs.sliver_index(raw.get("sliver", 0))
    return {"token": consoles.ask(state().store, name, index, by, project=project, screen=screen), "path": console.PATH}

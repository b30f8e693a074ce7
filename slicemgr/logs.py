"""Logging of the processes: text or JSON, one line each, without secrets.

The web process sets `about` to add facts of the current request.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

TEXT, JSON = "text", "json"
HIDDEN = "…"

# Tokens and the secrets of sessions, invitations and sign-in links are 256 random bits in the alphabet of URLs; a
# cookie holds them signed.
_RANDOM = re.compile(r"(?=[\w-]*[A-Z])(?=[\w-]*[a-z])[\w-]{43,}", re.ASCII)
_NAMED = re.compile(
    r"""(bearer\s+|/invitation/|/sign-in-link/|token\.|(?:slicemgr|session)=|(?:password|secret|token|csrf_token)["']?\s*[=:]\s*["']?)"""
    r"""[^\s"',;&]+""",
    re.IGNORECASE,
)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def nothing() -> Mapping[str, str]:
    return {}


about: Callable[[], Mapping[str, str]] = nothing


def clean(text: str) -> str:
    """The text with everything removed that resembles a secret."""
    return _RANDOM.sub(HIDDEN, _NAMED.sub(rf"\1{HIDDEN}", text))


def configure(kind: str, *, verbose: bool = False) -> None:
    """Log to stderr, as `kind`: text or json."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if kind == JSON else Lines())
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler], force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)


class Lines(logging.Formatter):
    """Text lines: time, level, logger, message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        more = "".join(f" {name}={value}" for name, value in {**_extra(record), **about()}.items() if value != "")
        return clean(super().format(record) + more)


class JsonLines(logging.Formatter):
    """JSON lines, one object each. trace: of an unexpected error."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
            **about(),
        }
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps({name: clean(one) if isinstance(one, str) else one for name, one in fields.items()})


def _extra(record: logging.LogRecord) -> dict[str, object]:
    """The fields given with `extra=`."""
    return {
        name: one if isinstance(one, int | float | str) else str(one)
        for name, one in vars(record).items()
        if name not in _STANDARD
    }

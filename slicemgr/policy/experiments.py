"""The files of a published experiment and the facts in its run.json. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from slicemgr.errors import invalid
from slicemgr.policy import experiment_summary

REPORT, RUN = "report.html", "run.json"
TYPES = {
    ".html": "text/html",
    ".md": "text/markdown",
    ".csv": "text/csv",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}
MOST_FILES = 64
LONGEST_NAME, LONGEST_NOTE = 100, 2000  # characters
LARGEST_RUN = 1 << 20  # bytes of run.json
_LONGEST_SUMMARY, _LONGEST_NODE = 4000, 64
_NAMED = (REPORT, "report.md", "data.csv", "data.json", RUN)
_PICTURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}\.(png|svg)")
_KIND = re.compile(r"[a-z][a-z0-9-]{0,31}")
KNOWN = f"{', '.join(_NAMED)}, *.png, *.svg"


@dataclass(frozen=True, slots=True)
class Run:
    """The facts of a run. summary: the outcome, one paragraph. node: "" if unknown."""

    kind: str
    summary: str
    node: str
    started: datetime | None


def fits(name: str) -> bool:
    """Whether a file of this name belongs to a report. Such names contain no path."""
    return name in _NAMED or _PICTURE.fullmatch(name) is not None


def media_type(name: str) -> str:
    """The media type of a file that `fits`."""
    return TYPES[name[name.rindex(".") :]]


def check_files(names: Collection[str]) -> None:
    """Refused(INVALID) for an incomplete report."""
    if REPORT not in names:
        raise invalid("file", f"has no {REPORT}", "create it with `slicectl bench report FOLDER`")
    if RUN not in names:
        raise invalid("file", f"has no {RUN}", "send the whole folder of a run")


def read_run(data: bytes, report: bytes) -> Run:
    """Parse the contents of run.json and report.html. Refused(INVALID) with the wrong field."""
    if len(data) > LARGEST_RUN:
        raise invalid(RUN, f"has {len(data)} bytes", f"at most {LARGEST_RUN}")
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise invalid(RUN, "is not JSON", "send the file as written by `slicectl bench`") from error
    if not isinstance(raw, dict):
        raise invalid(RUN, "is not a JSON object", "send the file as written by `slicectl bench`")
    kind = raw.get("experiment")
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        raise invalid(RUN, "does not name its experiment", 'such as {"experiment": "scale"}')
    return Run(kind, _summary(raw.get("outcome"), report), _node(raw), _moment(raw.get("started")))


def _summary(outcome: Any, report: bytes) -> str:
    """The outcome in run.json, or the paragraph of the report if run.json has only one word such as `done`."""
    text = outcome
    if isinstance(outcome, str) and len(outcome.split()) < 2:
        text = experiment_summary.of(report) or outcome
    hint = "wait for the end of the run, and create its report with `slicectl bench report FOLDER`"
    if isinstance(text, str) and len(text) > _LONGEST_SUMMARY:
        text = text[: _LONGEST_SUMMARY - 1] + "…"
    return paragraph("outcome", text, _LONGEST_SUMMARY, hint)


def _node(raw: Mapping[str, Any]) -> str:
    """The node as a name or an object with a name, at the top level or among the parameters."""
    parameters = raw.get("parameters")
    node = raw.get("node") or (parameters.get("node") if isinstance(parameters, dict) else None)
    name = node.get("name") if isinstance(node, dict) else node
    return paragraph("node", name, _LONGEST_NODE) if isinstance(name, str) and name else ""


def paragraph(field: str, value: Any, most: int, hint: str = "") -> str:
    """Text on one line, with single spaces. Refused(INVALID) if it is empty or too long."""
    if value is None or value == "":
        raise invalid(field, "is missing", hint)
    text = " ".join(value.split()) if isinstance(value, str) else ""
    if not text or len(text) > most:
        raise invalid(field, "must be text", f"at most {most} characters")
    if any(one < " " or "\x7f" <= one < "\xa0" or "\ud800" <= one <= "\udfff" for one in text):
        raise invalid(field, "contains an invalid character", "use UTF-8 text without control characters")
    return text


def _moment(value: Any) -> datetime | None:
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (TypeError, ValueError, OverflowError) as error:
        raise invalid(RUN, "has no valid time in `started`", "such as 2026-01-31T12:00:00Z") from error

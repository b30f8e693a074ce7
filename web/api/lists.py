"""Filters and pages of lists.

A cursor is the start of the next page, signed with the caller's credential: it is valid for one list, one set of
filters and one caller, for a day.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from flask import request

from slicemgr.errors import Refused, invalid
from slicemgr.model import Desired, ImageState, OperationState, Phase, RequestState, SliverType
from slicemgr.service.views import slices as slice_views
from slicemgr.service.views.paging import Page
from slicemgr.web.state import principal

MOST, USUAL = 1000, 100  # rows of a page
_CURSOR_LIFE = 86400  # seconds
_LONGEST = 200  # characters of a filter's value
_OTHER_STATES = {"partial", slice_views.UNKNOWN}
_SLICE_STATES = tuple(sorted({slice_views.sliver_state(d, p) for d in Desired for p in Phase} | _OTHER_STATES))
_MOMENT = {"type": "string", "format": "date-time", "example": "2026-01-31T12:00:00Z"}


@dataclass(frozen=True, slots=True)
class Filter:
    """One query parameter. choices: its valid values, if they are fixed."""

    name: str
    about: str
    choices: Sequence[str] = ()
    moment: bool = False

    def described(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string", "maxLength": _LONGEST}
        if self.moment:
            schema = dict(_MOMENT)
        elif self.choices:
            schema = {"type": "string", "enum": [str(one) for one in self.choices]}
        return {"in": "query", "name": self.name, "schema": schema, "description": self.about}

    def read(self, text: str) -> Any:
        """Refused(INVALID)."""
        if self.moment:
            return _moment(self.name, text)
        if len(text) > _LONGEST:
            raise invalid(self.name, "is too long", f"at most {_LONGEST} characters")
        if self.choices and text not in self.choices:
            raise invalid(self.name, f"{text[:40]!r} is unknown", ", ".join(map(str, self.choices)))
        return text


STATE = Filter("state", "only those in this state", _SLICE_STATES)
TYPE = Filter("type", "only those of this type", tuple(SliverType))
IMAGE = Filter("image", "only those of this image: name or sha256")
PROJECT = Filter("project", "only of this project")
OWNER = Filter("owner", "only those of this user")
USER = Filter("user", "only what this user asked for")
PREFIX = Filter("prefix", "only those whose name begins so")
SLICE = Filter("slice", "only about slices of this name")
KIND = Filter("kind", "only of this kind: create, delete, ...")
ACTION = Filter("action", "only of this action: create, renew, ...")
SINCE = Filter("since", "only from this moment on", moment=True)
UNTIL = Filter("until", "only before this moment", moment=True)
WHOSE = Filter("user", "whose, if you are an admin")


@dataclass(frozen=True, slots=True)
class Listing:
    """A list's name in the response, and its filters."""

    name: str
    filters: Sequence[Filter] = ()
    usual: int = USUAL
    _by_name: Mapping[str, Filter] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {one.name: one for one in self.filters})

    @property
    def parameters(self) -> list[dict[str, Any]]:
        """For `Blueprint.doc`."""
        limit = {"type": "integer", "minimum": 1, "maximum": MOST, "default": self.usual}
        return [
            *(one.described() for one in self.filters),
            {"in": "query", "name": "limit", "schema": limit, "description": "rows of a page"},
            {"in": "query", "name": "cursor", "schema": {"type": "string"}, "description": "`next` of the page before"},
        ]

    def read(self) -> tuple[dict[str, Any], Page]:
        """The given filters and the requested page. Refused(INVALID) for unknown parameters."""
        known = (*self._by_name, "limit", "cursor")
        for name in request.args:
            if name not in known:
                raise invalid(name[:64], "unknown parameter", f"known: {', '.join(known)}")
        given = {name: self._by_name[name].read(text) for name, text in request.args.items() if name in self._by_name}
        wanted = {name: value for name, value in given.items() if value != ""}
        return wanted, Page(self._limit(), self._after())

    def _limit(self) -> int:
        text = request.args.get("limit", "")
        number = int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(MOST)) else 0
        if text and not 1 <= number <= MOST:
            raise invalid("limit", f"{text[:40]!r} is not a number from 1 to {MOST}")
        return number or self.usual

    def answer(self, rows: Sequence[Any], page: Page) -> dict[str, Any]:
        """The response; `next` is present if there are more rows."""
        return {self.name: rows, **({"next": self._cursor(page.next)} if page.next else {})}

    def _cursor(self, values: Sequence[Any]) -> str:
        values = [{"t": one.isoformat()} if isinstance(one, datetime) else one for one in values]
        content = json.dumps([int(time.time()), *values]).encode()
        return base64.urlsafe_b64encode(self._signature(content) + content).decode().rstrip("=")

    def _after(self) -> tuple[Any, ...]:
        text = request.args.get("cursor", "")
        if not text:
            return ()
        try:
            raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except ValueError as error:
            raise self._wrong() from error
        signature, content = raw[:16], raw[16:]
        if not hmac.compare_digest(signature, self._signature(content)):
            raise self._wrong()
        made, *values = json.loads(content)
        if not 0 <= time.time() - made + 60 <= _CURSOR_LIFE:
            raise invalid("cursor", "is too old", "begin again without one")
        return tuple(datetime.fromisoformat(one["t"]) if isinstance(one, dict) else one for one in values)

    def _wrong(self) -> Refused:
        hint = "give `next` of the page before, with the same filters and token, or begin again without one"
        return invalid("cursor", "is not one of this list", hint)

    def _signature(self, content: bytes) -> bytes:
        secret = request.headers.get("Authorization") or principal().credential
        same = sorted((name, text) for name, text in request.args.items() if name not in ("limit", "cursor"))
        about = json.dumps([request.path, principal().user, same]).encode()
        return hmac.digest(f"cursor {secret}".encode(), hashlib.sha256(about).digest() + content, "sha256")[:16]


def _moment(name: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError("without a time zone")
        return moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise invalid(name, f"{text[:40]!r} is not a moment", "such as 2026-01-31T12:00:00Z") from error


SLICES = Listing("slices", (STATE, TYPE, IMAGE, PROJECT, OWNER, PREFIX))
IMAGES = Listing("images", (Filter("state", "only those in this state", tuple(ImageState)), PROJECT, PREFIX))
NODES = Listing("nodes")
OPERATIONS = Listing(
    "operations",
    (Filter("state", "only those in this state", tuple(OperationState)), KIND, SLICE, PROJECT, USER, SINCE, UNTIL),
    usual=50,
)
EVENTS = Listing("events", (SLICE, PROJECT, USER, ACTION, SINCE, UNTIL))
REQUESTS = Listing(
    "requests",
    (Filter("state", "only those in this state", tuple(RequestState)), PROJECT, USER, SINCE, UNTIL),
)
USERS = Listing("users")
PROJECTS = Listing("projects")
INVITATIONS = Listing("invitations")
KEYS = Listing("keys", (WHOSE,))
TOKENS = Listing("tokens", (WHOSE,))
SESSIONS = Listing("sessions", (WHOSE,))
ACCOUNTS = Listing(
    "accounts",
    (
        PROJECT,
        Filter("month", "such as 2026-11"),
        Filter("since", "from this month on"),
        Filter("format", "json or csv; without it the Accept header decides", ("json", "csv")),
    ),
)
EXPERIMENTS = Listing(
    "experiments",
    (Filter("kind", "only these: scale, throughput, ..."), Filter("node", "only of this node"), SINCE, UNTIL),
)

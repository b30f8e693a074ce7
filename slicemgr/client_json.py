"""Words of the REST API: segments and queries of its paths, and the parts of its answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlencode

from slicemgr.errors import Failed, invalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicemgr import wire

OTHER_VERSION = "is it of another version than this client?"


def segment(field: str, text: str) -> str:
    """`text` as one segment of a path. Refused if it could mean another path, or nothing."""
    if not text or not text.isprintable() or "/" in text or text in (".", ".."):
        raise invalid(field, f"{text!r} cannot be a name", "letters, digits and dashes")
    return quote(text, safe="")


def query(values: Mapping[str, object]) -> str:
    given = {key: value for key, value in values.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def operation_in(answer: dict[str, Any]) -> wire.Operation:
    value = answer.get("operation")
    if not isinstance(value, dict):
        raise Failed("the service's answer has no operation", hint=OTHER_VERSION)
    return cast("wire.Operation", value)


def items(answer: dict[str, Any], key: str) -> list[Any]:
    value = answer.get(key)
    if not isinstance(value, list):
        raise Failed(f"the service's answer has no {key}", hint=OTHER_VERSION)
    return value

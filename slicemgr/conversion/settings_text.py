"""Change settings in the text of a TOML file, whose comments and order stay. Pure."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Mapping

from slicemgr.errors import Code, Refused

Changes = Mapping[str, Mapping[str, str]]


def changed(text: str, changes: Changes) -> str:
    """The text with other values. changes: by section and name.

    Refused(CONFLICT) if the file is written in a way that lines cannot change, such as an inline table.
    """
    lines = text.removesuffix("\n").split("\n") if text else []  # not splitlines: only this ends a line in TOML
    for section, values in changes.items():
        for name, value in values.items():
            lines = _set(lines, section, name, value)
    result = "\n".join(lines) + "\n"
    if _parse(result) != _merged(tomllib.loads(text), changes):
        wanted = "; ".join(
            f"{section}.{name} = {_shown(section, name, value)}"
            for section, values in changes.items()
            for name, value in values.items()
        )
        raise Refused(Code.CONFLICT, "the settings cannot be changed line by line", hint=f"write there: {wanted}")
    return result


def _set(lines: list[str], section: str, name: str, value: str) -> list[str]:
    header = re.compile(rf"\s*\[\s*{re.escape(section)}\s*\]\s*(#.*)?")
    line = f"{name} = {json.dumps(value, ensure_ascii=False)}"
    start = next((number for number, one in enumerate(lines) if header.fullmatch(one)), None)
    if start is None:
        return [*lines, *([""] if lines else []), f"[{section}]", line]
    end = next((n for n in range(start + 1, len(lines)) if re.match(r"\s*\[", lines[n])), len(lines))
    place = next((n for n in range(start + 1, end) if re.match(rf"\s*{re.escape(name)}\s*=", lines[n])), None)
    if place is None:
        return [*lines[: start + 1], line, *lines[start + 1 :]]
    return [*lines[:place], line + _comment(lines[place]), *lines[place + 1 :]]


def _comment(line: str) -> str:
    """The comment at the end of a line with a value, with the space before it; "" if there is none."""
    value = _parse(line)
    for found in re.finditer(r"\s*#", line):
        if value is not None and _parse(line[: found.start()]) == value:
            return line[found.start() :]
    return ""


def _parse(text: str) -> dict[str, object] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _merged(settings: dict[str, object], changes: Changes) -> dict[str, object]:
    result = copy.deepcopy(settings)
    for section, values in changes.items():
        table = result.setdefault(section, {})
        if isinstance(table, dict):
            table.update(values)
    return result


def _shown(section: str, name: str, value: str) -> str:
    return "the URL of the database" if (section, name) == ("store", "url") else json.dumps(value)

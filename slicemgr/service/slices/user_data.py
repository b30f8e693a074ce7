"""The user data of a request, which cloud-init applies in each sliver at its first start."""

from __future__ import annotations

from typing import Any

import yaml

from slicemgr.errors import invalid

FIELD = "user_data"
LARGEST = 64 << 10  # bytes
_CONFIG, _SCRIPT = "#cloud-config", "#!"


def check(value: Any) -> str:
    """The text of a cloud-config (YAML) or a script, unchanged. Refused, with the line, if it is neither.

    Only formats that download nothing: cloud-init's `#include` and archives are refused.
    """
    if not isinstance(value, str):
        raise invalid(FIELD, "must be text", "the content of a cloud-config or script")
    size = len(value.encode(errors="replace"))
    if size > LARGEST:
        raise invalid(
            FIELD,
            f"has {size} bytes, which is too large",
            f"use at most {LARGEST} bytes, and download the rest in a script",
        )
    if "\0" in value:
        raise invalid(FIELD, "contains a zero byte", "send text")
    first = value.partition("\n")[0].strip()
    if first.startswith(_SCRIPT):
        return value
    if first != _CONFIG:
        raise invalid(
            FIELD, f"starts with {first[:40]!r}", f"the first line must be {_CONFIG}, or {_SCRIPT} for a script"
        )
    try:
        tree = yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise invalid(FIELD, f"is not YAML: {_where(error)}", "check it with `cloud-init schema -c FILE`") from error
    if tree is not None and not isinstance(tree, dict):
        raise invalid(FIELD, "is not a cloud-config, because it has no keys", "such as `packages: [iperf3]`")
    return value


def _where(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0] or type(error).__name__
    return f"line {mark.line + 1}: {problem}" if mark else str(problem)

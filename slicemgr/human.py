"""Values as text for people, in tables and on pages. Pure; data formats do not use it."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

_SPANS = ((365 * 86400, "year"), (86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))
# seconds in the unit, its name, and the count below which it is used
_EXACT = ((86400, "day", 730), (3600, "hour", 100), (60, "minute", 100), (1, "second", 100))
_BIDI = frozenset("\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")


def printable(text: str, keep: str = "") -> str:
    """`text` with all characters escaped that could control a terminal or change its reading direction.

    keep: control characters to keep, such as a newline.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if one in keep or not _steers(one) else _escape(one) for one in text)


def _steers(character: str) -> bool:
    return character < " " or "\x7f" <= character < "\xa0" or character in _BIDI or "\ud800" <= character <= "\udfff"


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def size(value: object) -> str:
    """Bytes as `512 MiB`, `1.5 GiB`."""
    if not isinstance(value, int | float):
        return "-"
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024 or unit == "TiB":
            break
        amount /= 1024
    digits = 0 if amount == int(amount) or abs(amount) >= 100 else 1
    return f"{amount:.{digits}f} {unit}"


def rate(value: object) -> str:
    """Bits per second as `800 kbit/s`, `1.5 Gbit/s`."""
    if not isinstance(value, int | float):
        return "-"
    amount = float(value)
    for unit in ("bit/s", "kbit/s", "Mbit/s", "Gbit/s"):
        if abs(amount) < 1000 or unit == "Gbit/s":
            break
        amount /= 1000
    return f"{amount:.4g} {unit}"


def number(value: object) -> str:
    """Cores and counts: `0.5`, `2`."""
    return f"{value:g}" if isinstance(value, float) else text(value)


def text(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))


def when(value: object, now: datetime | None = None) -> str:
    """An RFC 3339 time as `in 6 days` or `3 minutes ago`."""
    if not isinstance(value, str):
        return "-"
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return printable(value)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    seconds = (moment - (now or datetime.now(UTC))).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"in {_about(seconds)}" if seconds > 0 else f"{_about(-seconds)} ago"


def span(seconds: float) -> str:
    """A duration as `36 hours`, `7 days`: exact in a unit that it is a small multiple of, otherwise as `_about`."""
    for length, unit, most in _EXACT:
        if seconds >= length and seconds % length == 0 and seconds / length < most:
            return counted(int(seconds / length), unit)
    return _about(seconds)


def _about(seconds: float) -> str:
    """A duration, rounded to the largest unit that fits; days and years are used from two of them on."""
    for (length, unit), (finer, _) in pairwise([*_SPANS, (1, "")]):
        least = 2 * length if unit in ("day", "year") else length
        if seconds >= least - (finer / 2 if finer < length else 0):  # what the finer unit would round up to `least`
            return counted(int(seconds / length + 0.5), unit)
    return "0 seconds"


def counted(count: int, word: str, several: str = "") -> str:
    """`1 slice`, `3 slices`."""
    return f"{count} {word if count == 1 else several or word + 's'}"


def check(value: object) -> str:
    """The outcome of a check; None: unknown."""
    return {True: "ok", False: "FAIL"}.get(value, "?") if isinstance(value, bool) else "?"

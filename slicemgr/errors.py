"""The two kinds of errors.

`Refused`: nothing was changed, and the caller can correct the request. `Failed`: a step broke half way; its changes
were undone, or the message names what is left and how to remove it.
"""

from __future__ import annotations

from enum import Enum


class Code(Enum):
    """Machine-readable reason: (name on the wire, HTTP status, exit status of `slicectl`)."""

    INVALID = ("invalid", 422, 2)
    NOT_FOUND = ("not_found", 404, 3)
    CONFLICT = ("conflict", 409, 4)
    DENIED = ("denied", 403, 5)
    UNAUTHENTICATED = ("unauthenticated", 401, 5)
    TOO_MANY = ("too_many", 429, 5)
    QUOTA = ("quota", 403, 5)
    TIMEOUT = ("timeout", 504, 6)
    TOO_SLOW = ("too_slow", 408, 6)
    UNAVAILABLE = ("unavailable", 503, 7)
    FAILED = ("failed", 500, 1)

    def __init__(self, wire: str, status: int, exit_status: int) -> None:
        self.wire = wire
        self.status = status
        self.exit_status = exit_status

    @classmethod
    def from_wire(cls, wire: str) -> Code:
        """The code called `wire`; FAILED for a name that a newer server may send."""
        return next((code for code in cls if code.wire == wire), cls.FAILED)


class SlicemgrError(Exception):
    """An error for the user of the request.

    message: what is wrong, in one sentence. hint: what would be right, or how to repair it. field: the name of the
    wrong input, as the user wrote it, if there is one.
    """

    def __init__(self, code: Code, message: str, *, hint: str = "", field: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.field = field

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{where}{self.message}{hint}"


class Refused(SlicemgrError):
    """The request may not start: nothing was changed."""


class Busy(Refused):
    """A limit is reached at the moment. retry_after: seconds until a retry is useful."""

    def __init__(self, code: Code, message: str, *, hint: str = "", field: str = "", retry_after: int) -> None:
        super().__init__(code, message, hint=hint, field=field)
        self.retry_after = retry_after


class Failed(SlicemgrError):
    """A step broke half way. `__cause__` carries the driver's own error where there is one."""

    def __init__(self, message: str, *, hint: str = "", code: Code = Code.FAILED) -> None:
        super().__init__(code, message, hint=hint)


def invalid(field: str, message: str, hint: str = "") -> Refused:
    """Bad input: names the field, what is wrong and what would be right."""
    return Refused(Code.INVALID, message, hint=hint, field=field)


def missing_extra(error: ModuleNotFoundError, extra: str) -> Refused:
    """The error for a command whose Python packages are not installed. extra: the group that has them.

    Raises `error` itself for a module of slicemgr, which is a bug.
    """
    module = (error.name or "").partition(".")[0]
    if module in ("", "slicemgr"):
        raise error
    hint = f"install slicemgr with its extra {extra!r}: pip install 'slicemgr[{extra}]'"
    return Refused(
        Code.UNAVAILABLE, f"this command needs the Python package {module}, which is not installed", hint=hint
    )

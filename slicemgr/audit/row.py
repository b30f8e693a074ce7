"""A row of an audit: the attempt, the expected result, and the observed result."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum

from slicemgr.human import printable

LONGEST = 300  # characters of a cell
OWN_KERNEL = "a machine has a kernel of its own"  # why checks of what containers share do not apply


class Verdict(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Row:
    """kind: `lxc`, `kvm`, `node` or `rest`. ok: whether the observed result is the expected one; None: not tried."""

    row: str
    kind: str
    expected: str
    seen: str
    ok: bool | None

    @property
    def verdict(self) -> Verdict:
        if self.ok is None:
            return Verdict.NOT_APPLICABLE
        return Verdict.PASS if self.ok else Verdict.FAIL

    def shown(self) -> dict[str, object]:
        """The row as JSON."""
        cells = {name: printable(value)[:LONGEST] for name, value in asdict(self).items() if isinstance(value, str)}
        return {**cells, "verdict": self.verdict.value}


def inapplicable(row: str, kind: str, reason: str) -> Row:
    """The row of a check that does not apply to this type of sliver, or that this audit leaves out."""
    return Row(row, kind, "", reason, None)

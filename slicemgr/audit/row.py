"""One line of an audit: what was tried, what must happen, what happened."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum

from slicemgr.human import printable

LONGEST = 300  # characters of a cell
OWN_KERNEL = "a machine has a kernel of its own"  # why a check of what containers share means nothing for it


class Verdict(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Row:
    """kind: `lxc`, `kvm`, `node` or `rest`. ok: whether what was seen is what was expected; None: it was not tried."""

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
        """As JSON."""
        cells = {name: printable(value)[:LONGEST] for name, value in asdict(self).items() if isinstance(value, str)}
        return {**cells, "verdict": self.verdict.value}


def inapplicable(row: str, kind: str, reason: str) -> Row:
    """The row of a check that means nothing for this kind of sliver."""
    return Row(row, kind, "", reason, None)

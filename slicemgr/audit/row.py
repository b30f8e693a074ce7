"""One line of an audit: what was tried, what must happen, what happened."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from slicemgr.human import printable

LONGEST = 300  # characters of a cell


@dataclass(frozen=True, slots=True)
class Row:
    """kind: `lxc`, `kvm`, `node` or `rest`. ok: whether what was seen is what was expected."""

    row: str
    kind: str
    expected: str
    seen: str
    ok: bool

    def shown(self) -> dict[str, object]:
        """As JSON; the verdict is `pass` or `fail`."""
        cells = {name: printable(value)[:LONGEST] for name, value in asdict(self).items() if isinstance(value, str)}
        return {**cells, "verdict": "pass" if self.ok else "fail"}

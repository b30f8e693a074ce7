"""The paragraph of a report that states its outcome. Pure."""

from __future__ import annotations

from html.parser import HTMLParser

CLASS = "outcome"  # of its element in report.html
_MOST = 1 << 16  # bytes to parse: the paragraph is at the beginning, and malformed HTML makes the parser slow


def of(report: bytes) -> str:
    """The text of the first element of that class; "" if there is none."""
    found = _Outcome()
    found.feed(report[:_MOST].decode(errors="replace"))
    return " ".join("".join(found.words).split())


class _Outcome(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.done = False
        self._tag = ""
        self._depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._tag:
            self._depth += tag == self._tag
        elif not self.done and CLASS in (dict(attrs).get("class") or "").split():
            self._tag, self._depth = tag, 1

    def handle_endtag(self, tag: str) -> None:
        if tag == self._tag:
            self._depth -= 1
            if not self._depth:
                self._tag, self.done = "", True

    def handle_data(self, data: str) -> None:
        if self._tag:
            self.words.append(data)

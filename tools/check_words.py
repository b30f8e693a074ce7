"""Find the words that the documents do not use: docs/words.toml has them, with what to write instead.

Exit status 1 if there is one; each is printed as `FILE:LINE: "WORD": write ...`. Code is exempt: blocks, what stands
between backticks, and targets of links.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
LIST = REPO / "docs" / "words.toml"
CHANGELOG = "CHANGELOG.md"
_CODE = re.compile(r"`[^`]*`|\]\([^)]*\)|https?://\S+")
_FENCE = re.compile(r"\s*(```|~~~)")


def found(text: str, words: Mapping[str, str]) -> Iterator[tuple[int, str, str]]:
    """Line, word as written, and what to write instead, of each listed word in a Markdown text."""
    patterns = [(re.compile(rf"\b(?:{one})\b", re.IGNORECASE), instead) for one, instead in words.items()]
    for number, line in prose(text):
        for pattern, instead in patterns:
            for match in pattern.finditer(line):
                yield number, match[0], instead


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a Markdown text, numbered from 1, without code. A phrase may go over the end of a line."""
    fenced, before = False, ""
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced and not (line.startswith("    ") and not before.strip()):
            lines.append((number, _CODE.sub("``", line)))
            before = line
    for at, (number, line) in enumerate(lines):
        following = lines[at + 1] if at + 1 < len(lines) else (0, "")
        yield number, line
        if line and following[0] == number + 1:
            end, start = " ".join(line.split()[-2:]), " ".join(following[1].split()[:3])
            yield from _across(number, end, start)


def _across(number: int, end: str, start: str) -> Iterator[tuple[int, str]]:
    """The last two words of a line with the first three of the next, if both have some."""
    if end and start and not start.startswith(("|", "-", "#", ">")):
        yield number, f"{end} {start}"


def newest_section(changelog: str) -> str:
    """What is above the second version, with line numbers kept."""
    parts = re.split(r"^(?=## )", changelog, flags=re.MULTILINE)
    return "".join(parts[:2])


def read(repo: Path = REPO) -> Iterator[tuple[Path, str]]:
    for pattern in tomllib.loads((repo / "docs" / LIST.name).read_text())["files"]:
        for path in sorted(repo.glob(pattern)):
            yield path, path.read_text()
    yield repo / CHANGELOG, newest_section((repo / CHANGELOG).read_text())


def main() -> int:
    words = tomllib.loads(LIST.read_text())["words"]
    lines = {
        f'{path.relative_to(REPO)}:{number}: "{word}": write {instead}'
        for path, text in read()
        for number, word, instead in found(text, words)
    }
    print("\n".join(sorted(lines)), end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())

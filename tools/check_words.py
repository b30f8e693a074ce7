"""Find words that the project does not use: docs/words.toml lists them, with what to write instead.

The check reads documents, page templates, and the comments, docstrings and string literals of Python modules. Exit
status 1 if it finds one; each is printed as `FILE:LINE: "WORD": write ...`. Code is exempt: blocks, text between
backticks, targets of links, tags and expressions of templates, and string literals of a single word.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
LIST = REPO / "docs" / "words.toml"
CHANGELOG = "CHANGELOG.md"
_CODE = re.compile(r"`[^`]*`|\]\([^)]*\)|https?://\S+")
_FENCE = re.compile(r"\s*(```|~~~)")
_TEMPLATE_CODE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|<script.*?</script>|<[^>]*>", re.DOTALL)
_QUOTED = re.compile(r"\"([^\"]* [^\"]*)\"|'([^']* [^']*)'")

Prose = Iterator[tuple[int, str]]
Found = Iterator[tuple[int, str, str]]


def found(lines: Prose, words: Mapping[str, str]) -> Found:
    """Line, word as written, and what to write instead, of each listed word in the lines of a text."""
    patterns = [(re.compile(rf"\b(?:{one})\b", re.IGNORECASE), instead) for one, instead in words.items()]
    any_of_them = re.compile("|".join(rf"\b(?:{one})\b" for one in words), re.IGNORECASE)
    for number, line in lines:
        if any_of_them.search(line):
            for pattern, instead in patterns:
                for match in pattern.finditer(line):
                    yield number, match[0], instead


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a Markdown text, numbered from 1, without code. A phrase may span two lines."""
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
    """The last two words of a line with the first three of the next, unless one of them is empty."""
    if end and start and not start.startswith(("|", "-", "#", ">")):
        yield number, f"{end} {start}"


def template(text: str) -> Prose:
    """The lines of a Jinja template without tags and expressions, but with the texts quoted in those."""

    def texts(code: re.Match[str]) -> str:
        lines = code[0].split("\n")
        return "\n".join(" . ".join(one[1] or one[2] for one in _QUOTED.finditer(line)) for line in lines)

    return prose(_TEMPLATE_CODE.sub(texts, text))


def python(text: str) -> Prose:
    """The comments, docstrings and string literals of a module. A literal has the number of its first line."""
    docstrings = set()
    for node in ast.walk(ast.parse(text)):  # ast.walk yields a statement before its expression
        match node:
            case ast.Expr(value=ast.Constant(value=str(docstring)) as constant):
                docstrings.add(constant)
                yield from ((node.lineno + number - 1, line) for number, line in prose(inspect.cleandoc(docstring)))
            case ast.Constant(value=str(literal)) if " " in literal and node not in docstrings:
                yield node.lineno, _CODE.sub("``", " ".join(literal.split()))
    comments = [""] * (text.count("\n") + 2)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0] - 1] = token.string.lstrip("# ")
    yield from prose("\n".join(comments))


READERS: dict[str, Callable[[str], Prose]] = {"documents": prose, "templates": template, "python": python}


def newest_section(changelog: str) -> str:
    """The text above the second version, so that line numbers are kept."""
    parts = re.split(r"^(?=## )", changelog, flags=re.MULTILINE)
    return "".join(parts[:2])


def read(repo: Path = REPO) -> Iterator[tuple[Path, Prose]]:
    """Every file that the list names, and the newest section of the changelog, with their lines."""
    listed = tomllib.loads((repo / "docs" / LIST.name).read_text())
    for kind, reader in READERS.items():
        for pattern in listed["files"][kind]:
            for path in sorted(repo.glob(pattern)):
                yield path, reader(path.read_text())
    yield repo / CHANGELOG, prose(newest_section((repo / CHANGELOG).read_text()))


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

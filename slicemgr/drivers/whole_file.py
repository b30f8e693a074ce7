"""A small file that is there whole or not at all, also after a crash in the middle."""

from __future__ import annotations

from pathlib import Path


def write(path: Path, text: str) -> None:
    """Write `text` to `path`, in place of what is there."""
    unfinished = path.with_suffix(".new")
    unfinished.write_text(text)
    unfinished.rename(path)

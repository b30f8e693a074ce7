"""Vendored files are unmodified and have their licences, and pages load nothing from other hosts."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import pytest

from slicemgr.config import PACKAGE

VENDOR = PACKAGE / "web" / "static" / "vendor"
TEMPLATES = PACKAGE / "web" / "templates"
TABLES = [VENDOR, Path(__file__).parent.parent / "browser" / "vendor"]


@pytest.mark.parametrize("folder", TABLES, ids=["pages", "tests"])
def test_each_file_is_the_one_in_the_table(folder: Path) -> None:
    table = tomllib.loads((folder / "VENDORED.toml").read_text())["file"]
    for row in table:
        assert set(row) == {"file", "package", "version", "licence", "sha256"}
        assert hashlib.sha256((folder / row["file"]).read_bytes()).hexdigest() == row["sha256"], row["file"]
        name, _, text = row["licence"].partition(": ")
        assert name and (folder / text).read_text(), "its licence is there"
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    licences = {row["licence"].partition(": ")[2] for row in table}
    assert files == {row["file"] for row in table} | licences | {"VENDORED.toml"}


def test_pages_load_nothing_from_elsewhere() -> None:
    """No address of another host, no script or style in the page: the policy would stop them."""
    pages = [
        path for path in TEMPLATES.rglob("*.html") if path.name != "reference.html"
    ]  # its policy has its style's hash
    for path in [*pages, *(PACKAGE / "web" / "static").glob("*.css")]:
        text = path.read_text()
        assert not re.search(r"""(src|href|action|url)\s*[=(]\s*["']?(https?:)?//""", text), path
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|hx-on|hx-vars|javascript:|<script(?![^>]* src=)", text), path

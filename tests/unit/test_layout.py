"""The folders at the top that are parts of the package by links in it."""

from __future__ import annotations

from pathlib import Path

import grimp
import prodhost
import pytest
from affected import LINKED
from demo import REPO

COMPILED = {Path("slicemgr/images/init") / name for name in ("init", "sshd-listener")}


@pytest.mark.parametrize("name", LINKED)
def test_the_package_has_a_relative_link_to_the_folder(name: str) -> None:
    """An absolute link would lead out of a copy of the tree, and out of a container that has it mounted."""
    assert (REPO / name).is_dir() and not (REPO / name).is_symlink()
    assert (REPO / "slicemgr" / name).readlink() == Path("..") / name


def test_a_copy_for_a_production_host_has_the_folders_once(tmp_path: Path) -> None:
    prodhost.copy_sources(tmp_path)
    for name in LINKED:
        assert (tmp_path / "slicemgr" / name).is_symlink()
        copied = {
            path.relative_to(tmp_path) for path in (tmp_path / "slicemgr" / name / ".").rglob("*") if path.is_file()
        }
        there = {path.relative_to(REPO) for path in (REPO / "slicemgr" / name / ".").rglob("*") if path.is_file()}
        assert copied == {path for path in there if path.suffix != ".pyc"} - COMPILED != set()


def test_import_contracts_hold_behind_the_links() -> None:
    """A graph without these modules would keep every contract about them."""
    known = grimp.build_graph("slicemgr", cache_dir=None).modules
    files = [path for name in LINKED for path in (REPO / name).rglob("*.py")]
    names = {".".join(("slicemgr", *path.relative_to(REPO).with_suffix("").parts)) for path in files}
    assert {name.removesuffix(".__init__") for name in names} - known == set()
    assert {"slicemgr.web.worker", "slicemgr.migrations.env"} <= known

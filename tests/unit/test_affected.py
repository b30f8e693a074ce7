"""tools/affected.py: the tests selected after a change, for a small tree and for this one."""

from __future__ import annotations

from pathlib import Path

import affected
import pytest
from demo import REPO

TREE = {
    "slicemgr/__init__.py": "",
    "slicemgr/main.py": "from slicemgr.agent import scheduler\n",
    "slicemgr/cli/__init__.py": 'PLACE = "slicemgr.cli."\n',
    "slicemgr/cli/listed.py": "import slicemgr.names\n",
    "slicemgr/agent/__init__.py": "",
    "slicemgr/agent/scheduler.py": "def work():\n    from slicemgr import names\n",
    "slicemgr/names.py": "",
    "slicemgr/alone.py": "",
    "web/__init__.py": "",
    "web/page.py": "",
    "slicemgr/store/__init__.py": "",
    "slicemgr/store/schema.py": "",
    "migrations/versions/0001_tables.py": "",
    "tools/box.py": "",
    "tests/testbed.py": 'import box\nPROGRAM = BIN / "slicemgr"\n',
    "tests/conftest.py": "import testbed\n",
    "tests/system/test_node.py": "from testbed import Node\n",
    "tests/unit/test_loop.py": "from slicemgr.agent.scheduler import work\n",
    "tests/unit/test_alone.py": "import slicemgr.alone\nTEXT = 'README.md'\n",
    "tests/unit/test_cli.py": 'PROGRAM = BIN / "slicectl"\n',
    "tests/unit/test_pages.py": "import slicemgr.web.page\n",
    "tests/unit/test_schema.py": "from slicemgr.store import schema\n",
}
NODE, LOOP, ALONE, CLI, PAGES, SCHEMA = (
    f"tests/{one}.py"
    for one in (
        *("system/test_node", "unit/test_loop", "unit/test_alone"),
        *("unit/test_cli", "unit/test_pages", "unit/test_schema"),
    )
)
EVERY = {NODE, LOOP, ALONE, CLI, PAGES, SCHEMA}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for path, text in {**TREE, "README.md": "", "web/page.html": "", "odd": ""}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "run"),
    [
        ("tests/unit/test_loop.py", {LOOP}),
        ("slicemgr/agent/scheduler.py", {LOOP, NODE}),  # the node starts the program, which imports it
        ("slicemgr/names.py", {LOOP, NODE, CLI}),  # imported within a function; by a command that is named by a string
        ("slicemgr/alone.py", {ALONE}),
        ("slicemgr/__init__.py", EVERY),
        ("tools/box.py", {NODE}),  # not by way of the conftest that all have
        ("tests/conftest.py", EVERY),
        ("README.md", {ALONE}),
        ("web/page.py", {PAGES}),  # imported by its name in the package
        ("web/page.html", {PAGES}),
        ("migrations/versions/0001_tables.py", {SCHEMA}),  # Alembic imports it
        ("CHANGELOG.md", set()),
        ("odd", EVERY),
        ("slicemgr/gone.py", EVERY),
        ("pyproject.toml", EVERY),
    ],
)
def test_what_a_change_can_touch(tree: Path, changed: str, run: set[str]) -> None:
    assert affected.tests_of([changed], affected.graph(tree), tree) == run


@pytest.mark.long
def test_a_narrow_change_leaves_out_boxes_but_not_units() -> None:
    uses = affected.graph()
    static = affected.tests_of(["web/static/app.css"], uses)
    every = affected.tests_of(["web/__init__.py"], uses)
    assert {one for one in static if one.startswith(affected.BOXED)} == {
        one for one in every if one.startswith("tests/browser/")
    }
    assert {one for one in every - static if not one.startswith(affected.BOXED)} == set()


def test_what_is_declared_is_there() -> None:
    """A folder or file that was moved would be forgotten without this."""
    declared = {*affected.READERS, *affected.READERS.values(), *affected.PROGRAMS.values(), *affected.BOXED}
    declared |= {*affected.NARROW, *affected.EVERYTHING, *affected.SILENT}
    declared |= {one for only in affected.NARROW.values() for one in only}
    assert [one for one in sorted(declared) if not (REPO / one).exists()] == []

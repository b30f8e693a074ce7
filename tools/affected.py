#!/usr/bin/env python3
"""Run the tests that a change can affect: `tools/affected.py [BASE]`; the default of BASE is HEAD.

A test file is run if it imports a changed file, directly or indirectly, if it starts a program that does, or if it
names a changed file that is not Python. A file without such a use runs all tests. Tests marked `long` are omitted, as
in `make test`.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import suite
from demo import REPO

ROOTS = ("", "tests", "tools")  # folders in which imports are resolved
LINKED = ("web", "migrations", "images")  # top-level folders that belong to the package through symbolic links
SOURCES = ("slicemgr", *LINKED, "tests", "tools")
PROGRAMS = {"slicemgr": "slicemgr/main.py", "slicectl": "slicemgr/cli/__init__.py"}  # the module of each program
# Folders that are read and not imported, with their reader: a change in the folder counts as a change of the reader.
READERS = {
    "docs": "tools/reference.py",
    "docs/tutorials": "tests/tutorial.py",
    "images": "slicemgr/builder/recipe.py",
    "slicemgr/loads": "slicemgr/bench/experiments/io.py",
    "migrations": "slicemgr/store/schema.py",
    "web": "web/__init__.py",
    "tools/debian": "tools/deb.py",
    "tools/launcher": "slicemgr/drivers/libvirt/launch.py",
    "tests/golden": "tests/conftest.py",
}
LOCK = ("requirements/build.txt", "requirements/dev.txt", "requirements/node.txt")
EVERYTHING = {"pyproject.toml", "setup.py", *LOCK, "tools/packages.txt", "tools/setup"}  # all tests depend on them
SILENT = {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", ".gitignore"}  # no test reads them
# A change below these folders affects only these tests in a box: others do not reach the code.
BOXED = ("tests/system/", "tests/browser/", "tests/contract/", "tests/production/")
NARROW = {
    "slicemgr/bench": (
        *("tests/system/test_bench_types.py", "tests/system/test_disk_and_sysbench.py", "tests/system/test_peers.py"),
        *("tests/system/test_scale.py", "tests/system/test_throughput.py", "tests/system/test_measure.py"),
        *(
            "tests/system/test_experiment.py",
            "tests/browser/test_experiments.py",
            "tests/contract/test_peer_namespaces.py",
        ),
    ),
    "web/static": ("tests/browser/",),
    "web/templates": ("tests/browser/", "tests/system/test_proxy.py"),
}

Graph = Mapping[str, set[str]]  # file → files that it uses


def graph(root: Path = REPO) -> Graph:
    """The uses between Python sources, as paths below `root`."""
    files = sorted(file for folder in SOURCES for file in (root / folder).rglob("*.py"))
    modules = {}
    for file in files:
        path = file.relative_to(root)
        imported = "slicemgr" / path if path.parts[0] in LINKED else path
        for start in ROOTS:
            if imported.is_relative_to(start):
                words = imported.relative_to(start).with_suffix("").parts
                modules[".".join(words[:-1] if words[-1] == "__init__" else words)] = path.as_posix()
    found = {file.relative_to(root).as_posix(): set(_used(file, modules)) for file in files}
    for one, used in found.items():
        if one.startswith("tests/"):
            used |= {f"{folder}/conftest.py" for folder in Path(one).parents} & found.keys()
        used.discard(one)
    # A conftest has no uses: a test with one of its fixtures imports the fixture's type itself.
    found |= {path: set() for path in found if Path(path).name == "conftest.py"}
    return found


def _used(file: Path, modules: Mapping[str, str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            yield from _named(node, modules)
            continue
        for name in names:
            words = name.split(".")
            for end in range(1, len(words) + 1):  # an import also runs the parent packages
                if (module := ".".join(words[:end])) in modules:
                    yield modules[module]


def _named(node: ast.AST, modules: Mapping[str, str]) -> Iterator[str]:
    """Files that a string names: a program in `BIN / "slicectl"`, a module by its name, or modules by a prefix."""
    match node:
        case ast.BinOp(op=ast.Div(), right=ast.Constant(value=str(program))):
            yield from filter(None, [PROGRAMS.get(program.removeprefix("bin/"))])
        case ast.Constant(value=str(text)) if text.startswith("slicemgr."):
            yield from (path for name, path in modules.items() if name == text)
            yield from (path for name, path in modules.items() if text[-1] == "." and name.startswith(text))


def users(of: str, uses: Graph) -> set[str]:
    """The file and all files that use it, directly or indirectly."""
    found: set[str] = set()
    waiting = [of]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += [user for user, used in uses.items() if one in used]
    return found


def tests_of(changed: Iterable[str], uses: Graph, root: Path = REPO) -> set[str]:
    """The test files that the changes can affect; all of them if the uses of a file are unknown."""
    tests = {path for path in uses if path.startswith("tests/") and Path(path).name.startswith("test_")}
    found = set()
    for path in changed:
        starts = [path, *_owners(path)] if path in uses else _readers(path, uses, root)
        if starts is None:
            return tests
        seen = {user for start in starts for user in users(start, uses)} & tests
        for folder, only in NARROW.items():
            if path.startswith(f"{folder}/"):
                seen = {one for one in seen if not one.startswith(BOXED) or one.startswith(only)}
        found |= seen
    return found


def _readers(path: str, uses: Graph, root: Path) -> list[str] | None:
    """The readers of a file that no module imports; None if they are unknown."""
    if path in SILENT:
        return []
    if path in EVERYTHING or (path.endswith(".py") and not (root / path).exists()):
        return None  # the uses of a deleted source are unknown
    name = Path(path).name
    named = [one for one in uses if one.startswith(("tests/", "tools/")) and name in (root / one).read_text()]
    return _owners(path) + named or None


def _owners(path: str) -> list[str]:
    """The readers of the folder of a file, such as those of migrations; none for a test."""
    if path.endswith(".py") and path.startswith("tests/"):
        return []
    return [reader for folder, reader in READERS.items() if path.startswith(f"{folder}/")]


def changed(base: str) -> set[str]:
    """The files that differ from a commit, including untracked files."""
    known = _git("diff", "--name-only", "--no-renames", base)
    return {*known, *_git("ls-files", "--others", "--exclude-standard")}


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=REPO, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests that a change can touch.")
    parser.add_argument("base", nargs="?", default="HEAD", help="a commit (HEAD)")
    parser.add_argument("--list", action="store_true", help="print the test files and run nothing")
    options = parser.parse_args()
    uses = graph()
    files = sorted(one for one in tests_of(changed(options.base), uses) if not one.startswith("tests/production/"))
    if options.list or not files:
        print("\n".join(files) if files else "affected: no test depends on the change")
        return 0
    print(f"affected: {len(files)} test files", flush=True)
    return suite.run_parts(["-m", suite.NOT_LONG], files)


if __name__ == "__main__":
    sys.exit(main())

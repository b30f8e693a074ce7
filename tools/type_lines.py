"""Count the lines of code for one type of sliver only, without blank lines, comments and docstrings.

It counts whole files, classes and functions, and branches on the type in other code. A listed name that no longer
exists is an error. Run: .venv/bin/python tools/type_lines.py
"""

from __future__ import annotations

import ast
import io
import os
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
PACKAGE = REPO / "slicemgr"
LXC, KVM = "lxc", "kvm"
FILES = {
    "drivers/libvirt/container_xml.py": LXC,
    "drivers/libvirt/capabilities.py": LXC,
    "drivers/libvirt/launch.py": LXC,
    "drivers/guest/identity.py": LXC,
    "drivers/guest/rootfs.py": LXC,
    "drivers/libvirt/machine_xml.py": KVM,
    "drivers/storage/machine_disk.py": KVM,
    "drivers/guest/seed.py": KVM,
    "drivers/libvirt/acceleration.py": KVM,
    "drivers/libvirt/console_log.py": KVM,
    "drivers/importer/boot_loader.py": KVM,
    "agent/acceleration.py": KVM,
}
PARTS = {
    "agent/roots.py": {"_Container": LXC, "_Machine": KVM, "_disk_size": KVM},
    "agent/measurements/raw_slivers.py": {"_Containers": LXC, "_Machines": KVM},
    "agent/apply.py": {"_wait_for_console": KVM, "_paused_by_error": KVM},
    "drivers/libvirt/processes.py": {
        "_Container": LXC,
        "child": LXC,
        "noted_pid": LXC,
        "controls": LXC,
        "_Machine": KVM,
    },
    "drivers/kernel/cgroup.py": {"pids_group_v1": LXC, "collect_empty": LXC, "freeze_v2": LXC, "is_frozen_v2": LXC},
    "drivers/libvirt/hypervisor.py": {"begin_kill": LXC, "grow_disk": KVM},
    "model.py": {"Boot": KVM, "BootFacts": KVM},
    "names.py": {"root_dir": LXC, "launch_file": LXC, "disk_file": KVM, "seed_file": KVM},
}
# Not Python, and not in the total.
BESIDE = {"tools/launcher/**/*.c": LXC, "tools/init/*.c": LXC, "tools/listener/*.c": LXC}
_SILENT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_lines(text: str) -> set[int]:
    """The numbers of the lines that contain code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(_span(node))
    return lines


def parts(tree: ast.Module, wanted: dict[str, str]) -> dict[str, set[int]]:
    """The lines of the named classes and functions, by type. Raises KeyError for a name that does not exist."""
    found = {
        node.name: _span(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in wanted
    }
    lines: dict[str, set[int]] = {LXC: set(), KVM: set()}
    for name, sliver_type in wanted.items():
        lines[sliver_type] |= found[name]
    return lines


def branches(tree: ast.Module) -> dict[str, set[int]]:
    """The lines by type that are executed for that type only, including the condition."""
    lines: dict[str, set[int]] = {LXC: set(), KVM: set()}
    for node in ast.walk(tree):
        for sliver_type, span in _branch(node):
            lines[sliver_type] |= span
    return lines


def _branch(node: ast.AST) -> Iterator[tuple[str, set[int]]]:
    match node:
        case ast.match_case(pattern=ast.MatchValue(value=value)) if sliver_type := _type(value):
            yield sliver_type, {value.lineno, *(line for one in node.body for line in _span(one))}
        case ast.If(test=test) if sliver_type := _asked(test):
            yield sliver_type, set(range(node.lineno, (node.body[-1].end_lineno or node.lineno) + 1))
        case ast.IfExp(test=test) if sliver_type := _asked(test):
            yield sliver_type, _span(node)
        case ast.Attribute() if sliver_type := _type(node):
            yield sliver_type, {node.lineno}
        case ast.Dict():
            for key, value in zip(node.keys, node.values, strict=True):
                if key is not None and (sliver_type := _type(key)):
                    yield sliver_type, {*_span(key), *_span(value)}


def _asked(test: ast.expr) -> str:
    """The type that a condition tests for."""
    return next(filter(None, (_type(one) for one in ast.walk(test) if isinstance(one, ast.expr))), "")


def _type(node: ast.expr) -> str:
    match node:
        case ast.Attribute(value=ast.Name(id="SliverType"), attr="LXC" | "KVM" as name):
            return name.lower()
        case ast.Constant(value="lxc" | "kvm" as name):
            return name
    return ""


def _span(node: ast.stmt | ast.expr) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def count() -> tuple[dict[str, dict[str, int]], int]:
    """The lines by place and type, and the lines of the whole package."""
    table = {where: {LXC: 0, KVM: 0} for where in ("whole files", "classes and functions", "branches elsewhere")}
    total = 0
    for path in sorted(_sources()):
        name, text = path.relative_to(PACKAGE).as_posix(), path.read_text()
        code, tree = code_lines(text), ast.parse(text)
        total += len(code)
        if name in FILES:
            table["whole files"][FILES[name]] += len(code)
            continue
        own, asked = parts(tree, PARTS.get(name, {})), branches(tree)
        counted = own[LXC] | own[KVM]
        for sliver_type in (LXC, KVM):
            table["classes and functions"][sliver_type] += len(own[sliver_type] & code)
            table["branches elsewhere"][sliver_type] += len((asked[sliver_type] & code) - counted)
    missing = [name for name in (*FILES, *PARTS) if not (PACKAGE / name).exists()]
    if missing:
        sys.exit(f"type_lines: no such file: {', '.join(missing)}")
    return table, total


def _sources() -> Iterator[Path]:
    """The Python files of the package, including those behind its links to top-level folders."""
    for folder, _, names in os.walk(PACKAGE, followlinks=True):
        yield from (Path(folder) / name for name in names if name.endswith(".py"))


def main() -> None:
    table, total = count()
    print(f"{'lines of code':24}{LXC:>8}{KVM:>8}{'share':>8}")
    for where, types in table.items():
        print(f"{where:24}{types[LXC]:8}{types[KVM]:8}{sum(types.values()) / total:8.1%}")
    sums = {sliver_type: sum(one[sliver_type] for one in table.values()) for sliver_type in (LXC, KVM)}
    print(f"{'one type alone':24}{sums[LXC]:8}{sums[KVM]:8}{sum(sums.values()) / total:8.1%}")
    print(f"{'both types':24}{total - sum(sums.values()):16}{1 - sum(sums.values()) / total:8.1%}")
    for pattern, sliver_type in BESIDE.items():
        lines = sum(len(path.read_text().splitlines()) for path in REPO.glob(pattern))
        print(f"beside: {pattern}, {sliver_type}: {lines} lines as they are")


if __name__ == "__main__":
    main()

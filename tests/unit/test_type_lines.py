"""tools/type_lines.py: which lines it takes for one type's own."""

from __future__ import annotations

import ast

import pytest
import type_lines

TEXT = '''
"""What this is."""

def one():
    """Nothing."""
    # a comment
    text = """two
    lines"""
    if type is SliverType.KVM:
        boot()
    else:
        other()
    match type:
        case SliverType.LXC:
            run()
    table = {SliverType.KVM: 1, "name": 2}
    return 1 if given == "lxc" else 2
'''


def _lines(*texts: str) -> set[int]:
    return {number for number, line in enumerate(TEXT.splitlines(), 1) for text in texts if text in line}


def test_code_is_neither_blank_nor_comment_nor_docstring() -> None:
    blank = {number for number, line in enumerate(TEXT.splitlines(), 1) if not line.strip()}
    every = set(range(1, len(TEXT.splitlines()) + 1))
    assert type_lines.code_lines(TEXT) == every - blank - _lines("What this", "Nothing", "# a comment")


def test_a_branch_is_the_question_and_what_is_done_for_the_type_alone() -> None:
    found = type_lines.branches(ast.parse(TEXT))
    assert found == {"lxc": _lines("SliverType.LXC", "run()", '"lxc"'), "kvm": _lines("SliverType.KVM", "boot()")}


def test_a_part_that_is_gone_is_an_error() -> None:
    assert type_lines.parts(ast.parse(TEXT), {"one": "lxc"})["lxc"] == set(range(4, 18))
    with pytest.raises(KeyError, match="two"):
        type_lines.parts(ast.parse(TEXT), {"two": "lxc"})


def test_of_the_package_every_name_is_there_and_most_serves_both() -> None:
    table, total = type_lines.count()
    own = sum(sum(one.values()) for one in table.values())
    assert all(number > 0 for one in table.values() for number in one.values())
    assert own < total / 4

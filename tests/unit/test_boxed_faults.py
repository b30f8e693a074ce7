"""The comparison of nodes with rows that `tools/bench_faults.py` relies on."""

from __future__ import annotations

from boxed_faults import Host, differences


def test_the_comparison_with_the_rows_shows_what_differs() -> None:
    """The control of the tool that kills programs at random."""
    right = frozenset({"aaaaaaaa-0"})
    assert not differences({"n1": right}, {"n1": Host(right, right, right)})
    more = right | {"bbbbbbbb-0"}
    for one in (Host(more, right, right), Host(right, more, right), Host(right, right, more)):
        assert len(differences({"n1": right}, {"n1": one})) == 1
    assert len(differences({"n1": more}, {"n1": Host(right, right, right)})) == 3
    assert len(differences({}, {"n1": Host(right, right, right)})) == 3

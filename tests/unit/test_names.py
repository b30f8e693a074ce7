"""Names: made from an ID, parsed back to it; foreign names are not parsed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicemgr import names

IDS = st.builds(names.sliver_id, st.text(names.ALPHABET, min_size=8, max_size=8), st.integers(0, names.MAX_INDEX))


@given(IDS)
def test_host_names_lead_back_to_the_sliver(sliver: str) -> None:
    assert names.sliver_of_domain(names.domain(sliver)) == sliver
    assert names.sliver_of_link(names.link(sliver)) == sliver
    assert len(names.link(sliver)) <= 15
    assert names.link(sliver).startswith(names.link_prefix(sliver.partition("-")[0]))
    assert names.sliver_of_shaper(names.shaper(sliver)) == sliver
    assert len(names.shaper(sliver)) <= 15
    assert names.sliver_of_link(names.shaper(sliver)) is None
    assert names.sliver_of_shaper(names.link(sliver)) is None
    first = int(names.mac(sliver)[:2], 16)
    assert first & 2 and not first & 1


@pytest.mark.parametrize("name", ["", "sm-", "sm", "abcdefgh-0", "sm-abcdefgh-00", "sm-abcdefgh-1000", "sm-abcdefg1-0"])
def test_a_stranger_is_not_ours(name: str) -> None:
    assert names.sliver_of_domain(name) is None


@pytest.mark.parametrize(
    "name", ["eth0", "sm0", "smabcdefgh", "smabcdefgh-0-1", "smabcdefgh-0\n", "../x", "smi", "ifb0"]
)
def test_a_strange_link_is_not_ours(name: str) -> None:
    assert names.sliver_of_link(name) is None
    assert names.sliver_of_shaper(name) is None


def test_tags_are_of_the_alphabet_and_differ() -> None:
    tags = {names.new_tag() for _ in range(200)}
    assert len(tags) == 200
    assert all(names.is_sliver_id(f"{tag}-0") for tag in tags)


def test_quota_groups_are_of_level_one_and_differ() -> None:
    assert names.qgroup(5) >> 48 == 1
    assert names.qgroup(5) != names.qgroup(6)

"""How soon the service finds a change that requests wait for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slicemgr.web import news


@given(st.floats(0.0, 1e6))
def test_the_pause_is_a_share_of_the_time_without_a_change(quiet: float) -> None:
    found = news.pause(quiet)
    assert news._SHORTEST <= found <= news._LONGEST
    assert found <= max(news._SHORTEST, news._SHARE * quiet)


def test_queries_become_rare() -> None:
    assert news.pause(0.0) == news._SHORTEST
    assert news.pause(1.0) > news.pause(0.5) > news.pause(0.2)
    assert news.pause(60.0) == news._LONGEST

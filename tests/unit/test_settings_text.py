"""Settings are changed in the text of their file: the values change, and nothing else does."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicemgr.conversion.settings_text import changed
from slicemgr.errors import Refused

URL = "postgresql://slicemgr:p%23w@127.0.0.1/slicemgr"
CENTRE = {"store": {"url": URL}, "hub": {"broker": "testbed.example:5671"}}
SHIPPED = (Path(__file__).parents[2] / "tools/units/slicemgr.toml").read_text()


def test_the_shipped_settings_keep_their_comments() -> None:
    text = changed(SHIPPED, CENTRE)
    assert text.startswith(SHIPPED), "what was there is not changed"
    assert tomllib.loads(text) == {**tomllib.loads(SHIPPED), **CENTRE}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '[store]\nurl = "new"\n'),
        ("[store]\n", '[store]\nurl = "new"\n'),
        (
            '[store]\nurl = "sqlite:///x" # was\nlock_timeout = "9s"\n',
            '[store]\nurl = "new" # was\nlock_timeout = "9s"\n',
        ),
        ('[store]\nurl = "a#b"\n', '[store]\nurl = "new"\n'),
        ('[store] # rows\n\n[web]\nurl = "https://x"\n', '[store] # rows\nurl = "new"\n\n[web]\nurl = "https://x"\n'),
        ('a = "\u2028"\n', 'a = "\u2028"\n\n[store]\nurl = "new"\n'),
        ("[web]\nport = 1", '[web]\nport = 1\n\n[store]\nurl = "new"\n'),
    ],
)
def test_a_value_is_set_where_it_belongs(before: str, after: str) -> None:
    assert changed(before, {"store": {"url": "new"}}) == after


@pytest.mark.parametrize(
    "text",
    [
        'store = { lock_timeout = "9s" }\n',
        'store.url = "sqlite:///x"\n',
        '[store]\n"url" = "sqlite:///x"\n',
        '[web]\nurl = """\n[store]\n"""\n',
    ],
)
def test_a_file_of_another_form_is_refused_without_the_password(text: str) -> None:
    with pytest.raises(Refused) as caught:
        changed(text, CENTRE)
    assert "hub.broker" in caught.value.hint and URL not in str(caught.value)


VALUES = st.one_of(st.text(st.characters(codec="utf-8"), max_size=8), st.integers(0, 9), st.booleans())


@given(
    st.dictionaries(
        st.sampled_from(["store", "hub", "web", "node"]),
        st.dictionaries(st.sampled_from(["url", "broker", "port"]), VALUES),
        max_size=4,
    ),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=12),
)
def test_other_settings_stay(settings: dict[str, dict[str, object]], url: str) -> None:
    """Whatever the values are, and a second change changes nothing."""
    lines = []
    for section, values in settings.items():
        lines += [f"[{section}]"] + [f"{name} = {_toml(value)}" for name, value in values.items()]
    changes = {"store": {"url": url}}
    text = changed("\n".join(lines), changes)
    assert tomllib.loads(text) == {**settings, "store": {**settings.get("store", {}), "url": url}}
    assert changed(text, changes) == text


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    return '"' + "".join(f"\\U{ord(one):08x}" for one in str(value)) + '"'

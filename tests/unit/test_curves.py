"""The curves of a page: their vendored script, and that template, script and REST use the same columns."""

from __future__ import annotations

import hashlib
import re
import tomllib

import pytest
from flask import Flask, render_template_string

from slicemgr.config import PACKAGE
from slicemgr.service.views import samples

STATIC = PACKAGE / "web" / "static"
VENDOR = STATIC / "vendor"
TEMPLATES = PACKAGE / "web" / "templates"
ONE_LINE = '{% with curves = {"url": url, "title": "<exp>", "node": node} %}{% include "_curves.html" %}{% endwith %}'


def table() -> list[dict[str, str]]:
    rows: list[dict[str, str]] = tomllib.loads((VENDOR / "VENDORED.toml").read_text())["file"]
    return rows


@pytest.mark.parametrize("row", table(), ids=lambda row: row["file"])
def test_what_is_carried_along_is_as_it_came(row: dict[str, str]) -> None:
    assert set(row) == {"file", "package", "version", "licence", "sha256"}
    assert hashlib.sha256((VENDOR / row["file"]).read_bytes()).hexdigest() == row["sha256"]
    name, _, text = row["licence"].partition(": ")
    assert name and (VENDOR / text).read_text()


def rendered(url: str, *, node: bool = False) -> str:
    app = Flask("test", template_folder=str(TEMPLATES))
    app.jinja_env.globals["asset"] = lambda name: f"/static/{name}"
    with app.app_context():
        return render_template_string(ONE_LINE, url=url, node=node)


def test_the_part_obeys_a_strict_policy_and_loads_what_there_is() -> None:
    text = rendered("/slices/lab/exp/samples")
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:|<script(?![^>]* src=)", text)
    for name in re.findall(r'(?:src|href)="/static/([^"]+)"', text):
        assert (STATIC / name).is_file()
    script = (STATIC / "curves.js").read_text()
    assert not re.search(r"innerHTML|insertAdjacentHTML|\beval\b|new Function|\.style\b", script)


def test_what_the_page_says_is_escaped() -> None:
    text = rendered('/samples?of="<b>')
    assert "<exp>" not in text and "<b>" not in text and "&lt;exp&gt;" in text
    assert "/samples?of=&#34;&lt;b&gt;&amp;since=24h&amp;format=csv" in text, "a query that is there is gone on with"
    assert "/samples?since=24h&amp;format=csv" in rendered("/samples")


def test_the_script_knows_the_attributes_and_the_columns() -> None:
    script, text = (STATIC / "curves.js").read_text(), rendered("/x", node=True)
    for attribute in set(re.findall(r"\[(data-curves?-?[a-z]*)\]", script)):
        assert attribute in text or attribute == "data-curves-begun", attribute
    names = re.findall(r'data-curve="([a-z]+)"', text)
    assert names == re.findall(r"^    ([a-z]+): \{ slivers", script, re.M)
    slivers = {word for one in re.findall(r"slivers: \[([^]]*)\]", script) for word in re.findall(r"\w+", one)}
    nodes = {word for one in re.findall(r"node: \[([^]]*)\]", script) for word in re.findall(r"\w+", one)}
    bounds = set(re.findall(r'bound: "(\w+)"', script))
    assert slivers and slivers <= set(samples.OF_SLIVERS)
    assert nodes | bounds <= set(samples.OF_NODES)


def test_each_curve_has_words_for_who_does_not_see_it() -> None:
    text = rendered("/x")
    assert text.count('role="img"') == text.count("<figcaption>") == 6
    assert "<caption" in text and 'role="status"' in text and "<noscript>" in text


def test_without_javascript_nothing_is_offered_that_needs_it() -> None:
    """The script shows the period, the hint and the table; the link to the data needs none."""
    text = rendered("/x")
    for part in ("<label", '<p class="hint"', "<details"):
        assert "data-curves-script hidden>" in text[text.index(part) :].split("\n")[0]
    assert 'href="/x?since=24h&amp;format=csv"' in text.partition("<noscript>")[2]
    assert "[data-curves-script]" in (STATIC / "curves.js").read_text()

"""The documents: complete, built without a warning, loading nothing from elsewhere, linked from the pages."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import check_words
import click
import pytest
import reference
from browsers import Browser
from tenants import Tenants

from slicemgr.cli.root import COMMANDS, root
from slicemgr.config import PACKAGE, Config

REPO = Path(__file__).parents[2]
NARROW = ("mkdocs.yml", "docs", "tools")  # inputs of a build, besides the program


def build(repo: Path, site: Path) -> subprocess.CompletedProcess[str]:
    words = [str(Path(sys.executable).parent / "mkdocs"), "build", "--strict", "--site-dir", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(words, capture_output=True, text=True, cwd=repo, env=environment, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documents as `make docs` builds them."""
    folder = tmp_path_factory.mktemp("documents") / "site"
    done = build(REPO, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Page(HTMLParser):
    """The IDs of a page, and the targets that its elements load or link to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.inline: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if "id" in found:
            self.ids.add(found["id"])
        self.inline += [name for name in found if name == "style" or name.startswith("on")]
        if tag in ("script", "img", "iframe", "source", "embed", "object"):
            self.loads += [found[name] for name in ("src", "data") if name in found]
        elif tag == "link" and found.get("rel") not in ("next", "prev"):
            self.loads.append(found.get("href", ""))
        elif tag == "a":
            self.links.append(found.get("href", ""))


def texts(site: Path, name: str) -> str:
    return (site / "reference" / name / "index.html").read_text()


# the generated reference


def all_commands(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    """All commands by click, without the generator."""
    for word in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), word)
        assert command is not None
        yield f"{name} {word}", command
        if isinstance(command, click.Group):
            yield from all_commands(command, f"{name} {word}")


def test_every_command_and_option_is_there(site: Path) -> None:
    ids = Page(texts(site, "cli")).ids
    page = reference.cli()
    every = dict(all_commands(root, "slicectl"))
    assert len(every) > len(COMMANDS) > 30
    for name, command in every.items():
        assert command.hidden or name.replace(" ", "-") in ids
        section = page.split(f"# {name}\n", 1)[1].split("\n#", 1)[0]
        assert not isinstance(command, click.Command) or command.help, f"{name} says nothing of itself"
        for one in command.params:
            if isinstance(one, click.Option) and not one.hidden and not isinstance(command, click.Group):
                assert all(word in section for word in one.opts), f"{name} {one.opts}"
                assert one.help, f"{name} {one.opts} has no description"


def test_every_setting_has_a_description_and_a_unit(site: Path) -> None:
    page = texts(site, "settings")
    names = [
        f"{table.name}.{one.name}"
        for table in dataclasses.fields(Config)
        for one in dataclasses.fields(getattr(Config(), table.name))
    ]
    assert len(names) > 100
    assert [one.name for one in reference.settings()] == names
    assert [name for name in names if f"<code>{name}</code>" not in page] == []
    assert [one.name for one in reference.settings() if not (one.text.endswith(".") and one.unit)] == []
    by_name = {one.name: one.default for one in reference.settings()}
    assert [by_name[one] for one in ("limits.memory", "lease.default", "log.access")] == ['"512M"', '"7d"', "true"]


def test_a_setting_without_a_description_stops_the_build() -> None:
    """The control: one that is missing, one without a unit, one that does not exist."""
    described = tomllib.loads(reference.SETTINGS.read_text())
    described["node"].pop("name")
    described["web"]["port"] = "A port."
    described["log"]["colour"] = "Of the lines."
    with pytest.raises(ValueError) as error:
        reference.settings(described=described)
    assert [part in str(error.value) for part in ("node.name has no text", "web.port has no unit")] == [True, True]
    assert "log.colour does not exist" in str(error.value)


def test_every_route_and_metric_is_there(site: Path, tmp_path: Path) -> None:
    with Tenants(tmp_path) as tenants:
        spec = tenants.app.test_client().get("/api/v1/openapi.json").get_json()
        metrics = tenants.client("root").get("/metrics").text
    page = texts(site, "rest")
    routes = [f"{verb.upper()} {path}" for path, item in spec["paths"].items() for verb in item]
    assert len(routes) > 50
    assert [one for one in routes if f"<code>{one}</code>" not in page] == []
    names = set(re.findall(r"^# TYPE (\S+)", metrics, re.MULTILINE))
    assert len(names) > 40
    assert [one for one in sorted(names) if f"<code>{one}</code>" not in texts(site, "metrics")] == []


# the words


def test_listed_words_are_found_in_prose_alone() -> None:
    words = {"told": "reported", "the same once more": "repeat"}
    text = """# Told

It was told, and the same
once more. `told` and [a link](told.md) are code:

    told told

```text
told
```
told
"""
    assert [(line, word.lower()) for line, word, _ in check_words.found(check_words.prose(text), words)] == [
        (1, "told"),
        (3, "told"),
        (3, "the same once more"),
        (11, "told"),
    ]


def test_the_check_fails_where_a_document_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make check` runs it over this repository."""
    assert "## 1" not in check_words.newest_section("# Changelog\n\n## 2\n\nNew.\n\n## 1\n\nOld.\n")
    shutil.copytree(REPO / "docs", tmp_path / "docs")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 2\n\nIt is told.\n\n## 1\n\nIt was told.\n")
    monkeypatch.setattr(check_words, "REPO", tmp_path)
    monkeypatch.setattr(check_words, "read", functools.partial(check_words.read, tmp_path))
    assert check_words.main() == 1


TEMPLATE = """{# The user is told. #}
<h1 class="told">{{ told|label("told") }}</h1>
<p title="{{ "It was told twice" }}">{{ press(form, "Be told now") }}</p>
{% if told %}<p>The
agent told
everything.</p>{% endif %}
<script>told()</script>
"""
MODULE = '''"""What is told."""

# Nobody told
# the agent.
told = {"told": f"{len('told')} users were told"}  # a key


def told_by(told: str) -> str:
    """Return `told`.

    It is told again.
    """
    return ask(help="Print what was"
               " told.")
'''


def test_listed_words_are_found_in_templates_and_modules() -> None:
    """In texts, comments, docstrings and help texts; names, tags, and literals of one word are code."""

    def lines(found: Iterator[tuple[int, str]]) -> list[int]:
        return sorted({line for line, _, _ in check_words.found(found, {"told": "reported"})})

    assert lines(check_words.template(TEMPLATE)) == [1, 3, 4, 5]
    assert lines(check_words.python(MODULE)) == [1, 3, 5, 11, 13]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("web/templates/slices/new.html", "<p>It was told.</p>\n"),
        ("web/templates/base.html", "{# What is told. #}\n"),
        ("web/pages/new.py", '"""What is told."""\n'),
        ("slicemgr/cli/commands/create.py", 'OPTION = option("--why", help="What is told.")\n'),
        ("slicemgr/service/slices/slices.py", "x = 1  # as was told\n"),
    ],
)
def test_the_check_fails_where_a_template_or_a_module_has_one(
    path: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    shutil.copy(check_words.LIST, tmp_path / "docs")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n")
    monkeypatch.setattr(check_words, "REPO", tmp_path)
    monkeypatch.setattr(check_words, "read", functools.partial(check_words.read, tmp_path))
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(text.replace("told", "reported"))
    assert check_words.main() == 0
    (tmp_path / path).write_text(text)
    assert check_words.main() == 1
    assert f'{path}:1: "told"' in capsys.readouterr().out


# the built pages


@pytest.mark.long
def test_a_broken_link_or_anchor_stops_the_build(tmp_path: Path) -> None:
    """The control of `strict`, which also the fixture runs by."""
    for name in NARROW:
        source, target = REPO / name, tmp_path / name
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    wrong = tmp_path / "docs" / "how-to" / "audit.md"
    wrong.write_text(f"{wrong.read_text()}\n[Nowhere](images.md#no-such-heading)\n[None](none.md)\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "no-such-heading" in done.stderr and "none.md" in done.stderr


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for path in pages:
        page = Page(path.read_text())
        assert [one for one in page.loads if re.match(r"(https?:)?//", one)] == [], path
        assert page.inline == [], f"{path} has what its policy forbids"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text()), sheet


def test_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = (REPO / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    targets = re.findall(r"\]\(([^)#]+)", text)
    assert len(targets) > 20
    assert [one for one in targets if not (REPO / one).exists()] == []


# as the service shows them


@pytest.fixture
def tenants(tmp_path: Path, site: Path) -> Iterator[Tenants]:
    with Tenants(tmp_path) as made:
        made.app.config["MANUAL"] = site
        yield made


def test_everyone_reads_them(tenants: Tenants) -> None:
    for who in (None, "bob"):
        reader = Browser(tenants, who)
        assert reader.get("/docs").status_code == 308
        assert "slicemgr" in reader.get("/docs/").text
        assert reader.get("/docs/how-to/audit").headers["Location"].endswith("/docs/how-to/audit/")
        assert "Audit a node" in reader.get("/docs/how-to/audit/").text
        assert reader.get("/docs/images/slice.png").mimetype == "image/png"
        assert reader.get("/docs/none/").status_code == 404
        assert reader.get("/docs/search/search_index.json").status_code == 200


@pytest.mark.parametrize("path", ["../../pyproject.toml", "%2e%2e/config.py", "how-to/../../config.py", "..", "%00"])
def test_nothing_beside_them_is_read(tenants: Tenants, path: str) -> None:
    answer = Browser(tenants).get(f"/docs/{path}")
    assert answer.status_code in (404, 422)


def test_their_policy_allows_their_own_scripts_alone(tenants: Tenants, site: Path) -> None:
    reader = Browser(tenants)
    policies = set()
    for path in sorted(site.rglob("*.html")):
        answer = reader.get(f"/docs/{path.relative_to(site).parent}/".replace("/./", "/"))
        policy = answer.headers["Content-Security-Policy"]
        assert "unsafe" not in policy and "default-src 'none'" in policy
        hashes = re.findall(r"'sha256-([^']+)'", policy)
        assert len(hashes) == len(set(re.findall(r"<script>(.*?)</script>", answer.text, re.DOTALL)))
        policies.add(policy)
    assert len(policies) > 1, "a page has the hashes of its own scripts"


def test_documents_that_are_not_built_say_so(tmp_path: Path) -> None:
    with Tenants(tmp_path) as tenants:
        tenants.app.config["MANUAL"] = tmp_path / "none"
        answer = Browser(tenants).get("/docs/how-to/audit/")
        assert (answer.status_code, answer.mimetype) == (404, "text/html")
        assert "make docs" in answer.text and "Content-Security-Policy" in answer.headers


def test_each_link_of_a_page_leads_to_a_paragraph(site: Path) -> None:
    """Those of the templates, by the macro `help` or written out."""
    links = set()
    for path in (PACKAGE / "web" / "templates").rglob("*.html"):
        text = path.read_text()
        links |= set(re.findall(r'help\("([^"]+)"', text)) | set(re.findall(r'href="/docs/([^"]*)"', text))
    assert len(links) > 10
    for link in sorted(links):
        path_, _, anchor = link.partition("#")
        page = site / path_ / "index.html"
        assert page.is_file(), link
        assert not anchor or anchor in Page(page.read_text()).ids, link


def test_navigation_has_help(tenants: Tenants) -> None:
    assert 'href="/docs/"' in Browser(tenants, "bob").get("/slices").text
    assert 'href="/docs/"' in Browser(tenants).get("/sign-in").text
    assert "/docs/how-to/slices/#create-list-and-delete" in Browser(tenants, "bob").get("/new").text

"""The OpenAPI description: complete, with valid examples, and readable without external resources."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import jsonschema_rs
import pytest
from flask import Flask
from tenants import Tenants

from slicemgr.web import openapi, reference
from slicemgr.web.pages import shell

API = "/api/v1"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flask]:
    with Tenants(tmp_path_factory.mktemp("openapi")) as tenants:
        yield tenants.app


@pytest.fixture(scope="module")
def spec(app: Flask) -> dict[str, Any]:
    described: dict[str, Any] = app.test_client().get(f"{API}/openapi.json").get_json()
    return described


def as_json_schema(node: Any) -> Any:
    """OpenAPI 3.0 writes `nullable`, JSON Schema a list of types."""
    if isinstance(node, list):
        return [as_json_schema(one) for one in node]
    if not isinstance(node, dict):
        return node
    made = {name: as_json_schema(value) for name, value in node.items() if name not in ("nullable", "example")}
    if node.get("nullable"):
        made = {"anyOf": [made, {"type": "null"}]}
    return made


def complaint(spec: dict[str, Any], schema: dict[str, Any], value: Any) -> str:
    whole = {**as_json_schema(schema), "components": as_json_schema(spec["components"])}
    try:
        jsonschema_rs.validate(whole, value)
    except jsonschema_rs.ValidationError as error:
        return f"{error.message} at {error.instance_path}"
    return ""


def test_every_route_below_the_prefix_is_described(app: Flask, spec: dict[str, Any]) -> None:
    said = {(path, verb.upper()) for path, verb, _ in openapi.operations(spec)}
    there = {
        (re.sub("<([^>]*)>", r"{\1}", rule.rule), verb)
        for rule in app.url_map.iter_rules()
        if rule.rule.startswith(API) and not rule.endpoint.startswith("reference.")
        for verb in rule.methods or ()
        if verb not in ("OPTIONS", "HEAD")
    }
    assert there <= said


def test_every_route_says_what_one_needs(spec: dict[str, Any]) -> None:
    ids = []
    for path, verb, one in openapi.operations(spec):
        where = f"{verb} {path}"
        ids.append(one["operationId"])
        assert one["summary"].endswith((".", ":")) or len(one["summary"]) > 3, where
        errors = {status for status in one["responses"] if status >= "400"}
        assert "503" in errors and (not one["security"] or {"401", "403"} <= errors), where
        assert {each["name"] for each in one["parameters"] if each["in"] == "path"} == set(re.findall("{(.*?)}", path))
        for status, response in one["responses"].items():
            assert response["description"], where
            for kind, content in response.get("content", {}).items():
                assert kind == "application/problem+json" or status < "400", where
                assert "example" in content or kind == "text/event-stream", f"{where}: {status}"
        for kind, content in one.get("requestBody", {}).get("content", {}).items():
            assert "example" in content or kind == "application/octet-stream", where
    assert len(ids) == len(set(ids))


def test_the_examples_are_what_they_are_examples_of(spec: dict[str, Any]) -> None:
    seen = 0
    for path, verb, one in openapi.operations(spec):
        bodies = [*one["responses"].values(), one.get("requestBody", {})]
        for content in (each for body in bodies for each in body.get("content", {}).values() if "example" in each):
            assert not (told := complaint(spec, content["schema"], content["example"])), f"{verb} {path}: {told}"
            seen += 1
        for each in (each for each in one["parameters"] if "example" in each):
            assert not (told := complaint(spec, each["schema"], each["example"])), f"{verb} {path}: {told}"
    assert seen > 100


def test_a_wrong_example_would_be_noticed(spec: dict[str, Any]) -> None:
    """The control."""
    shape = {"$ref": "#/components/schemas/Slice"}
    right = spec["paths"][f"{API}/slices/{{name}}"]["get"]["responses"]["200"]["content"]["application/json"]["example"]
    assert not complaint(spec, shape, right)
    for wrong in ({**right, "more": 1}, {**right, "slivers": None}, {key: right[key] for key in list(right)[1:]}):
        assert complaint(spec, shape, wrong)


def test_who_is_open_and_who_takes_a_key(spec: dict[str, Any]) -> None:
    free = {one["operationId"] for _, _, one in openapi.operations(spec) if not one["security"]}
    by_nodes = {"show_authority", "join_testbed", "withdraw_join", "renew_certificate", "open_dial"}
    by_nodes |= {"fetch_image", "image_block_hashes", "fetch_base", "base_block_hashes", "send_base"}
    assert free == {"healthz", "login", "accept_invitation", "attach", *by_nodes}
    posts = {one["operationId"]: one for _, verb, one in openapi.operations(spec) if verb == "post"}
    keyed = {
        name for name, one in posts.items() if any(each["name"] == "Idempotency-Key" for each in one["parameters"])
    }
    assert set(posts) - keyed == {
        *("login", "accept_invitation", "import_image", "join_testbed", "withdraw_join", "renew_certificate"),
        *("publish_experiment", "change_password"),
    }


class Page(HTMLParser):
    """The resources and scripts of a page, its anchors and their targets."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.links: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src"):
                self.links.add(value or "")


def test_the_page_loads_only_files_of_the_service(app: Flask, spec: dict[str, Any]) -> None:
    """It has the design and the policy of the other pages, and its links lead somewhere."""
    answer = app.test_client().get(f"{API}/")
    assert answer.mimetype == "text/html"
    page = Page(answer.text)
    assert not page.tags & {"img", "iframe", "form", "object", "style"}
    assert not {name for name in page.attributes if name.startswith("on") or name == "style"}
    static = {link for link in page.links if link.startswith("/static/")}
    assert {link.rpartition("/")[2] for link in static} == {
        *("app.css", "reference.css", "icon.svg", "htmx.min.js", "app.js")
    }
    assert {link for link in page.links - static if not link.startswith("#")} == {"openapi.json", "/docs/how-to/rest/"}
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    for path, verb, one in openapi.operations(spec):
        assert one["operationId"] in page.ids and f"{verb.upper()} {path}" in answer.text
    assert answer.headers["Content-Security-Policy"] == shell.POLICY and "unsafe" not in shell.POLICY


def test_what_is_said_is_escaped() -> None:
    assert str(reference._prose("a `<b>` & <i>")) == "a <code>&lt;b&gt;</code> &amp; &lt;i&gt;"


def test_the_page_is_found_without_its_slash(app: Flask) -> None:
    answer = app.test_client().get(API)
    assert answer.status_code == 308 and answer.headers["Location"].endswith(f"{API}/")

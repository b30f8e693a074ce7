"""The wheel that the service offers to clients, and the pages that show the command for it."""

from __future__ import annotations

import dataclasses
import html
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsers import Browser
from tenants import Tenants

from slicemgr import __version__
from slicemgr.web.pages import client

NAME = f"slicemgr-{__version__}-py3-none-any.whl"
PAGES = ("/account", "/api/v1/")


@pytest.fixture
def offering(tenants: Tenants, tmp_path: Path) -> Iterator[Tenants]:
    """A service whose installation has the wheel of its version, one of another version, and a private file."""
    for name in (NAME, "slicemgr-0.0-py3-none-any.whl", "private"):
        (tmp_path / name).write_bytes(name.encode())
    before = tenants.app.config["WHEELS"]
    tenants.app.config["WHEELS"] = tmp_path
    yield tenants
    tenants.app.config["WHEELS"] = before


def test_anybody_gets_the_wheel_of_this_version(offering: Tenants) -> None:
    answer = Browser(offering).get(f"/client/{NAME}")
    assert (answer.status_code, answer.data) == (200, NAME.encode())
    again = Browser(offering).get(f"/client/{NAME}", headers={"If-None-Match": answer.headers["ETag"]})
    assert again.status_code == 304


@pytest.mark.parametrize("name", ["slicemgr-0.0-py3-none-any.whl", "private", "", "%2e%2e/private", f"x/../{NAME}"])
def test_nothing_else_is_served_from_the_folder(offering: Tenants, name: str) -> None:
    assert Browser(offering).get(f"/client/{name}").status_code == 404


def shown(offering: Tenants, path: str, who: str | None) -> str:
    return html.unescape(Browser(offering, who).get(path).text)


@pytest.mark.parametrize("url", ["", "https://testbed.example"])
def test_the_pages_show_the_command_with_the_address_of_the_service(offering: Tenants, url: str) -> None:
    state = offering.app.extensions["slicemgr"]
    web = dataclasses.replace(state.config.web, url=url)
    config = dataclasses.replace(state.config, web=web)
    offering.app.extensions["slicemgr"] = dataclasses.replace(state, config=config)
    command = f"pip install {url or 'http://localhost'}/client/{NAME}"
    assert command in shown(offering, "/sign-in", None)
    for path in PAGES:
        assert command in shown(offering, path, "bob")


def test_the_address_of_a_request_cannot_add_a_command(offering: Tenants) -> None:
    with offering.app.test_request_context(base_url="https://testbed.example/$(id);x"):
        assert shlex.split(client.command())[:2] == ["pip", "install"] and len(shlex.split(client.command())) == 3


def test_without_a_wheel_no_page_shows_a_command(offering: Tenants, tmp_path: Path) -> None:
    (tmp_path / NAME).unlink()
    assert Browser(offering).get(f"/client/{NAME}").status_code == 404
    for path, who in (("/sign-in", None), *((one, "bob") for one in PAGES)):
        assert "pip install" not in shown(offering, path, who)

"""The source of a request behind proxies: their headers are trusted, those of a client are not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from bare_service import Service, config_in
from flask import request

from slicemgr.config import WebConfig
from slicemgr.web import create_app

PROXY, CLIENT, FORGED = "127.0.0.1", "192.0.2.9", "203.0.113.66"


def ask(folder: Path, proxies: int, forwarded: str, times: int = 1, **more: str) -> tuple[list[int], list[str]]:
    """The statuses of failed sign-ins to different accounts, and the addresses in their events."""
    config = config_in(folder, web=dataclasses.replace(WebConfig(), proxies=proxies))
    with Service(config) as service:
        app = create_app(config, service.store)
        statuses = []
        for number in range(times):
            headers = {"X-Forwarded-For": forwarded.replace("N", str(number)), **more}
            body = {"user": f"user{number}", "password": "is not this"}
            base: dict[str, Any] = {"REMOTE_ADDR": PROXY}
            answer = app.test_client().post("/api/v1/login", json=body, headers=headers, environ_base=base)
            statuses.append(answer.status_code)
        rows = service.dump()["events"]
        return statuses, [row.address for row in rows if row.action == "sign-in failed"]


def test_nobody_is_believed_unless_told_so(tmp_path: Path) -> None:
    assert ask(tmp_path, 0, FORGED)[1] == [PROXY]


def test_the_proxy_is_believed_and_not_the_client(tmp_path: Path) -> None:
    assert ask(tmp_path, 1, f"{FORGED}, {CLIENT}")[1] == [CLIENT]


def test_who_trusts_more_proxies_than_there_are_believes_the_client(tmp_path: Path) -> None:
    """The control, and why the number must be right."""
    assert ask(tmp_path, 2, f"{FORGED}, {CLIENT}")[1] == [FORGED]


@pytest.mark.parametrize(("proxies", "refused"), [(1, True), (2, False)])
def test_a_header_does_not_get_round_the_limit_of_an_address(tmp_path: Path, proxies: int, refused: bool) -> None:
    """With one proxy too many trusted, the control, each attempt comes from another address."""
    limit = 3 * config_in(tmp_path).people.failures
    statuses, _ = ask(tmp_path, proxies, f"203.0.113.N, {CLIENT}", limit + 1)
    assert (statuses[-1] == 429) is refused
    assert set(statuses[:-1]) == {401}


@pytest.mark.parametrize(("proxies", "scheme"), [(0, "http"), (1, "https")])
def test_links_are_made_for_how_people_reach_it(tmp_path: Path, proxies: int, scheme: str) -> None:
    config = config_in(tmp_path, web=dataclasses.replace(WebConfig(), proxies=proxies))
    with Service(config) as service:
        app = create_app(config, service.store)
        app.add_url_rule("/probe", view_func=lambda: request.host_url)
        headers = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "evil.example", "Host": "testbed.example"}
        assert app.test_client().get("/probe", headers=headers).text == f"{scheme}://testbed.example/"


@pytest.mark.parametrize(("proxies", "kept"), [(0, False), (1, True)])
def test_the_id_of_a_request_is_the_proxy_s_or_our_own(tmp_path: Path, proxies: int, kept: bool) -> None:
    config = config_in(tmp_path, web=dataclasses.replace(WebConfig(), proxies=proxies))
    with Service(config) as service:
        client = create_app(config, service.store).test_client()
        answer = client.get("/healthz", headers={"X-Request-ID": "0123456789abcdef"})
        assert (answer.headers["X-Request-ID"] == "0123456789abcdef") is kept
        assert client.get("/healthz", headers={"X-Request-ID": "a b"}).headers["X-Request-ID"] != "a b"

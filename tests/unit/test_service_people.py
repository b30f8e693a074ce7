"""Tokens, and the local admin's file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from bare_service import Service

from slicemgr.errors import Code, Refused
from slicemgr.policy.access import Principal
from slicemgr.service.accounts import authentication

pytestmark = pytest.mark.usefixtures("each_store")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path) as made:
        yield made


@pytest.fixture
def file(service: Service) -> Path:
    return service.config.node.run_dir / "client.json"


def test_the_file_is_its_owners_alone_and_opens_the_service(service: Service, file: Path) -> None:
    token = service.token()
    assert file.stat().st_mode & 0o777 == 0o600
    assert authentication.authenticate(service.store, token) == Principal("admin", True)
    assert token not in str(service.dump()), "only its hash is kept"


def test_a_token_that_works_is_kept_and_the_url_follows(service: Service, file: Path) -> None:
    token = service.token()
    file.chmod(0o644)
    authentication.ensure_local_admin(service.store, file, "http://127.0.0.1:9")
    assert json.loads(file.read_text()) == {"url": "http://127.0.0.1:9", "token": token}
    assert file.stat().st_mode & 0o777 == 0o600
    assert service.count("tokens") == 1


@pytest.mark.parametrize("content", ["", "not json", "[]", '{"token": 7}', '{"token": "stale"}', '{"url": "x"}'])
def test_a_file_that_is_broken_is_made_anew(service: Service, file: Path, content: str) -> None:
    before = service.token()
    file.write_text(content)
    after = service.token()
    assert after != before
    with pytest.raises(Refused):
        authentication.authenticate(service.store, before)
    assert service.count("tokens") == 1


def test_a_link_in_its_place_is_not_followed(service: Service, file: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    file.symlink_to(victim)
    service.token()
    assert victim.read_text() == "mine"
    assert not file.is_symlink()


@pytest.mark.parametrize("token", ["", "x", "' OR 1=1 --", "ä"])
def test_a_wrong_token(service: Service, token: str) -> None:
    service.token()
    with pytest.raises(Refused) as caught:
        authentication.authenticate(service.store, token)
    assert caught.value.code is Code.UNAUTHENTICATED

"""A request that names little: the service generates the name and takes the default image."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bare_service import ADMIN, KEY, Service

from slicemgr.config import LimitsConfig
from slicemgr.errors import Refused
from slicemgr.model import ImageState
from slicemgr.service.slices import slices
from slicemgr.service.slices.specs import InvalidSpec

pytestmark = pytest.mark.usefixtures("each_store")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path) as made:
        yield made


def create(service: Service, **body: Any) -> slices.Created:
    return slices.create(service.store, service.config, slices.Draft({"type": "lxc", "ssh_keys": [KEY], **body}), ADMIN)


def wrong(service: Service, **body: Any) -> Refused:
    before = service.content()
    with pytest.raises(Refused) as error:
        create(service, **body)
    assert service.content() == before
    return error.value


def test_the_type_alone_is_enough(service: Service) -> None:
    made = [create(service) for _ in range(3)]
    assert all(re.fullmatch(r"lxc-[a-z0-9]{4}", one.spec.name) for one in made)
    assert len({one.spec.name for one in made}) == 3 == service.count("slices")
    assert {one.spec.image for one in made} == {"debian-12"}


def test_a_dry_run_names_it_too(service: Service) -> None:
    spec, _, _ = slices.plan(service.store, service.config, slices.Draft({"type": "lxc", "ssh_keys": [KEY]}), ADMIN)
    assert spec.name.startswith("lxc-") and service.count("slices") == 0


def test_an_empty_name_is_no_missing_one(service: Service) -> None:
    error = wrong(service, name="")
    assert (error.field, error.message) == ("name", "is empty")


def test_a_taken_name_is_not_generated_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = iter("aaaaaaaabbbb")
    monkeypatch.setattr("secrets.choice", lambda _: next(chosen))
    monkeypatch.setattr("slicemgr.names.new_tag", iter(["tagtagta", "tagtagtb"]).__next__)
    assert [create(service).spec.name for _ in range(2)] == ["lxc-aaaa", "lxc-bbbb"]


def test_among_several_images_one_must_be_chosen(service: Service) -> None:
    service.add_image("cd" * 32, "alpine")
    error = wrong(service)
    assert (error.field, error.message) == ("image", "is missing")
    assert error.hint == "one of alpine, debian-12; an admin sets the default as limits.image"


def test_images_that_cannot_be_used_do_not_count(service: Service) -> None:
    service.add_image("cd" * 32, "alpine", ImageState.UPLOADED)
    service.add_image("ef" * 32, "old", boot={})
    with service.store.write() as c:
        c.exec_driver_sql("UPDATE images SET arch = '' WHERE name = 'old'")  # no system for containers
    assert create(service).spec.image == "debian-12"


def test_without_an_image_the_hint_names_the_command(tmp_path: Path) -> None:
    with Service(tmp_path) as service:
        with service.store.write() as c:
            c.exec_driver_sql("DELETE FROM images")
        assert "slicectl image import" in wrong(service).hint


def test_the_setting_comes_first(service: Service) -> None:
    service.add_image("cd" * 32, "alpine")
    service.config = dataclasses.replace(service.config, limits=LimitsConfig(image="alpine"))
    assert create(service).spec.image == "alpine"
    assert create(service, image="debian-12").spec.image == "debian-12"
    service.config = dataclasses.replace(service.config, limits=LimitsConfig(image="gone"))
    error = wrong(service)
    assert (error.field, error.message) == ("image", "there is no image 'gone'")


def test_other_errors_are_reported_with_it(service: Service) -> None:
    service.add_image("cd" * 32, "alpine")
    error = wrong(service, count=0)
    assert isinstance(error, InvalidSpec)
    assert {one.field for one in error.errors} == {"image", "count"}

"""The quota usage of a project's own images, over both databases."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from bare_service import ADMIN, Service

from slicemgr.model import MIB, ImageState, OperationState
from slicemgr.policy.quota import OverQuota
from slicemgr.service.nodes import images
from slicemgr.service.projects import projects
from slicemgr.store import pending

pytestmark = pytest.mark.usefixtures("both_stores")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path) as made:
        yield made


def test_a_projects_own_image_takes_of_its_disk(service: Service) -> None:
    """First the file, then its content in the pool; public images do not count. A bomb stops at the quota."""
    store, config = service.store, service.config
    projects.create(store, config, {"name": "lab", "quota": {"disk": "100M"}}, ADMIN)

    def upload(name: str, size: int, project: str | None = "lab") -> str | None:
        sha256 = hashlib.sha256(name.encode()).hexdigest()
        wanted = images.Upload(name, "raw", sha256, size, project)
        return images.register_upload(store, config, wanted, ADMIN, Path.touch)[1]

    def used() -> int:
        with store.read() as c:
            return projects.used(c, "lab").disk

    with pytest.raises(OverQuota, match="left in the project quota"):
        upload("large", 101 * MIB)
    with pytest.raises(OverQuota):
        images.check_upload(store, "large", "raw", ADMIN, "lab", 101 * MIB)
    assert upload("public", 101 * MIB, None)
    operation = upload("own", 30 * MIB)
    with store.read() as c:
        params = {one.id: one.params for one in pending.pending_operations(c, "node1")}[str(operation)]
    assert params["most"] == 70 * MIB and used() == 30 * MIB
    sha256 = hashlib.sha256(b"own").hexdigest()
    service.record(pending.ImageSeen(sha256, ImageState.READY, arch="x86_64", base_size=60 * MIB))
    assert used() == 90 * MIB
    with pytest.raises(OverQuota):
        upload("more", 11 * MIB)
    images.publish(store, "own", ADMIN)
    assert used() == 0


def test_the_same_file_again_is_the_same_import_until_it_ends(service: Service) -> None:
    """A client with a broken connection can follow it again; a project gets the existing image of the testbed."""
    store, config = service.store, service.config
    projects.create(store, config, {"name": "lab"}, ADMIN)
    sha256 = hashlib.sha256(b"one").hexdigest()

    def upload(project: str | None = None) -> tuple[str, str | None]:
        return images.register_upload(store, config, images.Upload("one", "raw", sha256, 1, project), ADMIN, Path.touch)

    first = upload()
    assert first[1] is not None and upload() == first
    assert upload("lab") == (sha256, None)
    service.record(pending.ImageSeen(sha256, ImageState.READY, arch="x86_64", base_size=1))
    service.record(pending.OperationEnded(first[1], OperationState.DONE))
    assert upload() == (sha256, None)

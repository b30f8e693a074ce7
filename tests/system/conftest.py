"""One node for the whole session: a box with the service in it and the recipe's image imported."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from testbed import IMAGE, Node, ensure_image


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """A running node with one image. Destroyed at the end, whatever happened."""
    image = ensure_image()
    with Node("test") as made:
        made.start()
        made.ok("image", "import", image, "--name", IMAGE)
        yield made


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test that used the node: no slice, and the host has exactly what the rows name."""
    yield
    if "node" in request.fixturenames:
        used: Node = request.getfixturevalue("node")
        used.mend()
        used.delete_all()
        used.agrees()

"""A node that has joined a testbed, for the tests of a node: its centre and itself in boxes at a switch.

`pytest --nodes-venv FOLDER tests/system/test_slices.py` runs tests with such a node, of the version of slicemgr in a
virtual environment. Users talk to the centre, which is always of this version.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

import demo
from boxed_centre import Centre
from boxed_node import BoxedNode
from nodebox_box import Box
from nodebox_switch import Switch
from testbed import SETTINGS, Node, ensure_image, eventually

NAME = "joined"
MIRROR = "var/lib/slicemgr/mirror.db"
MORE = SETTINGS[SETTINGS.index("[record]") :].format(more="", spares="[]")  # short times, as for other nodes of tests


class _SwitchedBox(Box):
    """A box whose address is that at its switch."""

    @property
    def address(self) -> str:
        return next((cable.address.partition("/")[0] for cable in self.spec.cables), "")


class JoinedNode(Node):
    """venv: the virtual environment with its version of slicemgr."""

    def __init__(self, venv: Path) -> None:
        super().__init__(NAME)
        self.box = _SwitchedBox(self.box.name)
        self._switch = Switch(f"{NAME}-switch-{demo.CLONE}")
        self._centre = Centre(Box(f"{NAME}-centre-{demo.CLONE}"), self._switch)
        self._joined = BoxedNode(self.box, self._switch, "test", "", venv=venv, more=MORE)

    def __enter__(self) -> Self:
        self._destroy()
        self._ensure_key()
        return self

    def __exit__(self, *exc: object) -> None:
        self._destroy()

    def _destroy(self) -> None:
        self.box.destroy()
        self._centre.box.destroy()
        self._switch.destroy()

    def start(self) -> None:
        self._switch.make()
        self._centre.start()
        os.environ["SSL_CERT_FILE"] = str(self._centre.authority)  # for this process and those that it starts
        self._joined.start(self._centre)
        eventually(lambda: [one["state"] for one in self.nodes()] == ["active"], "the node is active", 300)

    def mend(self) -> None:
        self._centre.start()
        self._joined.start(self._centre)

    @property
    def url(self) -> str:
        return self._centre.url

    def token(self) -> str:
        return self._centre.client()["token"]

    @property
    def database(self) -> Path:
        return self.box.directory / "root" / MIRROR

    def import_recipe(self, recipe: str, *, really: bool = False) -> None:
        """Import the image of a recipe on the node, which is the only one of its testbed."""
        self.ok("image", "import", ensure_image(recipe), "--name", recipe, timeout=1800)

    def logs(self) -> dict[str, str]:
        of_centre = sorted((self._centre.box.directory / "log").glob("*.log"))
        more = {f"centre: {one.name}": one.read_text(errors="replace")[-4000:] for one in of_centre}
        return {**super().logs(), **more}

"""Thin kernels are compiled again and compared."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import demo
import pytest

from slicemgr.builder import guest_kernel, recipe

pytestmark = pytest.mark.long

RECIPE = "debian-12-thin"
FILES = ("image", "uncompressed", "config", "release")


def digests(folder: Path) -> dict[str, str]:
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES}


@pytest.mark.timeout(10800)  # two compilations on a slow machine
def test_a_second_build_gives_the_same_bytes(tmp_path: Path) -> None:
    """At another time and in another folder. The first build is the one that the image of the tests has."""
    chosen = recipe.load(recipe.directory(RECIPE))
    sources, options = recipe.host_sources(chosen), recipe.host_apt_options()
    first, second = (
        recipe.kernel_of(chosen, cache, sources, options, os.cpu_count() or 1).image.parent
        for cache in (demo.RUN / "kernels", tmp_path / "kernels")
    )
    assert first != second and first.name == second.name, "both have the digest of source, options and compiler"
    assert digests(first) == digests(second)
    assert guest_kernel.missing(guest_kernel.wanted(()), (second / "config").read_text()) == []

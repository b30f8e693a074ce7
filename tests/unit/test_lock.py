"""requirements/: the lock has the requirements of pyproject.toml, all hashes, and no package index."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping

import pytest
from affected import LOCK
from demo import REPO
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())
WHOLE = PROJECT["project"]
EXTRAS: Mapping[str, list[str]] = WHOLE["optional-dependencies"]
BUILD, DEV, NODE = LOCK
# The Python versions of Debian 12 and 13, on both architectures.
PLACES = [
    {"python_version": version, "python_full_version": f"{version}.2", "platform_machine": machine}
    for version in ("3.11", "3.13")
    for machine in ("x86_64", "aarch64")
]
_PIN = re.compile(r"(?P<pin>\S+==\S+)(?: ; (?P<marker>.+?))?(?P<hashes>( --hash=sha256:[0-9a-f]{64})+)")

Locked = list[tuple[Requirement, Marker | None]]


def read_lock(text: str) -> Locked:
    """The pinned requirements. AssertionError for a line that is anything else or has no hash."""
    joined = re.sub(r" \\\n +", " ", text)
    lines = [line for line in joined.splitlines() if line and not line.lstrip().startswith("#")]
    found = []
    for line in lines:
        match = _PIN.fullmatch(line)
        assert match, f"not a pinned requirement with hashes: {line[:80]}"
        found.append((Requirement(match["pin"]), Marker(match["marker"]) if match["marker"] else None))
    return found


def versions(locked: Locked, place: Mapping[str, str]) -> dict[str, str]:
    """The versions that would be installed there, by name."""
    found: dict[str, str] = {}
    for pinned, marker in locked:
        if marker is None or marker.evaluate(dict(place)):
            assert pinned.name not in found, f"two versions of {pinned.name}"
            found[canonicalize_name(pinned.name)] = str(pinned.specifier).removeprefix("==")
    return found


def lacking(wanted: Iterable[str], locked: Locked) -> list[str]:
    """The requirements that are not in the lock, or not in their range, in one of the places at least."""
    found = []
    for one in map(Requirement, wanted):
        for place in PLACES:
            if one.marker is None or one.marker.evaluate(place):
                version = versions(locked, place).get(canonicalize_name(one.name))
                if version is None or not one.specifier.contains(version, prereleases=True):
                    found.append(f"{one}: {version}")
                    break
    return found


def everything() -> list[str]:
    """The dependencies with those of all extras, but for the project's own name among them."""
    listed = [*WHOLE["dependencies"], *(one for extra in EXTRAS.values() for one in extra)]
    return [one for one in listed if canonicalize_name(Requirement(one).name) != WHOLE["name"]]


def lock(path: str) -> Locked:
    return read_lock((REPO / path).read_text())


@pytest.mark.parametrize(
    ("path", "wanted"),
    [(NODE, WHOLE["dependencies"]), (DEV, everything()), (BUILD, PROJECT["build-system"]["requires"])],
)
def test_the_lock_has_each_dependency_in_its_range(path: str, wanted: list[str]) -> None:
    assert lacking(wanted, lock(path)) == [], "run `make update`"


@pytest.mark.parametrize("path", LOCK)
def test_a_package_has_one_version_in_all_files(path: str) -> None:
    for place in PLACES:
        found, dev = versions(lock(path), place), versions(lock(DEV), place)
        assert found and {name: dev[name] for name in found if name in dev} == {
            name: version for name, version in found.items() if name in dev
        }
    assert path == BUILD or versions(lock(path), PLACES[0]).keys() <= versions(lock(DEV), PLACES[0]).keys()


@pytest.mark.parametrize("path", LOCK)
def test_the_lock_names_no_index(path: str) -> None:
    text = (REPO / path).read_text()
    assert "://" not in text and not re.search(r"^\s*-(?!-hash=)", text, re.MULTILINE)


def test_what_is_missing_or_out_of_range_is_noticed() -> None:
    locked = lock(NODE)
    assert lacking(["alembic<1", "nothing-of-this-name>=1", "flask>=3"], locked) == [
        f"alembic<1: {versions(locked, PLACES[0])['alembic']}",
        "nothing-of-this-name>=1: None",
    ]
    for line in ("alembic==1.2.3", "alembic>=1.2 --hash=sha256:" + 64 * "0", "--index-url x"):
        with pytest.raises(AssertionError, match="not a pinned requirement"):
            read_lock(line)
    old = read_lock("numpy==2.0 ; python_full_version < '3.12' \\\n    --hash=sha256:" + 64 * "0")
    assert lacking(["numpy>=1"], old) == ["numpy>=1: None"]  # on Debian 13


def test_the_set_up_installed_the_lock() -> None:
    """Of these packages the virtual environment has the locked versions: it is not made from the ranges."""
    from importlib.metadata import version

    here = versions(lock(DEV), {})
    names = [canonicalize_name(Requirement(one).name) for one in everything()]
    assert {name: version(name) for name in names} == {name: here[name] for name in names}

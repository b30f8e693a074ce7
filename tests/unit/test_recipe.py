"""Recipes: reading, merging, refusals, and the arguments of mmdebstrap."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from slicemgr.builder import recipe
from slicemgr.cli.commands.image import build_image
from slicemgr.errors import Refused
from slicemgr.model import MIB

GOOD = 'suite = "bookworm"\narchitecture = "amd64"\npackages = ["one"]\nsize = "1G"\n'
MIRROR = {"Debian": "http://d/debian", "Debian-Security": "http://d/security"}


def written(root: Path, text: str, part: str | None = None) -> Path:
    folder = root / "recipe"
    folder.mkdir()
    (folder / "recipe.toml").write_text(text)
    if part is not None:
        (root / "common").mkdir()
        (root / "common/part.toml").write_text(part)
    return folder


def test_a_part_comes_first_and_the_recipe_has_the_last_word(tmp_path: Path) -> None:
    part = 'suite = "sid"\nsize = "2G"\npackages = ["base"]\nhooks = ["h.sh"]\n'
    folder = written(tmp_path, f'include = ["common"]\n{GOOD}hooks = ["h.sh"]\nboot = "100M"\n', part)
    (tmp_path / "common/files").mkdir()
    read = recipe.load(folder)
    assert (read.suite, read.size, read.boot, read.packages) == ("bookworm", 1024 * MIB, 100 * MIB, ("base", "one"))
    words = recipe.bootstrap_argv(read, tmp_path / "tree", ["deb x"], [])
    assert "--include=base,one" in words and words[-3:] == ["bookworm", str(tmp_path / "tree"), "deb x"]
    assert [word for word in words if "customize-hook" in word] == [
        f'--customize-hook=cp -R --no-preserve=ownership {tmp_path}/common/files/. "$1"',
        f'--customize-hook=sh {tmp_path}/common/h.sh "$1"',
        f'--customize-hook=sh {folder}/h.sh "$1"',
    ]


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        ("suite = ", "recipe", "not TOML"),
        ('suite = "bookworm"\n', "recipe.architecture", "missing"),
        (f"{GOOD}color = 1\n", "recipe.color", "unknown key"),
        (f'{GOOD}folders = ["x"]\n', "recipe.folders", "unknown key"),
        (f"{GOOD}hooks = 1\n", "recipe.hooks", "wrong type"),
        (f'{GOOD}uefi = "yes"\n', "recipe.uefi", "wrong type"),
        (f"{GOOD}boot = true\n", "recipe.boot", "wrong type"),
        (f'{GOOD}boot = "much"\n', "recipe.boot", "not a size"),
        (f'{GOOD}table = "sun"\n', "recipe.table", "gpt or dos"),
        (f'{GOOD}root = "fat"\n', "recipe.root", "ext4 or btrfs"),
        (f'{GOOD}uefi = true\ntable = "dos"\n', "recipe.uefi", "EFI partition"),
        (f"{GOOD.replace('amd64', 'i386')}uefi = true\n", "recipe.uefi", "amd64"),
        (GOOD.replace('"one"', '"one,--hook"'), "recipe.packages", "not the name of a package"),
        (GOOD + 'components = ["main", "--hook"]\n', "recipe.components", "not a word"),
        (GOOD + 'kernel_options = "quiet\\n}\\n"\n', "recipe.kernel_options", "letters, digits"),
        (GOOD + 'kernel_options = "quiet; reboot"\n', "recipe.kernel_options", "letters, digits"),
        (f'include = ["nowhere"]\n{GOOD}', "recipe", "no readable part.toml"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, field: str, message: str) -> None:
    with pytest.raises(Refused, match=message) as refused:
        recipe.load(written(tmp_path, text))
    assert refused.value.field == field


def test_a_part_includes_no_part(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="unknown key") as refused:
        recipe.load(written(tmp_path, f'include = ["common"]\n{GOOD}', 'include = ["other"]\n'))
    assert refused.value.field == "recipe.include"


def test_security_fixes_are_left_out_only_when_that_is_said() -> None:
    assert recipe.sources_on(MIRROR, "bookworm", ["main"])[-1] == "deb http://d/security bookworm-security main"
    without = recipe.sources_on(MIRROR, "bookworm", ["main"], security=False)
    assert without == ["deb http://d/debian bookworm main", "deb http://d/debian bookworm-updates main"]


def test_help_names_every_recipe() -> None:
    said = CliRunner().invoke(build_image, ["--help"]).output.split()
    assert recipe.names() and set(recipe.names()) <= set(said)

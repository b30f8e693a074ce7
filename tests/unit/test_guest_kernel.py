"""Thin kernels: what their manifest says, and what a build keeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from slicemgr.builder import guest_kernel, recipe
from slicemgr.cli.commands import image as image_commands
from slicemgr.errors import Refused


def test_every_option_of_the_manifest_is_set_once() -> None:
    known = guest_kernel.manifest()
    for program in known.programs.values():
        assert program.description and program.options
        assert len(set(program.options)) == len(program.options)
    lines = guest_kernel.wanted(known.programs, known=known).splitlines()
    options = [line for line in lines if line.startswith("CONFIG_")]
    assert len(set(options)) == len(options)
    assert set(options) >= {f"CONFIG_{option}=y" for one in known.programs.values() for option in one.options}


def test_the_options_of_programs_are_added_to_the_base() -> None:
    base = guest_kernel.settings(guest_kernel.wanted(()))
    more = guest_kernel.settings(guest_kernel.wanted(("redis", "netfilter", "redis")))
    assert base.items() < more.items()
    assert guest_kernel.wanted(("redis", "netfilter")) == guest_kernel.wanted(("netfilter", "redis"))


def test_a_program_that_needs_nothing_more_has_the_kernel_of_the_base() -> None:
    assert guest_kernel.wanted(("nginx",)) == guest_kernel.wanted(())


def test_other_kernels_differ_from_the_base_in_what_they_name() -> None:
    known = guest_kernel.manifest()
    assert (guest_kernel.BASE, *known.kernels) == guest_kernel.KERNELS == image_commands._KERNELS
    base = guest_kernel.settings(guest_kernel.wanted(()))
    for name, values in known.kernels.items():
        asked = guest_kernel.wanted((), kernel=name)
        made = guest_kernel.settings(asked)
        assert made == {option: value for option, value in {**base, **values}.items() if value != "n"}
        left_out = [option for option, value in values.items() if value == "n"]
        assert left_out and base.keys() >= set(left_out), "the base has them"
        assert guest_kernel.missing(asked, asked) == []
        assert guest_kernel.missing(asked, f"{asked}CONFIG_{left_out[0]}=y\n") == [left_out[0]]


def test_an_unknown_program_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Refused) as refused:
        guest_kernel.wanted(("mysql",))
    assert refused.value.field == "kernel_programs"
    assert "redis" in str(refused.value.hint)


def test_a_manifest_with_a_wrong_option_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "kernel.toml"
    file.write_text('source = "s"\ncompiler = []\n[programs.p]\ndescription = "d"\noptions = ["A=m\\nCONFIG_B"]\n')
    with pytest.raises(Refused, match="is not a name"):
        guest_kernel.manifest(file)


def test_an_option_that_the_source_leaves_out_is_missing() -> None:
    asked = 'CONFIG_A=y\nCONFIG_B="b"\nCONFIG_C=y\n'
    assert guest_kernel.missing(asked, 'CONFIG_A=y\nCONFIG_B="b"\n# CONFIG_C is not set\n') == ["C"]
    assert guest_kernel.missing(asked, 'CONFIG_A=m\nCONFIG_B="b"\nCONFIG_C=y\n') == ["A"]
    assert guest_kernel.missing(asked, asked) == []


@pytest.mark.parametrize("other", [("gcc=2", "CONFIG_A=y"), ("gcc=1", "CONFIG_A=n")])
def test_another_compiler_or_option_is_another_kernel(other: tuple[str, str]) -> None:
    assert guest_kernel.digest("gcc=1", "CONFIG_A=y") == guest_kernel.digest("gcc=1", "CONFIG_A=y")
    assert guest_kernel.digest("gcc=1", "CONFIG_A=y") != guest_kernel.digest(*other)


def test_a_thin_image_has_no_boot_loader_and_no_package_with_a_kernel() -> None:
    small = recipe.load(recipe.directory("debian-12-small"))
    thin = recipe.with_kernel(small, "thin", ("redis",))
    assert (thin.kernel, thin.kernel_programs, thin.uefi) == ("thin", ("redis",), False)
    left_out = set(small.packages) - set(thin.packages)
    assert left_out == {"linux-image-cloud-amd64", "grub-cloud-amd64"}
    assert recipe.with_kernel(small, "", ()) == small


@pytest.mark.parametrize(
    ("name", "kernel", "programs", "field"),
    [
        ("debian-12-small", "", ("redis",), "recipe.kernel_programs"),
        ("debian-12-small", "thick", (), "recipe.kernel"),
        ("debian-12-btrfs", "thin", (), "recipe.kernel"),
        ("debian-12-i386", "thin", (), "recipe.kernel"),
        ("debian-12-thin", "", ("mysql",), "kernel_programs"),
    ],
)
def test_a_kernel_that_cannot_be_is_refused(name: str, kernel: str, programs: Sequence[str], field: str) -> None:
    with pytest.raises(Refused) as refused:
        recipe.with_kernel(recipe.load(recipe.directory(name)), kernel, programs)
    assert refused.value.field == field

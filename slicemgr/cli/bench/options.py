"""Options that several experiments have in common. Each is written once, with one range and one help text."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

WORKLOADS_HELP = "Of the slivers: file, memory, or a store with a workload of YCSB such as redis-a or memcached-b."
Command = TypeVar("Command", bound="Callable[..., Any]")

TYPES = click.Choice(["lxc", "kvm"])
BOOTS = click.Choice(["loader", "bios", "uefi", "direct"])
IMAGES = {"lxc": "debian-12", "kvm": "debian-12-small"}

types_option = click.option(
    "--type", "types", type=TYPES, multiple=True, default=["lxc"], show_default=True, help="Can be repeated."
)
node_option = click.option("--node", "name", help="Node to use, if there are several.")


def images_option(defaults: Mapping[str, str], described: str) -> Callable[[Command], Command]:
    """`--image NAME` for all types, `--image TYPE=NAME` for one; the command gets `images`, an image for each type.

    defaults: the image of each type. described: the defaults and the requirements, for the help text.
    """

    def parse(_context: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
        found = dict(defaults)
        for value in sorted(values, key=lambda one: "=" in one):
            sliver_type, named, image = value.rpartition("=")
            if named and sliver_type not in defaults:
                message = f"{sliver_type!r} is not a type; write NAME, lxc=NAME or kvm=NAME"
                raise click.BadParameter(message, param=param)
            found.update({sliver_type: image} if named else dict.fromkeys(defaults, image))
        return found

    return click.option(
        "--image",
        "images",
        callback=parse,
        multiple=True,
        metavar="[TYPE=]NAME",
        help=f"Image of all types, or of one type; can be repeated {described}",
    )


def parallel_option(things: str) -> Callable[[Command], Command]:
    return click.option(
        "--parallel",
        type=click.IntRange(1, 64),
        default=4,
        show_default=True,
        help=f"Number of {things} created in parallel.",
    )


def memory_option(thing: str) -> Callable[[Command], Command]:
    return click.option("--memory", default="256M", show_default=True, help=f"Memory limit of each {thing}.")


def repeat_option(default: int = 1) -> Callable[[Command], Command]:
    return click.option(
        "--repeat", type=click.IntRange(1, 50), default=default, show_default=True, help="Number of repetitions."
    )


SEEDS = click.IntRange(0, 2**31 - 1)  # for programs that take no others


def seed_option(use: str, kind: type[int] | click.IntRange = int) -> Callable[[Command], Command]:
    return click.option("--seed", type=kind, default=1, show_default=True, help=f"Random seed for {use}.")


default_images_option = images_option(IMAGES, f"({', '.join('='.join(one) for one in IMAGES.items())}).")

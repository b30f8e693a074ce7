"""Options of several experiments: types, images; and an ssh key of their own."""

from __future__ import annotations

import click

KINDS = click.Choice(["lxc", "kvm"])
IMAGES = {"lxc": "debian-12", "kvm": "debian-12-small"}


def images(_context: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """The image of each type; `NAME` is for all types without an image of their own."""
    found = dict(IMAGES)
    for value in sorted(values, key=lambda one: "=" in one):
        kind, named, image = value.rpartition("=")
        if named and kind not in IMAGES:
            raise click.BadParameter(f"{kind!r} is not a type; write NAME, lxc=NAME or kvm=NAME", param=param)
        found.update({kind: image} if named else dict.fromkeys(IMAGES, image))
    return found


types_option = click.option(
    "--type", "kinds", type=KINDS, multiple=True, default=["lxc"], show_default=True, help="Can be repeated."
)
images_option = click.option(
    "--image",
    "images",
    callback=images,
    multiple=True,
    metavar="[TYPE=]NAME",
    help="Image of all types, or of one type; can be repeated "
    f"({', '.join(f'{kind}={name}' for kind, name in IMAGES.items())}).",
)


def any_key() -> str:
    """A public key for slices that must have one but need no login: its private key is discarded."""
    return new_key()[0]


def new_key() -> tuple[str, bytes]:
    """The line of the public key, and the private key in the format of OpenSSH."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    private = Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return public, private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())

"""slicectl image: list, show, kernel-config, build, import, publish, push, delete."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from slicemgr.cli.groups import Group
from slicemgr.cli.render import tables
from slicemgr.cli.render.output import Output, output_options
from slicemgr.cli.shared import each, project_option, replace_process, seconds
from slicemgr.errors import invalid

if TYPE_CHECKING:
    from slicemgr import wire
    from slicemgr.client import Client

_QCOW2 = b"QFI\xfb"
_KERNELS = ("thin", "thin-size", "thin-unprotected")


@click.group(cls=Group)
def image() -> None:
    """Manage the disk images that slices are created from."""


@image.command("list")
@click.option(
    "--state", type=click.Choice(["uploaded", "ready", "deleting", "missing"]), help="Only images in this state."
)
@click.option("--project", help="Only images of this project.")
@click.option("--prefix", help="Only images whose name starts with this text.")
@click.option("--nodes", is_flag=True, help="Print a line for each node that has something of an image.")
@output_options(tables.IMAGES_AND_NODES)
def list_images(output: Output, nodes: bool, **filters: str | None) -> None:
    """List images."""
    from slicemgr.client import Client

    with Client.local() as client:
        found = client.images.list(**filters)
        if not nodes:
            output.of(tables.IMAGES).show(found)
            return
        rows = [
            {"name": one["name"], "sha256": one["sha256"], **each}
            for one in found
            for each in client.images.nodes(one["sha256"])
        ]
    output.of(tables.IMAGES_ON_NODES).show(rows)


@image.command("show")
@click.argument("name")
@output_options(tables.IMAGES)
def show_image(name: str, output: Output) -> None:
    """Show one image, by name or by sha256 or its first digits."""
    from slicemgr.client import Client

    with Client.local() as client:
        found = client.images.get(name)
        output.show([found], found)


@image.command("kernel-config")
@click.argument("name")
def show_kernel_config(name: str) -> None:
    """Print the configuration of the kernel in an image, as the import found it in /boot."""
    from slicemgr.client import Client

    with Client.local() as client:
        click.echo(client.images.kernel_config(name), nl=False)


@image.command("delete")
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
def delete_image(names: tuple[str, ...]) -> int:
    """Delete images that no slice uses."""
    from slicemgr.cli.render.progress import follow
    from slicemgr.client import Client

    with Client.local() as client:
        return each(names, lambda name: follow(client, client.images.delete(name)))


@image.command("publish")
@click.argument("name")
@output_options(tables.IMAGES)
def publish_image(name: str, output: Output) -> None:
    """Make images of a project available to all projects (admins)."""
    from slicemgr.client import Client

    with Client.local() as client:
        found = client.images.publish(name)
        output.show([found], found)


@image.command("push")
@click.argument("name")
@click.option("--node", "nodes", metavar="NODE", multiple=True, required=True, help="The node; repeatable.")
@click.option("--no-wait", is_flag=True, help="Return at once.")
def push_image(name: str, nodes: tuple[str, ...], no_wait: bool) -> int:
    """Have an image on nodes before a sliver needs it (admins)."""
    from slicemgr.cli.render.progress import follow
    from slicemgr.client import Client

    with Client.local() as client:
        started: dict[str, wire.Operation] = {}

        def start(node: str) -> None:
            started[node] = client.images.push(name, node)

        status = each(nodes, start)
        return status if no_wait else each(started, lambda node: follow(client, started[node])) or status


@image.command("build")
@click.argument("recipe")
@click.option("--output", "target", metavar="FILE", help="Output file (RECIPE.qcow2).")
@click.option("--no-security", is_flag=True, help="Skip the security updates of Debian, for mirrors without them.")
@click.option("--kernel", type=click.Choice(_KERNELS), help="A small kernel built from source instead of Debian's.")
@click.option(
    "--kernel-program",
    "programs",
    multiple=True,
    metavar="PROGRAM",
    help="Add to the thin kernel what PROGRAM needs: netfilter, containers, redis, nginx or python. Can be repeated.",
)
@click.option("--cache", help="Directory that keeps thin kernels (default: the node's importer.cache).")
def build_image(
    recipe: str,
    target: str | None,
    no_security: bool,
    kernel: str | None,
    programs: tuple[str, ...],
    cache: str | None,
) -> None:
    """Build a bootable disk image from a recipe on this computer (root). Import it afterwards.

    \b
    debian-12        amd64, ext4, netplan; BIOS and UEFI
    debian-12-i386   32-bit, ext4, netplan; BIOS
    debian-12-btrfs  amd64, MBR, separate /boot, btrfs root, ifupdown; BIOS
    debian-12-small  amd64, without systemd and cloud-init; boots within seconds
    debian-12-thin   the same with a thin kernel, without a boot loader; boots directly
    """
    program = str(Path(sys.argv[0]).resolve().with_name("slicemgr"))
    words = [program, "image-build", recipe, *(["--output", target] if target else [])]
    words += ["--no-security"] if no_security else []
    words += ["--kernel", kernel] if kernel else []
    words += [word for program_name in programs for word in ("--kernel-program", program_name)]
    words += ["--cache", cache] if cache else []
    replace_process(words, "install slicemgr on this machine")


@image.command("import")
@click.argument("file")
@click.option("--name", required=True, help="Name of the image.")
@click.option(
    "--format",
    "--disk-format",
    "disk_format",
    type=click.Choice(["qcow2", "raw"]),
    help="Format of the file  [default: detected].",
)
@project_option
@click.option("--no-wait", is_flag=True, help="Return when the file has been sent.")
@click.option("--timeout", callback=seconds, metavar="TIME", help="Maximum time to wait after the file has been sent.")
@output_options(tables.IMAGES, long="--output-format")
def import_image(
    file: str, name: str, disk_format: str | None, no_wait: bool, timeout: float | None, output: Output
) -> None:
    """Import the disk image FILE. Importing the same file again changes nothing.

    Without --project, an image imported by an admin is available to all projects."""
    from slicemgr.cli.render.progress import follow
    from slicemgr.client import Client

    with _open(file) as opened, Client.local() as client:
        sent = _send(client, opened, name, disk_format)
        if "operation" in sent and not no_wait:
            follow(client, sent["operation"], timeout)
        found = client.images.get(sent["image"]["sha256"])
        output.show([found], found)


def _open(file: str) -> IO[bytes]:
    path = Path(file)
    try:
        if not path.is_file():
            raise invalid("FILE", f"{file} is not a file" if path.exists() else f"{file} does not exist")
        if path.stat().st_size == 0:
            raise invalid("FILE", f"{file} is empty", "give a qcow2 or raw disk image")
        return path.open("rb")
    except OSError as error:
        raise invalid("FILE", f"cannot read {file}: {error.strerror}") from error


def _send(client: Client, file: IO[bytes], name: str, disk_format: str | None) -> wire.Imported:
    size = os.fstat(file.fileno()).st_size
    chosen = disk_format or ("qcow2" if file.read(len(_QCOW2)) == _QCOW2 else "raw")
    file.seek(0)
    if not sys.stderr.isatty():
        return client.images.upload(file, size, name=name, format=chosen)
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("sending", total=size)

        def draw(sent: int, _size: int) -> None:
            progress.update(task, completed=sent)

        return client.images.upload(file, size, name=name, format=chosen, on_progress=draw)

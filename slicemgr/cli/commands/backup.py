"""slicectl backup."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from slicemgr.cli.shared import replace_process
from slicemgr.errors import Code, Refused


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--with-secrets", is_flag=True, help="Include the files of passwords, and the password in store.url.")
@click.option("--without-samples", is_flag=True, help="Leave out the measurements; the sums of projects are included.")
def backup(file: Path, with_secrets: bool, without_samples: bool) -> None:
    """Write the database, settings and identities of images to FILE, as root on the node of the service.

    It runs `slicemgr backup`, because the service gives its database to no client. `slicemgr restore` reads FILE.
    """
    beside = Path(sys.argv[0]).with_name("slicemgr")
    program = str(beside) if beside.is_file() else shutil.which("slicemgr")
    if program is None:
        hint = "run it as root on the node of the service, where slicemgr is installed with its parts for nodes"
        raise Refused(Code.INVALID, "the program slicemgr is not installed here", hint=hint)
    options = [
        name for name, wanted in (("--with-secrets", with_secrets), ("--without-samples", without_samples)) if wanted
    ]
    replace_process([program, "backup", *options, "--", str(file)], "install slicemgr with its parts for nodes")

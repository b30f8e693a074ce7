"""slicectl create."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slicemgr.cli.render import tables
from slicemgr.cli.render.output import Output, output_options
from slicemgr.cli.shared import project_option, seconds
from slicemgr.errors import SlicemgrError, invalid

if TYPE_CHECKING:
    from slicemgr import wire
    from slicemgr.client import Client

_LARGEST_KEY_FILE = 1 << 16  # bytes
_LARGEST_USER_DATA = 1 << 20  # bytes; the limit of the service is lower, and its error gives that
_KEY_TYPES = ("ssh-", "ecdsa-sha2-", "sk-ssh-", "sk-ecdsa-")


def _cores(_context: click.Context, _param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise invalid("--cpu", f"{value} is not a number of CPU cores", "such as 0.5")
    return value


@click.command()
@click.argument("name", required=False, metavar="[[PROJECT/]NAME]")
@click.option("--type", "sliver_type", required=True, metavar="lxc|kvm", help="Container or virtual machine.")
@click.option(
    "--image", help="Name or sha256; see `slicectl image list`. Default: that of the testbed, or the only ready one."
)
@click.option("--count", type=int, help="Number of slivers in the slice (1).")
@click.option("--cpu", type=float, callback=_cores, help="CPU cores per sliver, such as 0.5.")
@click.option("--cpu-shares", type=int, help="CPU weight under contention (1024).")
@click.option("--memory", help="Memory limit per sliver, such as 512M.")
@click.option("--memory-guarantee", help="Part of the memory that the node reserves for each sliver, such as 256M.")
@click.option("--memory-weight", type=int, help="Share of the memory between guarantee and limit, 1 to 10000 (100).")
@click.option(
    "--memory-max", help="Up to how much `resize` can raise the memory limit of running kvm slivers, such as 2G."
)
@click.option("--memory-soft", help="Deprecated. Soft limit: under pressure the kernel reclaims memory above it.")
@click.option("--disk", help="Disk limit per sliver, such as 4G.")
@click.option("--pids", type=int, help="Maximum number of processes and threads per sliver.")
@click.option("--io-weight", type=int, help="Disk I/O weight, 1 to 1000.")
@click.option("--io-rate", help="Disk I/O rate in bytes per second, such as 20M; kvm only.")
@click.option("--io-ops", type=int, help="Disk operations per second; kvm only.")
@click.option(
    "--boot",
    metavar="loader|bios|uefi|direct",
    help="Boot method of kvm slivers (default: the boot loader of the image).",
)
@click.option(
    "--machine",
    metavar="standard|thin",
    help="Hardware of kvm slivers: thin has no firmware and no screen, and boots the kernel directly (standard).",
)
@click.option(
    "--init",
    metavar="minimal|systemd",
    help="First process of lxc slivers: a small script, or the systemd of the image (minimal).",
)
@click.option("--user-data", "user_data_file", metavar="FILE", help="A cloud-config or script for cloud-init.")
@click.option("--net-in", metavar="RATE", help="Ingress rate of each sliver, such as 100Mbit.")
@click.option("--net-out", metavar="RATE", help="Egress rate of each sliver, such as 800kbit.")
@click.option("--ports", type=int, help="Node ports per sliver. The lowest port leads to SSH.")
@click.option("--lease", help="Lease of the slice, such as 12h or 7d.")
@click.option("--node", metavar="NODE[,NODE]", help="Nodes to use  [default: any].")
@click.option("--site", help="Use only nodes at this site.")
@click.option("--spread", type=click.Choice(["node", "site"]), help="Distribute evenly over nodes (default) or sites.")
@click.option("--pack", is_flag=True, help="Use as few nodes as possible.")
@click.option("--apart", metavar="SLICE", help="Do not use the nodes of this slice.")
@click.option(
    "--on-loss",
    type=click.Choice(["keep", "rebuild"]),
    help="Slivers on a lost node: keep (default) or make them again from the image elsewhere, without their data.",
)
@click.option(
    "--reason", help="Reason to exceed the quota. The request then waits for the decision of a PI or an admin."
)
@project_option
@click.option(
    "--ssh-key",
    "key_files",
    multiple=True,
    metavar="FILE",
    help="Public key file; can be repeated. Default: the keys in ~/.ssh, or else those of `key list`.",
)
@click.option("--cold", is_flag=True, help="Do not take a sliver that the node keeps ready, but make a new one.")
@click.option("--dry-run", is_flag=True, help="Show the allocation without creating the slice.")
@click.option("--no-wait", is_flag=True, help="Return when the service has accepted the request.")
@click.option("--timeout", callback=seconds, metavar="TIME", help="Maximum time to wait, such as 2m.")
@output_options(tables.SLIVERS)
def create(
    name: str | None,
    sliver_type: str,
    key_files: tuple[str, ...],
    user_data_file: str | None,
    pack: bool,
    cold: bool,
    dry_run: bool,
    no_wait: bool,
    timeout: float | None,
    output: Output,
    **wanted: Any,
) -> None:
    """Create the slice NAME and wait until its slivers accept SSH logins.

    Without NAME, the service generates a name, such as lxc-k3x9, and the command prints it.
    """
    from slicemgr.cli.render.errors import say
    from slicemgr.cli.render.progress import follow
    from slicemgr.client import Client

    request: wire.SliceRequest = {"type": sliver_type}
    if name is not None:
        request["name"] = name
    if keys := _keys(key_files):
        request["ssh_keys"] = keys
    if user_data_file is not None:
        request["user_data"] = _user_data(Path(user_data_file).expanduser())
    if pack:
        if wanted["spread"]:
            raise invalid("--pack", "contradicts --spread", "give one of them")
        request["spread"] = "pack"
    if cold:
        request["warm"] = False
    request.update({key: value for key, value in wanted.items() if value is not None})  # type: ignore[typeddict-item]
    with Client.local() as client:
        if dry_run:
            planned = _ask(client, {**request, "dry_run": True})["plan"]
            output.show(planned["slivers"], planned)
            for one in planned.get("elsewhere", []) if output.for_people and output.header else ():
                say(f"not on {one['node']}: {one['reason']}")
            return
        created = _ask(client, request)
        if "request" in created:
            print_waiting(created["request"])
            return
        if name is None:
            name = created["slice"]["name"]
            say(f"the name of the slice is {name}")
        if not no_wait:
            follow(client, created["operation"], timeout, cancel=f"slicectl delete {name}")
            _print_unverified(client.operations.get(created["operation"]["id"]))
        made = client.slices.get(full_name(created, name))
        output.show(made["slivers"], made)


def full_name(created: wire.Created, name: str) -> str:
    """PROJECT/NAME of a new slice, because another project may have a slice of that name. name: as given."""
    made = created.get("slice")
    return f"{made['project']}/{made['name']}" if made else name


def _ask(client: Client, request: wire.SliceRequest) -> wire.Created:
    """Send the request; an error names the options as the user wrote them."""
    try:
        return client.slices.submit(request)
    except SlicemgrError as error:
        if error.field == "ssh_keys" and not request.get("ssh_keys"):
            error.message = "there is no public key in ~/.ssh or in your account"
            error.hint = "create one with `ssh-keygen -t ed25519`, or give a file with --ssh-key"
        error.field = _option(error.field)
        notes = [note.partition(": ") for note in getattr(error, "__notes__", ())]
        error.__notes__ = [f"{_option(field)}: {message}" for field, _, message in notes]
        raise


def print_waiting(request: wire.Request) -> None:
    """Print that a request beyond the quota waits, and how to see its state."""
    from slicemgr.cli.render.errors import say

    say(f"the request exceeds the quota: {request['exceeds']}")
    say(f"request {request['id']} waits for a decision; `slicectl request show {request['id']}` shows its state")


def _option(field: str) -> str:
    special = {"": "", "name": "NAME", "ssh_keys": "--ssh-key"}
    return special.get(field, f"--{field.replace('_', '-')}")


def _print_unverified(operation: wire.Operation) -> None:
    from slicemgr.cli.render.errors import say

    for step in operation["steps"]:
        if step["detail"] and step["name"] == "ssh":
            say(f"{step['sliver']}: {step['detail']}")


def _user_data(path: Path) -> str:
    """The content of the file; the service checks it."""
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST_USER_DATA).decode()
    except OSError as error:
        raise invalid(
            "--user-data", f"cannot read {path}: {error.strerror}", "give a cloud-config or script"
        ) from error
    except UnicodeDecodeError as error:
        raise invalid("--user-data", f"{path} is not text", "give a cloud-config or script") from error


def _keys(files: tuple[str, ...]) -> list[str]:
    """The content of the key files; by default the key of the client's settings, else those in ~/.ssh, if any."""
    if files:
        return [read_key(Path(file).expanduser()) for file in files]
    from slicemgr.client.settings import find_settings
    from slicemgr.client.ssh import PUBLIC_KEYS

    candidates = [Path.home() / ".ssh" / name for name in PUBLIC_KEYS]
    identity = find_settings().identity
    if identity:
        candidates = [Path(f"{identity}.pub")]
    return [read_key(path) for path in candidates if path.is_file()]


def read_key(path: Path, field: str = "--ssh-key") -> str:
    """The content of a public key file. Refused if it is something else; the error does not contain a private key."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_KEY_FILE + 1)
        if len(data) > _LARGEST_KEY_FILE:
            raise invalid(field, f"{path} is too large for a public key", "give the .pub file")
        text = data.decode()
    except OSError as error:
        raise invalid(field, f"cannot read {path}: {error.strerror}", "give the .pub file") from error
    except UnicodeDecodeError as error:
        raise invalid(field, f"{path} is not a public key", "give the .pub file") from error
    if "PRIVATE KEY" in text or text.startswith("PuTTY-User-Key-File"):
        raise invalid(field, f"{path} is a private key", "give the .pub file; nothing was sent")
    lines = [line.strip() for line in text.splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise invalid(field, f"{path} is empty", "give the .pub file")
    if not all(line.startswith(_KEY_TYPES) for line in keys):
        raise invalid(field, f"{path} is not a public key", "give the .pub file; nothing was sent")
    return text

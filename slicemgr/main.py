"""`slicemgr`: the processes of a node. The only module that imports both web and agent."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import click

from slicemgr import __version__, backup_commands, logs, testbed_commands
from slicemgr import config as settings
from slicemgr.errors import Failed, SlicemgrError, missing_extra

log = logging.getLogger("slicemgr")

_CLEANED = 300.0  # seconds for which `uninstall --slivers` waits until btrfs has freed what was deleted


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="slicemgr")
@click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="Settings (default: $SLICEMGR_CONFIG, /etc/slicemgr/slicemgr.toml).",
)
@click.option("-v", "--verbose", is_flag=True, help="Log every program that is started.")
@click.pass_context
def cli(context: click.Context, path: Path | None, verbose: bool) -> None:
    """Run a slicemgr node. People and scripts use slicectl."""
    context.obj = settings.load(path)
    context.meta[backup_commands.SETTINGS_FILE] = settings.file_of(path)
    logs.configure(context.obj.log.format, verbose=verbose)


@cli.command()
@click.pass_obj
def init(config: settings.Config) -> None:
    """Make the directories, the database and the local admin's token. Changes nothing that is there."""
    _init(config)


@cli.command()
@click.pass_obj
def agent(config: settings.Config) -> None:
    """The node's agent (root)."""
    _agent(config)


@cli.command()
@click.pass_obj
def web(config: settings.Config) -> None:
    """The web page and the REST API (drops root before it serves)."""
    _web(config)


@cli.command()
@click.pass_obj
def up(config: settings.Config) -> None:
    """init, web and agent together, on one machine; ends when either of them does."""
    _init(config)
    child = os.fork()
    if child == 0:
        _web(config)
        os._exit(0)
    stop = _stop_on_signals()
    watcher = threading.Thread(target=_end_with, args=(child, stop), daemon=True)
    watcher.start()
    try:
        _agent(config, stop)
    finally:
        if watcher.is_alive():
            os.kill(child, signal.SIGTERM)
            watcher.join(timeout=15)


@cli.command()
@click.option("-f", "--format", "output", type=click.Choice(["table", "json"]), default="table")
@click.pass_obj
def doctor(config: settings.Config, output: str) -> None:
    """Check everything the node needs, without the service; exit status 1 if something is missing."""
    from slicemgr import agent_process
    from slicemgr.agent import doctor as examination

    checks = agent_process.checks(config)
    if output == "json":
        click.echo(json.dumps(examination.report(checks), indent=2))
    for check in checks if output == "table" else ():
        sign = {True: "ok  ", False: "FAIL", None: "warn"}[check.ok]
        click.echo(
            f"{sign} {check.name}: {check.detail}" + (f"\n     → {check.remedy}" if check.ok is not True else "")
        )
    sys.exit(0 if all(check.ok is not False for check in checks) else 1)


@cli.command("sign-in-link")
@click.argument("name", default="admin")
@click.pass_obj
def sign_in_link(config: settings.Config, name: str) -> None:
    """Print a link that signs in to the web page as NAME, by default the built-in admin (root).

    The link works once, within an hour. It makes earlier links of the account invalid.
    """
    from slicemgr import store
    from slicemgr.service.accounts import sign_in_links
    from slicemgr.web import server

    with store.open(config) as opened:
        made = sign_in_links.create(opened, name)
    click.echo(f"{(config.web.url or server.url(config)).rstrip('/')}{sign_in_links.PATH}{made.secret}")


@cli.command("image-build")
@click.argument("recipe")
@click.option("--output", type=click.Path(path_type=Path), help="Where the disk image goes (default: RECIPE.qcow2).")
@click.option("--no-security", is_flag=True, help="Without Debian's security fixes, for a mirror that has none.")
@click.option("--kernel", default="", help="thin, thin-size or thin-unprotected: built from source.")
@click.option("--kernel-program", multiple=True, help="A program that the thin kernel is for; can be repeated.")
@click.option("--cache", type=click.Path(path_type=Path), help="Where thin kernels are kept (default: importer.cache).")
@click.pass_obj
def image_build(
    config: settings.Config,
    recipe: str,
    output: Path | None,
    no_security: bool,
    kernel: str,
    kernel_program: tuple[str, ...],
    cache: Path | None,
) -> None:
    """Make a bootable VM disk image from a recipe (root; needs Debian's package archive)."""
    from slicemgr.builder import recipe as recipes

    def progress(phase: str, percent: int | None) -> None:
        click.echo(f"{phase}{'' if percent is None else f' {percent} %'}", err=True)

    target = output or Path(f"{recipe}.qcow2")
    chosen = recipes.with_kernel(recipes.load(recipes.directory(recipe)), kernel, kernel_program)
    kernels = cache or config.importer.cache / "kernels"
    recipes.build(chosen, target, progress, cache=kernels, security=not no_security)
    click.echo(str(target))


@cli.command()
@click.option(
    "--slivers", is_flag=True, help="Delete all slivers, snapshots and images of this node first, without the database."
)
@click.pass_obj
def uninstall(config: settings.Config, slivers: bool) -> None:
    """Take our chains, programs and lxcfs away, after the last slice is gone and the agent is stopped.

    Refused while the agent runs.
    """
    from slicemgr.agent.agent_lock import only_one
    from slicemgr.drivers.guest.proc_view import ProcView
    from slicemgr.drivers.kernel import capture_rings
    from slicemgr.drivers.network import fragments
    from slicemgr.drivers.network.firewall import Firewall

    with only_one(config.node.run_dir / "agent.lock"), ExitStack() as last:
        last.callback(ProcView(config.node.run_dir).remove)
        last.callback(capture_rings.remove, config.node.run_dir)
        last.callback(fragments.remove)
        last.callback(Firewall(config.network).remove)
        if slivers:
            _delete_slivers(config)


def _delete_slivers(config: settings.Config) -> None:
    """Remove what `slicemgr gc` would, if there were no rows. Raises Failed if something remains."""
    from slicemgr.agent import garbage
    from slicemgr.drivers.libvirt.hypervisor import Hypervisor
    from slicemgr.drivers.storage.btrfs import Pool

    nothing = garbage.Wanted.of((), ())
    pool = Pool(config.node.pool)
    found = garbage.find(config, Hypervisor(config.libvirt), pool, lambda: nothing, agent=False)
    items = garbage.collect(found, apply=True, freed=lambda: pool.wait_cleaned(_CLEANED), kept=True)["items"]
    pool.collect_subvolume_groups()  # no agent runs afterwards that would
    remains = [one for one in items if not one["removed"]]
    for one in remains:
        click.echo(f"slicemgr: {one['what']} {one['name']} remains: {one['detail']}", err=True)
    if remains:
        raise Failed(f"{len(remains)} of {len(found)} resources remain", hint="remove them, then run this again")


@cli.group()
def db() -> None:
    """The database: its schema, and its move to PostgreSQL."""


@db.command("upgrade")
@click.pass_obj
def db_upgrade(config: settings.Config) -> None:
    """Bring the schema up to this version's."""
    from slicemgr.store import schema

    schema.upgrade(config.store_url)


@db.command("copy")
@click.option(
    "--to",
    "target",
    required=True,
    metavar="URL",
    help="postgresql://USER@HOST/DATABASE; the password is better in $PGPASSWORD, where `ps` does not show it.",
)
@click.pass_obj
def db_copy(config: settings.Config, target: str) -> None:
    """Copy an SQLite testbed into an empty PostgreSQL database, while web and agent are stopped.

    All rows come in one transaction or none does, and numbers go on where they were. The SQLite file stays as it
    is. After that set store.url to URL, with its password, and start web and agent.
    """
    from slicemgr.stopped_service import stopped
    from slicemgr.store import copy

    with stopped(config):
        counts = copy.copy(config.store_url, target, config.store.lock_timeout)
    for table, count in counts.items():
        click.echo(f"{count:>8}  {table}")
    click.echo("All rows were copied. Set store.url to that database, then start web and agent.")


cli.add_command(backup_commands.backup)
cli.add_command(backup_commands.restore)
cli.add_command(testbed_commands.broker_files)
cli.add_command(testbed_commands.hub)
cli.add_command(testbed_commands.join)
cli.add_command(testbed_commands.link)
cli.add_command(testbed_commands.make_centre)
cli.add_command(testbed_commands.signer)


def _init(config: settings.Config) -> None:
    from slicemgr import store
    from slicemgr.service.accounts import authentication
    from slicemgr.stopped_service import alone
    from slicemgr.store import schema
    from slicemgr.web import server

    if config.joined:  # it has no accounts, and serves no pages
        server.make_directories(config)
        testbed_commands.make_mirror(config)
        return
    with alone(config.node.run_dir / "init.lock"):  # the units of web and agent start together
        server.make_directories(config)
        schema.upgrade(config.store_url)
        server.make_directories(config)  # again: the database's files now exist
        with store.open(config) as opened:
            authentication.ensure_local_admin(opened, config.node.run_dir / "client.json", server.url(config))


def _agent(config: settings.Config, stop: threading.Event | None = None) -> None:
    from slicemgr import agent_process, store

    stop = stop or _stop_on_signals()
    if config.joined:
        testbed_commands.make_mirror(config)
    with store.open(config) as opened:
        agent_process.run(config, opened, stop, ready=lambda: _ready(config.node.name))


def _ready(name: str) -> None:
    """Log that the process is ready, and notify systemd if it waits for that (sd_notify(3))."""
    log.info("agent of %s is ready", name)
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifier:
            notifier.sendto(b"READY=1", "\0" + address[1:] if address.startswith("@") else address)


def _web(config: settings.Config) -> None:
    from slicemgr.web import server

    server.serve(config)


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _end_with(child: int, stop: threading.Event) -> None:
    _, status = os.waitpid(child, 0)
    if not stop.is_set():
        log.error("the web process ended with status %s", os.waitstatus_to_exitcode(status))
    stop.set()


def main() -> None:
    """Entry point; an expected error is one line on stderr and its code's exit status."""
    try:
        try:
            cli()
        except ModuleNotFoundError as error:
            raise missing_extra(error, "node") from error
    except SlicemgrError as error:
        click.echo(f"slicemgr: {error}", err=True)
        sys.exit(error.code.exit_status)

"""The commands of a testbed with several nodes: `slicemgr signer`, `hub`, `link`, `join` and others."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slicemgr import config as settings
from slicemgr.backup_commands import SETTINGS_FILE
from slicemgr.errors import Code, Refused, invalid

if TYPE_CHECKING:
    from slicemgr.conversion.conversion import Conversion
    from slicemgr.policy.broker_settings import Update


@click.command()
@click.pass_obj
def signer(config: settings.Config) -> None:
    """Answer the certificate requests of hosts that join the testbed.

    It creates the testbed's certificate authority if there is none. No other process needs to read its key.
    """
    from slicemgr import store
    from slicemgr.agent.agent_lock import only_one
    from slicemgr.hub import signer as process

    stop = _stop_on_signals()
    with only_one(config.node.run_dir / "signer.lock", "signer"), store.open(config) as opened:
        authority = process.prepare(opened, config.authority_dir)
        click.echo(f"The certificate authority has the fingerprint {authority.fingerprint}.")
        process.run(opened, authority, stop)


@click.command()
@click.argument("url")
@click.argument("token")
@click.pass_obj
def join(config: settings.Config, url: str, token: str) -> None:
    """Make this host a node of the testbed at URL (root). `slicectl node add` prints the command with its TOKEN.

    The checks of `slicemgr doctor` must pass before anything is sent, and the host has no slivers of its own. If the
    command fails, the host is as before and TOKEN can be used again.
    """
    from slicemgr import agent_process
    from slicemgr.link import join as joining

    joining.check(url, token, config.membership_dir)
    _refuse_own_slivers(config)
    failed = [one for one in agent_process.checks(config) if one.ok is False]
    if failed:
        names = ", ".join(one.name for one in failed)
        raise Refused(Code.CONFLICT, f"this host lacks something: {names}", hint="see `slicemgr doctor`")
    joined = joining.join(url, token, config.membership_dir)
    site = f" of site {joined.site}" if joined.site else ""
    click.echo(f"This host is now node {joined.node}{site}. Nothing was started; next:")
    click.echo("  systemctl stop 'slicemgr-*'")
    click.echo("  systemctl enable --now slicemgr-agent slicemgr-link")


def _refuse_own_slivers(config: settings.Config) -> None:
    """The agent of a host that has joined works on the rows of the testbed, and would not manage others."""
    from slicemgr import store
    from slicemgr.service.nodes import membership
    from slicemgr.store.url import SQLITE, parse

    url = parse(config.store_url)
    if url.get_backend_name() == SQLITE and not Path(url.database or "").exists():
        return
    with store.open(config) as opened:
        membership.refuse_own(opened, config.node.name)


@click.command("broker-files")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--listen", default="0.0.0.0", help="The address at which the broker listens.")
@click.option("--update", "updating", is_flag=True, help="Only change outdated limits in FOLDER/rabbitmq.conf.")
@click.pass_obj
def broker_files(config: settings.Config, folder: Path, listen: str, updating: bool) -> None:
    """Write the configuration of RabbitMQ to the new directory FOLDER, and the certificate of the hub.

    `hub.broker` in the settings has its name and port, `hub.management` the port of its management API.

    With --update, lines of an existing rabbitmq.conf that an earlier version wrote are replaced, and those that an
    administrator wrote stay.
    """
    from slicemgr.certificates.authority import Authority
    from slicemgr.hub import broker_files as files

    _place(config)
    folder = folder.absolute()
    if updating:
        _say_update(folder, files.update(folder))
        return
    files.write(config, Authority.load(config.authority_dir), folder, listen)
    click.echo(f"Start RabbitMQ with RABBITMQ_CONF_ENV_FILE={folder}/{files.ENVIRONMENT}, then `slicemgr hub`.")


def _say_update(folder: Path, found: Update) -> None:
    for sign, lines in (("-", found.removed), ("+", found.added)):
        for line in lines:
            click.echo(f"{sign} {line}")
    for line in found.kept:
        click.echo(f"kept, as it was not written by slicemgr: {line}")
    click.echo("Now restart RabbitMQ." if found.added else f"There is nothing to change in {folder}.")


@click.command()
@click.pass_obj
def hub(config: settings.Config) -> None:
    """Connect the database of the testbed to its nodes, through the broker. It needs PostgreSQL.

    Started as root, it becomes the owner of its files, which is `hub.user`, before it works.
    """
    from slicemgr import store
    from slicemgr.hub import chores, owner, process
    from slicemgr.store.url import SQLITE, parse

    _place(config)
    if parse(config.store_url).get_backend_name() == SQLITE:
        hint = "move the rows to PostgreSQL with `slicemgr db copy`"
        raise invalid("store.url", "SQLite is for one machine", hint)
    stop = _stop_on_signals()
    owner.become(config.hub_dir, config.hub_socket.parent, config.web.user)
    with store.open(config) as opened:
        process.run(config, opened, stop, chores=lambda: chores.runner(config, opened))


@click.command()
@click.pass_obj
def link(config: settings.Config) -> None:
    """Connect this node to the centre of the testbed that it has joined, and keep its certificate valid."""
    from slicemgr import store
    from slicemgr.agent.agent_lock import only_one
    from slicemgr.link import beats, membership, renewal

    stop = _stop_on_signals()
    found = membership.read(config.membership_dir)
    with only_one(config.node.run_dir / "link.lock", "link"):
        make_mirror(config)
        threading.Thread(target=renewal.run, args=(config.membership_dir, stop), name="renewal", daemon=True).start()
        with store.open(config) as opened:
            beats.Link(config, found, opened, stop).run()


@click.command("make-centre")
@click.option(
    "--database",
    metavar="URL",
    default="",
    help="An empty database: postgresql://USER@HOST/DATABASE. The password is better in $PGPASSWORD.",
)
@click.option("--broker", metavar="HOST:PORT", default="", help="The name and port at which nodes reach the broker.")
@click.option("--listen", default="0.0.0.0", help="The address at which the broker listens.")
@click.option("--check", "checking", is_flag=True, help="Only check whether it would work.")
@click.option("--undo", "undoing", is_flag=True, help="Undo what an interrupted attempt has begun.")
@click.option(
    "--service-control",
    "control",
    default="systemctl",
    metavar="PROGRAM",
    help="A program that starts and stops the services, with the words of systemctl.",
)
@click.pass_context
def make_centre(
    context: click.Context, database: str, broker: str, listen: str, checking: bool, undoing: bool, control: str
) -> None:
    """Make this machine the centre of a testbed of several nodes, and its first node (root).

    The rows move from SQLite to PostgreSQL, RabbitMQ and the hub are started, and the settings are changed. Slivers
    continue to run; the web page is not available meanwhile. If a step fails, all are undone. The SQLite file is not
    changed.
    """
    from slicemgr.conversion import conversion as conversions
    from slicemgr.conversion import steps
    from slicemgr.conversion.units import Units

    if undoing and (database or broker or checking):
        raise invalid("--undo", "needs no other options")
    config: settings.Config = context.obj
    path = context.meta[SETTINGS_FILE].resolve()
    target = "" if undoing else _database(database)
    made = conversions.Conversion(config, path, target, _valid_broker(broker, undoing), listen, Units(control))

    def say(text: str) -> None:
        click.echo(f"  {text}")

    if undoing:
        conversions.undo(made, steps.steps(), say)
        return
    if made.record.exists():
        hint = "undo it first: `slicemgr make-centre --undo`"
        raise Refused(Code.CONFLICT, "an earlier attempt was interrupted", hint=hint)
    _examine(made)
    if checking:
        return
    _interrupt_on_signals()
    conversions.run(made, steps.steps(), say)
    click.echo("This machine is the centre of a testbed, and its first node. Add others with `slicectl node add`.")


def _database(url: str) -> str:
    """The URL with its password."""
    from slicemgr.store.url import parse

    if not url:
        raise invalid("--database", "is missing", "such as postgresql://slicemgr@127.0.0.1/slicemgr")
    parsed, password = parse(url, "--database"), os.environ.get("PGPASSWORD", "")
    if parsed.password is None and password:
        parsed = parsed.set(password=password)
    return parsed.set(drivername=parsed.get_backend_name()).render_as_string(hide_password=False)


def _valid_broker(place: str, undoing: bool) -> str:
    host, _, port = place.rpartition(":")
    if not undoing and not (host and port.isdecimal()):
        raise invalid("--broker", f"{place!r} is not a host and a port", "such as testbed.example:5671")
    return place


def _examine(made: Conversion) -> None:
    """Print the checks. Refused if one fails."""
    from slicemgr.conversion import checks

    found = checks.examine(made)
    for one in found:
        click.echo(f"{'ok  ' if one.ok else 'FAIL'} {one.name}: {one.detail}")
        if one.remedy:
            click.echo(f"     → {one.remedy}")
    if not all(one.ok for one in found):
        raise Refused(Code.CONFLICT, "this machine cannot become a centre yet", hint="nothing was changed")


def _interrupt_on_signals() -> None:
    """The first one ends the conversion, which is then undone; that is not interrupted."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def interrupt(number: int, frame: object) -> None:
        for one in numbers:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    for one in numbers:
        signal.signal(one, interrupt)


def make_mirror(config: settings.Config) -> None:
    """Make or upgrade the database of a host that has joined a testbed. Only root reads it."""
    from slicemgr.stopped_service import alone
    from slicemgr.store import schema

    with alone(config.node.run_dir / "init.lock"):
        config.mirror_file.touch(mode=0o600)
        schema.upgrade(config.store_url)


def _place(config: settings.Config) -> tuple[str, int]:
    host, _, port = config.hub.broker.rpartition(":")
    if not host:
        raise invalid("hub.broker", "is missing", "such as testbed.example:5671")
    return host.strip("[]"), int(port)


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop

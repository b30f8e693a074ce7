"""`slicemgr signer`, `hub`, `link`, `join`, `broker-files`: the commands of a testbed with several nodes."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from slicemgr import config as settings
from slicemgr.errors import Code, Refused, invalid


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
    click.echo(f"This host is now node {joined.node}{site}.")


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
@click.pass_obj
def broker_files(config: settings.Config, folder: Path, listen: str) -> None:
    """Write the configuration of RabbitMQ to the new directory FOLDER, and the certificate of the hub.

    `hub.broker` in the settings has its name and port, `hub.management` the port of its management API.
    """
    import secrets

    from slicemgr.certificates.authority import Authority
    from slicemgr.hub import broker_files as files
    from slicemgr.hub import owner

    (host, port), folder = _place(config), folder.absolute()
    authority, password = Authority.load(config.authority_dir), secrets.token_urlsafe(24)
    management = int(config.hub.management.rpartition(":")[2])
    files.write_client(authority, config.hub_dir, "hub", password)
    if owner.exists(config.hub.user):
        owner.give(config.hub_dir, config.hub.user)
    files.write_broker(authority, folder, [host], (listen, port), management, password)
    click.echo(f"Start RabbitMQ with RABBITMQ_CONF_ENV_FILE={folder}/{files.ENVIRONMENT}, then `slicemgr hub`.")


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
    owner.become(config.hub_dir, config.hub_socket.parent)
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

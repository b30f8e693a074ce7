"""`slicemgr signer` and `slicemgr join`: the processes and commands of a testbed with several nodes."""

from __future__ import annotations

import signal
import threading

import click

from slicemgr import config as settings
from slicemgr.errors import Code, Refused


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

    The checks of `slicemgr doctor` must pass before anything is sent. If the command fails, the host is as before.
    """
    from slicemgr import agent_process
    from slicemgr.link import join as joining

    joining.check(url, token, config.membership_dir)
    failed = [one for one in agent_process.checks(config) if one.ok is False]
    if failed:
        names = ", ".join(one.name for one in failed)
        raise Refused(Code.CONFLICT, f"this host lacks something: {names}", hint="see `slicemgr doctor`")
    joined = joining.join(url, token, config.membership_dir)
    site = f" of site {joined.site}" if joined.site else ""
    click.echo(f"This host is now node {joined.node}{site}.")


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop

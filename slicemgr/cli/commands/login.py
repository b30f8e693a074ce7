"""slicectl login and logout: the token of this computer for a service on another one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from slicemgr.cli.shared import ask_password
from slicemgr.errors import Code, Refused, SlicemgrError

if TYPE_CHECKING:
    from collections.abc import Iterator

_ON_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


@click.command()
@click.argument("url")
@click.option("--user", help="User name  [default: prompt].")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@click.option(
    "--token-stdin", is_flag=True, help="Read a token from standard input. Create it on the page Keys and tokens."
)
@click.option(
    "--scope", type=click.Choice(["read", "write"]), default="write", show_default=True, help="Rights of the token."
)
@click.option("--expires", help="Validity of the token, such as 30d.")
def login(url: str, user: str | None, password_stdin: bool, token_stdin: bool, scope: str, expires: str | None) -> None:
    """Sign in to the service at URL. All later commands use this service.

    The password is exchanged for a token, which is stored in ~/.config/slicemgr/client.json. Users without a password
    create a token in the browser and use --token-stdin.
    """
    from slicemgr.cli.render.errors import say
    from slicemgr.client import Client
    from slicemgr.client.settings import user_file, write_settings

    file = user_file()
    if token_stdin:
        _keep(url, ask_password("Token", from_stdin=True).strip(), user)
        return
    with Client(url, "") as client:
        for line in _warnings(url):
            say(line)
        name = user or str(click.prompt("User", err=True))
        password = ask_password("Password", from_stdin=password_stdin)
        made = client.account.login(
            name, password, label=f"slicectl on {os.uname().nodename}", scope=scope, expires=expires
        )
        write_settings(file, client.url, made["token"])
    say(f"signed in as {made['user']} until {made['expires_at']}; the token is stored in {file}")


def _keep(url: str, token: str, user: str | None) -> None:
    """Store a token that was created elsewhere, after a request with it has succeeded."""
    from slicemgr.cli.render.errors import say
    from slicemgr.client import Client
    from slicemgr.client.settings import user_file, write_settings
    from slicemgr.errors import invalid

    with Client(url, token) as client:
        for line in _warnings(url):
            say(line)
        me = client.account.get()
        if user not in (None, me["name"]):
            raise invalid("--user", f"the token belongs to {me['name']}")
        write_settings(user_file(), client.url, token)
    say(f"signed in as {me['name']}; the token is stored in {user_file()}")


def _warnings(url: str) -> Iterator[str]:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in _ON_THIS_MACHINE:
        yield "the secret is sent unencrypted; use https except on a single computer"
    if os.environ.get("SLICEMGR_URL"):
        yield "SLICEMGR_URL is set and overrides the stored URL"


@click.command()
def logout() -> None:
    """Revoke and delete the token of `slicectl login`."""
    from slicemgr.cli.render.errors import say
    from slicemgr.client import Client
    from slicemgr.client.settings import find_settings, user_file

    file = user_file()
    if not file.exists():
        raise Refused(Code.NOT_FOUND, f"you are not signed in ({file} does not exist)", hint="`slicectl login URL`")
    found = find_settings({}, [file])
    try:
        with Client(found.url, found.token, source=found.source) as client:
            client.account.logout()
    except SlicemgrError as error:
        if error.code not in (Code.UNAUTHENTICATED, Code.UNAVAILABLE):
            raise
        if error.code is Code.UNAVAILABLE:
            say(f"the token was not revoked: {error.message}; revoke it later with `slicectl token revoke`")
    file.unlink(missing_ok=True)

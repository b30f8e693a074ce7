"""The settings of OpenID Connect."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

from slicemgr.errors import invalid

_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class OidcConfig:
    """issuer "": no sign-in with OpenID Connect. domains (): only invited users get an account."""

    issuer: str = ""  # its identifier: the metadata is read from `/.well-known/openid-configuration` below it
    client_id: str = ""
    client_secret_file: str = ""  # readable by the web process; "": a public client
    name: str = "OpenID Connect"  # the label of the button
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    claim: str = "preferred_username"  # the claim for the names of new accounts
    domains: tuple[str, ...] = ()  # users with a verified address in these domains get an account
    admin_claim: str = ""  # such as groups; "": no claim makes a user an admin
    admin_values: tuple[str, ...] = ()
    passwords: bool = True  # whether users may also sign in with passwords
    ca_file: str = ""  # trusted certificate authorities; "": those of the system
    timeout: timedelta = timedelta(seconds=5)  # for each response of the issuer


def secure(url: str) -> bool:
    """Whether the connection to this URL is private: https, or to this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and loopback))


def check(oidc: OidcConfig, web_url: str) -> None:
    """Refused(INVALID), with the setting's name."""
    if not oidc.issuer:
        if oidc != OidcConfig():
            raise invalid("oidc.issuer", "is missing", "such as https://login.example.org, or leave [oidc] out")
        return
    parts = urlsplit(oidc.issuer)
    if not secure(oidc.issuer) or parts.query or parts.fragment:
        raise invalid("oidc.issuer", f"{oidc.issuer!r} is not a trusted URL", "such as https://login.example.org")
    if not oidc.client_id:
        raise invalid("oidc.client_id", "is missing", "set the client id of this service")
    if not web_url:
        raise invalid(
            "web.url", "is missing", "set the URL to which the issuer redirects users, such as https://testbed.example"
        )
    if "openid" not in oidc.scopes:
        raise invalid("oidc.scopes", "must have openid", '["openid", "profile", "email"]')
    for domain in oidc.domains:
        if not _DOMAIN.fullmatch(domain):
            raise invalid("oidc.domains", f"{domain!r} is not a domain", "such as example.org, in lower case")
    if bool(oidc.admin_claim) != bool(oidc.admin_values):
        missing = "admin_values" if oidc.admin_claim else "admin_claim"
        raise invalid(
            f"oidc.{missing}", "is missing", 'such as admin_claim = "groups", admin_values = ["testbed-admins"]'
        )
    if not timedelta(seconds=1) <= oidc.timeout <= timedelta(seconds=30):
        raise invalid("oidc.timeout", "must lie between 1s and 30s")

"""`slicemgr join`: get this host a certificate of a testbed, with a token of one use.

The host makes its key itself. It sends the token over TLS alone, to a server that the system's authorities or the
testbed's own vouch for; the fingerprint in the token names the latter.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import socket
import ssl
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from hmac import compare_digest
from pathlib import Path
from urllib.parse import urlsplit

from slicemgr.certificates import requests
from slicemgr.certificates.private_files import write_private
from slicemgr.config import CENTRE
from slicemgr.errors import Code, Failed, Refused, invalid
from slicemgr.link.centre import TIMEOUT, call, clock_hint, shown, text, trust

log = logging.getLogger(__name__)

_TOKEN = re.compile(r"([A-Za-z0-9_-]{43})#([0-9a-f]{64})")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_PATIENCE = 120.0  # seconds until the signer has answered
_INTERVAL = 1.0
KEY, CERTIFICATE, AUTHORITY = "key.pem", "certificate.pem", "authority.pem"


@dataclass(frozen=True, slots=True)
class Joined:
    node: str
    site: str
    identity: str


def check(url: str, token: str, folder: Path) -> tuple[str, str]:
    """The secret of the token and the fingerprint of the authority. Refused before anything is sent."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise invalid("URL", f"{url[:200]!r} is not the URL of a testbed", "such as https://testbed.example")
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise invalid("URL", "http would send the token unencrypted", "use https")
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise invalid("TOKEN", "is not complete", "copy the whole line that `slicectl node add` printed")
    if folder.exists():
        raise Refused(Code.CONFLICT, "this host has already joined a testbed", hint=f"its membership is {folder}")
    return found[1], found[2]


def join(url: str, token: str, folder: Path, patience: float = _PATIENCE) -> Joined:
    """Write key, certificate, authority and URL to a new folder. On an error there is none, and the token is unused.

    patience: seconds to wait for the signer. Refused: the token is not valid. Failed: the testbed cannot be reached, or
    is not the one that the token is of.
    """
    secret, fingerprint = check(url, token, folder)
    authority = _authority(url, fingerprint)
    _check_broker(_broker(url, authority), authority)
    key = requests.new_key()
    asked = {"token": secret, "request": requests.new_request(key)}
    with _withdrawn_on_failure(url, authority, asked):
        answer = _certificate(url, authority, asked, patience)
        identity = requests.check_issued(answer["certificate"], authority, key)
        joined = Joined(answer["node"], answer["site"], identity)
        centre = {"url": url, "broker": answer["broker"], **asdict(joined)}
        _write(
            folder,
            {
                KEY: requests.key_pem(key),
                CERTIFICATE: answer["certificate"].encode(),
                AUTHORITY: authority.encode(),
                CENTRE: (json.dumps(centre, indent=2) + "\n").encode(),
            },
        )
    return joined


@contextmanager
def _withdrawn_on_failure(url: str, authority: str, asked: dict[str, str]) -> Iterator[None]:
    """The testbed forgets a request whose host did not join, and the token can be used again."""
    try:
        yield
    except BaseException:
        try:
            call(url, "POST", "/join/withdraw", asked, trust(authority))
        except Refused:
            pass  # the testbed has not accepted the request
        except Failed as error:
            log.warning("the testbed may still wait for this host: `slicectl node remove` there removes it: %s", error)
        raise


def _authority(url: str, fingerprint: str) -> str:
    """The certificate with that fingerprint: it alone decides, whoever the server is."""
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    found = text(call(url, "GET", "/authority", None, unchecked), "certificate")
    if not compare_digest(requests.fingerprint(found), fingerprint):
        hint = "another server answers at this URL, or the line was not copied whole"
        raise Failed("the certificate authority at this URL is not the one that the token names", hint=hint)
    return found


def _broker(url: str, authority: str) -> str:
    """The place of the broker, HOST:PORT; "": there is none. Of a server with a valid certificate."""
    answer = call(url, "GET", "/authority", None, trust(authority))
    return text({"broker": "", **answer}, "broker", empty=True)


def _check_broker(place: str, authority: str) -> None:
    """Failed unless a server with a certificate of the authority answers there: the node will need it."""
    host, _, port = place.rpartition(":")
    if not host:
        return
    name, context = host.strip("[]"), ssl.create_default_context(cadata=authority)
    try:
        with socket.create_connection((name, int(port)), timeout=TIMEOUT) as plain:
            context.wrap_socket(plain, server_hostname=name).close()
    except (OSError, ValueError) as error:
        hint = "this host must be able to connect to it: check firewalls, and whether RabbitMQ is running"
        hint = clock_hint(error) or hint
        raise Failed(f"the broker of the testbed at {shown(place)} cannot be reached: {error}", hint=hint) from error


def _certificate(url: str, authority: str, asked: dict[str, str], patience: float) -> dict[str, str]:
    context = trust(authority)
    end = time.monotonic() + patience
    hint = "is `slicemgr signer` running at the centre? Get a new line with `slicectl node add`"
    failure = Failed("the testbed did not issue a certificate", hint=hint)
    while True:
        try:
            answer = call(url, "POST", "/join", asked, context)
        except Failed as error:
            if error.code is not Code.UNAVAILABLE:
                raise
            failure = error
        else:
            found = {name: text(answer, name, empty=True) for name in ("node", "site", "certificate")}
            found["broker"] = text({"broker": "", **answer}, "broker", empty=True)
            if found["certificate"]:
                return found
        if time.monotonic() > end:
            raise failure
        time.sleep(min(_INTERVAL, patience))


def _write(folder: Path, files: dict[str, bytes]) -> None:
    """All files, or no folder: it gets its name after they are on the disk."""
    folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with ExitStack() as undo:
        fresh = Path(tempfile.mkdtemp(prefix=".join-", dir=folder.parent))
        undo.callback(shutil.rmtree, fresh, ignore_errors=True)
        for name, content in files.items():
            write_private(fresh / name, content)
        try:
            fresh.rename(folder)
        except OSError as error:
            raise Refused(Code.CONFLICT, f"{folder} cannot be written: {error.strerror}") from error
        undo.pop_all()

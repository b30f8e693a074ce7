"""Renew the certificate of this host in the last third of its life. The link does it beside its reports."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from datetime import datetime
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from slicemgr.certificates import requests
from slicemgr.certificates.private_files import write_private
from slicemgr.config import CENTRE
from slicemgr.errors import Failed, SlicemgrError
from slicemgr.link.centre import call, text, trust
from slicemgr.link.join import AUTHORITY, CERTIFICATE, KEY
from slicemgr.store.updates import utcnow

log = logging.getLogger(__name__)

_INTERVAL = 3600.0  # seconds between two looks at the certificate
_PATIENCE = 120.0  # seconds until the signer has answered
_PAUSE = 1.0


def run(folder: Path, stop: threading.Event) -> None:
    """Keep the certificate valid until stopped. folder: the membership."""
    while not stop.is_set():
        try:
            if is_due(folder, utcnow()):
                renew(folder)
                log.info("the certificate of this host was renewed")
        except (SlicemgrError, OSError, ValueError, KeyError) as error:
            log.warning("the certificate of this host could not be renewed: %s", error)
        stop.wait(_INTERVAL * random.uniform(0.5, 1.0))


def is_due(folder: Path, now: datetime) -> bool:
    """Whether two thirds of the life of the certificate are over."""
    found = requests.load((folder / CERTIFICATE).read_text())
    begin, end = found.not_valid_before_utc, found.not_valid_after_utc
    return now > begin + (end - begin) * 2 / 3


def renew(folder: Path, patience: float = _PATIENCE) -> None:
    """Replace the certificate by a new one for the same key. Raises Refused or Failed; the present one then stays."""
    url, authority = str(json.loads((folder / CENTRE).read_text())["url"]), (folder / AUTHORITY).read_text()
    key = serialization.load_pem_private_key((folder / KEY).read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise Failed(f"{folder / KEY} is not the key of a node")
    identity = requests.common_name(requests.load((folder / CERTIFICATE).read_text()))
    found = _new_certificate(url, authority, {"identity": identity, "request": requests.new_request(key)}, patience)
    if requests.check_issued(found, authority, key) != identity:
        raise Failed("the testbed issued a certificate for another node")
    fresh = folder / f"{CERTIFICATE}.new"
    fresh.unlink(missing_ok=True)
    write_private(fresh, found.encode())
    fresh.replace(folder / CERTIFICATE)


def _new_certificate(url: str, authority: str, asked: dict[str, str], patience: float) -> str:
    end = time.monotonic() + patience
    while True:
        found = text(call(url, "POST", "/renew", asked, trust(authority)), "certificate", empty=True)
        if found:
            return found
        if time.monotonic() > end:
            hint = "is `slicemgr signer` running at the centre?"
            raise Failed("the testbed did not issue a certificate", hint=hint)
        time.sleep(min(_PAUSE, patience))

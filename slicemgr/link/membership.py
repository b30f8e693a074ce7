"""What this host has of its testbed, as `slicemgr join` wrote it."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicemgr.config import CENTRE
from slicemgr.errors import Code, Failed, Refused
from slicemgr.link.join import AUTHORITY, CERTIFICATE, KEY


@dataclass(frozen=True, slots=True)
class Membership:
    """broker: HOST:PORT; "": the testbed had none when this host joined."""

    folder: Path
    node: str
    identity: str
    broker: str

    @property
    def tls(self) -> dict[str, Any]:
        """Options for TLS: this host's certificate, and the testbed's authority as the only one."""
        host, _, _ = self.broker.rpartition(":")
        return {
            "ca_certs": str(self.folder / AUTHORITY),
            "certfile": str(self.folder / CERTIFICATE),
            "keyfile": str(self.folder / KEY),
            "cert_reqs": ssl.CERT_REQUIRED,
            "server_hostname": host.strip("[]"),
        }


def read(folder: Path) -> Membership:
    """Refused(CONFLICT) if this host has not joined a testbed with a broker."""
    try:
        raw = json.loads((folder / CENTRE).read_text())
        found = Membership(folder, str(raw["node"]), str(raw["identity"]), str(raw.get("broker", "")))
    except FileNotFoundError as error:
        hint = "run the line that `slicectl node add` printed"
        raise Refused(Code.CONFLICT, "this host has not joined a testbed", hint=hint) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failed(f"{folder / CENTRE} cannot be read: {error}") from error
    if not found.broker:
        hint = "an admin sets hub.broker there, then this host joins again"
        raise Refused(Code.CONFLICT, "the testbed had no broker when this host joined", hint=hint)
    return found

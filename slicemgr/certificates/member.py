"""The membership of this host in a testbed, as far as it is needed to fetch files from the service."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from slicemgr.config import CENTRE
from slicemgr.errors import Failed

KEY, CERTIFICATE, AUTHORITY = "key.pem", "certificate.pem", "authority.pem"  # as `slicemgr join` writes them


@dataclass(frozen=True, slots=True)
class Member:
    """url: of the service. identity: the name in the certificate of this host. folder: with its key."""

    folder: Path
    url: str
    identity: str


def find(folder: Path) -> Member | None:
    """None if this host has not joined a testbed. Failed if its membership is damaged."""
    file = folder / CENTRE
    try:
        raw = json.loads(file.read_text())
        return Member(folder, str(raw.get("url", "")), str(raw["identity"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Failed(f"{file} cannot be read: {error}", hint="let this host join the testbed again") from error

"""The records of slivers in the pool: written when a sliver changes, read when the database lost its row."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from slicemgr import names, sliver_record
from slicemgr.drivers.guest import authorized_keys
from slicemgr.drivers.storage import atomic_file
from slicemgr.errors import Refused
from slicemgr.model import Sliver

log = logging.getLogger(__name__)


def write(pool: Path, sliver: Sliver) -> None:
    """Write the record of a sliver whose directory exists, unless it has the same content.

    A sliver that has reached its disk limit keeps its older record: that is no reason to refuse its start.
    """
    file, text = names.record_file(pool, sliver.id), json.dumps(sliver_record.to_json(sliver))
    with suppress(OSError):
        if file.read_text() == text:
            return
    try:
        atomic_file.write(file, text)
    except OSError as error:
        log.warning("the record of %s cannot be written: %s", sliver.id, error)


def write_missing(pool: Path, slivers: Iterable[Sliver]) -> None:
    """Write the records of slivers that an earlier version created."""
    for one in slivers:
        if not one.spare and names.sliver_dir(pool, one.id).is_dir() and not names.record_file(pool, one.id).exists():
            write(pool, one)


def read(pool: Path, sliver: str) -> Sliver | None:
    """The sliver of a record, with its host key and the keys installed last; None if there is no valid record."""
    try:
        found = sliver_record.from_json(json.loads(names.record_file(pool, sliver).read_text()))
    except (OSError, ValueError, Refused):
        return None
    if found.id != sliver:
        return None
    with suppress(OSError):
        found = replace(found, host_key=(names.sliver_dir(pool, sliver) / "host_key.pub").read_text().strip())
    note = authorized_keys.read_note(pool, sliver)
    return found if note is None else replace(found, ssh_keys=note.now)

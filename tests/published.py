"""Reports of experiments for publication: the folder of a run, its archive, and a row with its files."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy.engine import Connection

from slicemgr.config import Config
from slicemgr.store import tables as t
from slicemgr.store.updates import utcnow

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000"
    "050001a5f645400000000049454e44ae426082"
)
RUN: dict[str, Any] = {
    "experiment": "scale",
    "outcome": "200 containers take\n4.9 MiB each.",
    "started": "2026-01-31T12:00:00Z",
    "parameters": {"node": "node1", "to": 200},
}
REPORT = "<!doctype html><title>Scale</title><h1>Scale</h1><script>new Image().src = '/healthz?ran'</script>"


def content(report: str = REPORT, **run: Any) -> dict[str, bytes]:
    """The files of a report. run: changes of run.json; None removes a field."""
    info = {key: value for key, value in {**RUN, **run}.items() if value is not None}
    return {
        "report.html": report.encode(),
        "report.md": b"# Scale\n",
        "data.csv": b"n,memory\n1,2\n",
        "data.json": b"[]",
        "run.json": json.dumps(info).encode(),
        "memory.png": PIXEL,
    }


def write(folder: Path, files: Mapping[str, bytes] | None = None) -> Path:
    """Write the folder of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in (content() if files is None else files).items():
        (folder / name).write_bytes(data)
    return folder


def packed(files: Mapping[str, bytes] | None = None, more: Iterable[tuple[tarfile.TarInfo, bytes]] = ()) -> bytes:
    """A tar archive of these files and other members."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for name, data in (content() if files is None else files).items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for member, data in more:
            tar.addfile(member, io.BytesIO(data))
    return target.getvalue()


def row(id: str, **more: Any) -> dict[str, Any]:
    """A row of the table, for a report of `content()`."""
    files: list[dict[str, Any]] = [{"name": name, "size": len(data)} for name, data in content().items()]
    row = {"name": "Scale to 200", "kind": "scale", "node": "node1", "summary": "4.9 MiB each.", "public": True}
    row |= {"published_by": "root", "published_at": utcnow(), "size": sum(one["size"] for one in files)}
    return {"id": id, "sha256": id * 4, "files": files, **row, **more}


def add(c: Connection, config: Config, id: str, **more: Any) -> None:
    """Insert a published experiment, without a check of the user's rights."""
    c.execute(t.experiments.insert().values(**row(id, **more)))
    write(config.experiments_dir / id)

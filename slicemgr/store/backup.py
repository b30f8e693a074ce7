"""Back up the rows into an archive, and restore them into a database of either kind.

The rows of a backup are of one moment. A restore changes the database completely or not at all. Its agents are on hold
afterwards (see store.incarnation), because the rows are older than the hosts.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from dataclasses import replace as replace_values
from datetime import timedelta
from pathlib import Path
from typing import IO

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from slicemgr import __version__
from slicemgr.errors import Code, Failed, Refused, invalid
from slicemgr.model import DEFAULT_PROJECT
from slicemgr.store import archive, incarnation, postgresql, rows, schema
from slicemgr.store import tables as t
from slicemgr.store.archive import Archive, Manifest
from slicemgr.store.diagnosis import StoreError, explained
from slicemgr.store.engine import Store, make_engine
from slicemgr.store.updates import utcnow
from slicemgr.store.url import SQLITE, parse

# Credentials of short validity, which a restore must not make valid again, and reports of agents.
_NEVER = (
    *("sessions", "sign_in_links", "consoles", "dials", "invitations", "answers", "joins"),
    *("host_reports", "unclaimed"),
)
SAMPLES = ("samples", "node_samples")
_INITIAL = {"users": (schema.ADMIN,), "projects": (DEFAULT_PROJECT,), "images": (), "slices": ()}
_REFLECTED = "alembic_version"
_LOCK_TIMEOUT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Restored:
    """rows: of each table. kept: the files of the earlier SQLite database. tokens: API tokens that are valid again."""

    rows: Mapping[str, int]
    incarnation: int
    tokens: int
    kept: tuple[Path, ...] = ()


def save(
    store: Store,
    path: Path,
    node: str,
    files: Mapping[str, bytes],
    paths: Mapping[str, str],
    *,
    secrets: bool,
    samples: bool = True,
) -> Manifest:
    """Write the archive of a database of this version. Refused or Failed without leaving a file.

    files: the contents of the files of settings. paths: where these are. samples: whether to include measurements.
    """
    if not path.parent.is_dir() or path.exists() or path.is_symlink():
        wrong = "exists" if path.parent.is_dir() else "is in a directory that does not exist"
        raise invalid("FILE", f"{path} {wrong}", "give the name of a new file")
    left_out = (*_NEVER, *(() if samples else SAMPLES))
    names = [table.name for table in t.metadata.sorted_tables if table.name not in left_out]
    with ExitStack() as stack:
        dumps: dict[str, IO[bytes]] = {
            name: stack.enter_context(tempfile.TemporaryFile(dir=path.parent)) for name in names
        }
        with store.read() as c, _room(path):
            now = utcnow()
            tables = {name: archive.digest(rows.dump(c, t.metadata.tables[name]), dumps[name]) for name in names}
            numbers = {name: rows.last_number(c, t.metadata.tables[name]) for name in names}
            i = t.images.c
            images = c.execute(sa.select(i.sha256, i.name, i.format).order_by(i.name)).mappings().all()
        manifest = Manifest(
            version=__version__,
            revision=schema.HEAD,
            created_at=now,
            node=node,
            tables=tables,
            files={name: archive.part(content) for name, content in files.items()},
            numbers={name: number for name, number in numbers.items() if number is not None},
            images=tuple(dict(one) for one in images),
            secrets=secrets,
            left_out=left_out,
            paths=paths,
        )
        archive.write(path, manifest, dumps, files)
    return manifest


@contextmanager
def _room(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Failed(f"rows cannot be written beside {path}: {error.strerror}", hint="no file was left") from error


def restore(url: str, source: Archive, *, replace: bool) -> Restored:
    """Replace the database at `url` by the rows of the archive, on hold. No other process may use the database.

    replace: also if it has people, projects, images or slices. Refused or Failed: the database is as before.
    """
    _check(source.manifest)
    parsed = parse(url)
    if parsed.get_backend_name() != SQLITE:
        return _restore_postgresql(url, source, replace=replace)
    if not parsed.database or parsed.database.startswith("file:") or parsed.database == ":memory:":
        raise Refused(Code.INVALID, "the database is not a file", hint="sqlite:////PATH/FILE.db", field="store.url")
    return _restore_sqlite(Path(parsed.database), source, replace=replace)


def _check(manifest: Manifest) -> None:
    if manifest.revision not in schema.REVISIONS:
        message = f"the backup is of slicemgr {manifest.version} (schema {manifest.revision}), newer than this version"
        raise Refused(Code.CONFLICT, message, hint=f"this is slicemgr {__version__}: install a newer one", field="FILE")


def _restore_postgresql(url: str, source: Archive, *, replace: bool) -> Restored:
    with Store(make_engine(url, _LOCK_TIMEOUT)) as store, explained(), store.engine.begin() as c:
        postgresql.prepare(c)
        present = set(sa.inspect(c).get_table_names())
        if present:
            _refuse_foreign(present)
            if not replace:
                _refuse_full(c)
            for name in sorted(present):
                c.exec_driver_sql(f"DROP TABLE {c.dialect.identifier_preparer.quote(name)} CASCADE")
        schema.run_migrations(c, source.manifest.revision)
        counts = _load(c, source)
        schema.run_migrations(c)
        schema.seed(c)
        return _begin(c, source, counts)


def _restore_sqlite(path: Path, source: Archive, *, replace: bool) -> Restored:
    if path.exists() and not replace:
        with Store(make_engine(f"sqlite:///{path}", _LOCK_TIMEOUT)) as store, store.read() as c:
            present = set(sa.inspect(c).get_table_names())
            if present:
                _refuse_foreign(present)
                _refuse_full(c)
    with tempfile.TemporaryDirectory(prefix=".restore-", dir=_workplace(path)) as folder:
        fresh = Path(folder) / path.name
        restored = _fill(f"sqlite:///{fresh}", source)
        fresh.chmod(0o600)
        return replace_values(restored, kept=_exchange(path, fresh))


def _workplace(path: Path) -> Path:
    """Where the new file is made: above the directory of the database, in which the web process can replace files."""
    above, folder = path.parent.parent, path.parent
    return above if above.stat().st_dev == folder.stat().st_dev and os.access(above, os.W_OK) else folder


def _fill(url: str, source: Archive) -> Restored:
    schema.upgrade(url, source.manifest.revision)
    with Store(make_engine(url, _LOCK_TIMEOUT)) as store, store.write() as c:
        counts = _load(c, source)
    schema.upgrade(url)
    with Store(make_engine(url, _LOCK_TIMEOUT)) as store:
        with store.write() as c:
            restored = _begin(c, source, counts)
        with closing(store.engine.raw_connection()) as raw:  # one file from here on, without a log beside it
            raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return restored


def _exchange(path: Path, fresh: Path) -> tuple[Path, ...]:
    """Put the new file in place of the earlier one, which keeps another name with its log; those names."""
    suffix = f".before-restore-{utcnow():%Y%m%dT%H%M%S.%fZ}"
    kept = []
    if path.exists():
        aside = path.with_name(path.name + suffix)
        os.link(path, aside, follow_symlinks=False)
        kept.append(aside)
        for ending in ("-wal", "-shm"):  # otherwise SQLite would replay the earlier log into the new file
            log = path.with_name(path.name + ending)
            if log.exists():
                log.rename(path.with_name(aside.name + ending))
                kept.append(path.with_name(aside.name + ending))
    with fresh.open("rb") as content:
        os.fsync(content.fileno())
    fresh.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return tuple(kept)


def _refuse_foreign(present: set[str]) -> None:
    foreign = present - {*t.metadata.tables, _REFLECTED} if _REFLECTED in present else present
    if foreign:
        message = f"the database belongs to another program or version: it has a table {min(foreign)!r}"
        raise StoreError(message, "give slicemgr a database of its own")


def _refuse_full(c: Connection) -> None:
    """Refuse a database with more than `slicemgr init` inserts."""
    found = rows.reflect(c)
    for name, own in _INITIAL.items():
        table = found.tables.get(name)
        if table is None:
            continue
        column = table.c.name
        other = c.scalar(sa.select(column).where(column.not_in(own)).order_by(column).limit(1))
        if other is not None:
            message = f"the database is not empty: it has {other!r} in {name}"
            hint = "`--replace` replaces it; make a backup of it first"
            raise Refused(Code.CONFLICT, message, hint=hint, field="store.url")


def _load(c: Connection, source: Archive) -> dict[str, int]:
    """Insert the rows of the archive into tables of its revision."""
    found = rows.reflect(c)
    unknown = sorted(set(source.manifest.tables) - (set(found.tables) - {_REFLECTED}))
    if unknown:
        message = f"the backup is damaged: it has a table {unknown[0]!r} that schema {source.manifest.revision} lacks"
        raise Refused(Code.INVALID, message, field="FILE")
    ours = [table for table in found.sorted_tables if table.name != _REFLECTED]
    for table in reversed(ours):
        c.execute(table.delete())
    counts = {}
    for table in ours:
        if table.name in source.manifest.tables:
            counts[table.name] = rows.load(c, table, source.rows(table.name))
    for name, last in source.manifest.numbers.items():
        if name in found.tables:
            column = next(iter(found.tables[name].primary_key.columns))
            rows.continue_after(c, found.tables[name], column.name, last)
    return counts


def _begin(c: Connection, source: Archive, counts: Mapping[str, int]) -> Restored:
    now = utcnow()
    number = incarnation.begin(c, source.manifest.created_at, now)
    c.execute(t.slivers.delete().where(t.slivers.c.slice.is_(None)))  # slices may have taken these spares since
    k = t.tokens.c
    valid = sa.or_(k.expires_at.is_(None), k.expires_at > now)
    tokens = int(c.scalar(sa.select(sa.func.count()).where(valid).select_from(t.tokens)) or 0)
    return Restored(counts, number, tokens)

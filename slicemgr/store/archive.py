"""The archive of a backup: a tar file with a manifest, the rows of each table as JSON lines, and files of settings.

    manifest.json               what the archive contains, see Manifest
    database/TABLE.jsonl        one row in each line, an object of column → value
    files/SETTING               the file that a setting names; files/settings: the settings themselves

An archive is read completely and compared with its manifest before anything of it is used. Its names are compared with
expected ones and never used as paths, and it is not compressed, so that nothing in it is larger than the file.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from slicemgr.errors import Code, Failed, Refused, invalid

FORMAT = 1
SETTINGS = "settings"
LARGEST_FILE = 1 << 20  # bytes of a file of settings
_LARGEST_MANIFEST = 16 << 20
_LONGEST_ROW = 64 << 20
_MOST_MEMBERS = 1000
_MANIFEST = "manifest.json"
_NAME = re.compile(r"[a-z][a-z0-9_.]{0,62}")
_SHA256 = re.compile("[0-9a-f]{64}")
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """A member of the archive. rows: None for a file."""

    size: int
    sha256: str
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """version: of slicemgr. revision: of the tables. numbers: the last number given by each sequence, by table.

    images: the identity of each image (sha256, name, format), whose files are not in the archive. secrets: whether the
    files include those with secrets. left_out: tables without their rows.
    """

    version: str
    revision: str
    created_at: datetime
    node: str
    tables: Mapping[str, Part]
    files: Mapping[str, Part]
    numbers: Mapping[str, int]
    images: tuple[Mapping[str, str], ...]
    secrets: bool
    left_out: tuple[str, ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict)  # of the files, as the settings name them

    def to_json(self) -> bytes:
        raw = {"format": FORMAT, **asdict(self), "created_at": self.created_at.isoformat()}
        return json.dumps(raw, indent=1).encode()


def write(path: Path, manifest: Manifest, tables: Mapping[str, IO[bytes]], files: Mapping[str, bytes]) -> None:
    """Write a new archive that only its owner can read. Refused if the file exists; a failure leaves no file."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as raw:
            with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
                _add(tar, _MANIFEST, manifest.to_json())
                for name, rows in tables.items():
                    rows.seek(0)
                    tar.addfile(_header(_table(name), manifest.tables[name].size), rows)
                for name, content in files.items():
                    _add(tar, _file(name), content)
            raw.flush()
            os.fsync(raw.fileno())
        os.link(unfinished, path)  # unlike a rename, it never replaces a file
    except FileExistsError:
        raise invalid("FILE", f"{path} exists", "give the name of a new file") from None
    except OSError as error:
        raise Failed(f"{path} cannot be written: {error.strerror}", hint="no file was left") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    tar.addfile(_header(name, len(content)), io.BytesIO(content))


def _header(name: str, size: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size, header.mode = size, 0o600
    return header


def _table(name: str) -> str:
    return f"database/{name}.jsonl"


def _file(name: str) -> str:
    return f"files/{name}"


class Archive:
    """An archive that was compared with its manifest."""

    def __init__(self, tar: tarfile.TarFile, manifest: Manifest) -> None:
        self._tar = tar
        self.manifest = manifest

    def rows(self, table: str) -> Iterator[dict[str, Any]]:
        """The rows of a table. Raises Refused for a line that is not an object."""
        content = self._tar.extractfile(_table(table))
        assert content is not None
        while line := content.readline(_LONGEST_ROW):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise _damaged(f"a row of {table} is not JSON") from error
            if not isinstance(row, dict):
                raise _damaged(f"a row of {table} is not an object")
            yield row

    def file(self, name: str) -> bytes:
        content = self._tar.extractfile(_file(name))
        assert content is not None
        return content.read(LARGEST_FILE)


@contextmanager
def read(path: Path) -> Iterator[Archive]:
    """Open an archive and compare all of it with its manifest. Refused if anything in it is missing, other or more."""
    try:
        with path.open("rb") as raw, tarfile.open(fileobj=raw, mode="r:") as tar:
            members = list(_members(tar))
            if not members or members[0].name != _MANIFEST:
                raise _damaged(f"it does not begin with {_MANIFEST}")
            manifest = _manifest(tar, members[0])
            parts = {_table(name): part for name, part in manifest.tables.items()}
            parts |= {_file(name): part for name, part in manifest.files.items()}
            found = [one.name for one in members[1:]]
            if sorted(found) != sorted(parts):
                odd = sorted(set(found) ^ set(parts)) or found
                raise _damaged(f"its members differ from its manifest: {odd[0]!r}")
            for member in members[1:]:
                _compare(tar, member, parts[member.name])
            yield Archive(tar, manifest)
    except OSError as error:
        raise invalid("FILE", f"{path} cannot be read: {error.strerror}") from error
    except (tarfile.TarError, EOFError, UnicodeError, RecursionError, OverflowError) as error:
        raise _damaged(f"it is not a tar file: {error}") from error


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for number, member in enumerate(tar):
        if number > _MOST_MEMBERS or member.size < 0:
            raise _damaged("its list of members is not valid")
        if not member.isreg() or member.issparse():
            raise _damaged(f"{member.name[:80]!r} is not a regular file")
        yield member


def _manifest(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Manifest:
    if member.size > _LARGEST_MANIFEST:
        raise _damaged("its manifest is too large")
    content = tar.extractfile(member)
    assert content is not None
    try:
        raw = json.loads(content.read())
        if raw["format"] != FORMAT:
            message = f"the backup has format {raw['format']!r}, and this version reads {FORMAT}"
            raise Refused(Code.CONFLICT, message, hint="restore it with a newer version of slicemgr", field="FILE")
        created = datetime.fromisoformat(raw["created_at"]).astimezone(UTC)
        manifest = Manifest(
            **{name: _text(raw[name]) for name in ("version", "revision", "node")},
            created_at=created,
            tables=_parts(raw["tables"], rows=True),
            files=_parts(raw["files"], rows=False),
            numbers={_name(name): _count(number) for name, number in raw["numbers"].items()},
            images=tuple({key: _text(value) for key, value in one.items()} for one in raw["images"]),
            secrets=bool(raw["secrets"]),
            left_out=tuple(map(_name, raw["left_out"])),
            paths={_name(name): _text(path) for name, path in raw["paths"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(f"its manifest is not valid: {type(error).__name__}: {str(error)[:80]}") from error
    return manifest


def _parts(raw: Mapping[str, Mapping[str, Any]], *, rows: bool) -> dict[str, Part]:
    parts = {}
    for name, one in raw.items():
        if not _SHA256.fullmatch(one["sha256"]):
            raise ValueError("sha256")
        size = _count(one["size"])
        if not rows and size > LARGEST_FILE:
            raise ValueError(f"{name} is too large")
        parts[_name(name)] = Part(size, one["sha256"], _count(one["rows"]) if rows else None)
    return parts


def _name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(f"name {str(value)[:40]!r}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 4096 or not value.isprintable():
        raise ValueError("text")
    return value


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError("number")
    return value


def _compare(tar: tarfile.TarFile, member: tarfile.TarInfo, part: Part) -> None:
    if member.size != part.size:
        raise _damaged(f"{member.name} has {member.size} bytes instead of {part.size}")
    content = tar.extractfile(member)
    assert content is not None
    digest, rows = hashlib.sha256(), 0
    while chunk := content.read(_CHUNK):
        digest.update(chunk)
        rows += chunk.count(b"\n")
    if digest.hexdigest() != part.sha256:
        raise _damaged(f"{member.name} was changed: its sha256 differs from the manifest")
    if part.rows not in (None, rows):
        raise _damaged(f"{member.name} has {rows} rows instead of {part.rows}")


def _damaged(why: str) -> Refused:
    return invalid("FILE", f"the backup is damaged, or it is not a backup of slicemgr: {why}")


def part(content: bytes) -> Part:
    """The entry of a file in the manifest."""
    return Part(len(content), hashlib.sha256(content).hexdigest())


def digest(lines: Iterable[bytes], target: IO[bytes]) -> Part:
    """Write lines to a file; its size, checksum and number of rows."""
    found, size, count = hashlib.sha256(), 0, 0
    for line in lines:
        found.update(line)
        target.write(line)
        size, count = size + len(line), count + 1
    return Part(size, found.hexdigest(), count)

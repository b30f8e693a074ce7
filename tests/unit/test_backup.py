"""A backup of either database is restored into either one, completely or not at all."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bare_service import ADMIN, Databases, Service
from postgres_server import Server

import slicemgr.config
import slicemgr.store
from slicemgr import backup_commands, main
from slicemgr.config import Config, StoreConfig
from slicemgr.errors import Code, Failed, Refused
from slicemgr.model import Phase
from slicemgr.service.accounts import authentication
from slicemgr.service.nodes import images, nodes
from slicemgr.service.slices import slices
from slicemgr.store import Store, StoreError, archive, backup, incarnation, pending, rows, schema, tables
from slicemgr.store.engine import make_engine
from slicemgr.store.updates import utcnow

pytestmark = pytest.mark.usefixtures("each_store")

LEFT_OUT = {
    "sessions",
    "sign_in_links",
    "consoles",
    "dials",
    "invitations",
    "answers",
    "joins",
    "host_reports",
    "unclaimed",
}
CHANGED = {"about", "operations", "operation_parts", "mails", "events", "incarnations"}  # by the restore itself
SECOND = timedelta(seconds=1)
FIRST = "0020"  # the first schema of which backups exist


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """With rows in every table."""
    with Service(tmp_path) as made:
        made.fill()
        yield made


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if request.param == "sqlite":
        (tmp_path / "other").mkdir()
        yield f"sqlite:///{tmp_path}/other/slicemgr.db"
        return
    server: Server = request.getfixturevalue("postgres")
    databases = Databases(server)
    url = databases.url(tmp_path / "other")
    databases.make(url, "template0")
    yield url
    databases.drop()


def save(service: Service, name: str = "backup.tar", **options: Any) -> Path:
    path = service.config.node.state_dir / name
    backup.save(service.store, path, "node1", {}, {}, secrets=False, **options)
    return path


def restore(url: str, path: Path, *, replace: bool = False) -> backup.Restored:
    with archive.read(path) as source:
        return backup.restore(url, source, replace=replace)


def contents(store: Store) -> dict[str, list[tuple[object, ...]]]:
    with store.read() as c:
        return {
            table.name: sorted((tuple(row) for row in c.execute(table.select())), key=repr)
            for table in tables.metadata.sorted_tables
        }


def settings(service: Service, url: str) -> Config:
    return dataclasses.replace(service.config, store=StoreConfig(url=url))


Rows = dict[str, list[tuple[object, ...]]]


def without_spares(rows: Rows) -> Rows:
    """Slices may have taken the spares since the backup."""
    spares = {row[0] for row in rows["slivers"] if row[2] is None}
    assert spares
    slivers = [row for row in rows["slivers"] if row[0] not in spares]
    return {**rows, "spares": [], "slivers": slivers, "ports": [row for row in rows["ports"] if row[2] not in spares]}


@pytest.mark.parametrize("target", ["sqlite", "postgresql"], indirect=True)
def test_every_row_arrives_in_either_database(service: Service, target: str) -> None:
    token, before = service.token(), contents(service.store)
    expected = without_spares(before)
    assert all(before.values()), "each table must have rows for this to mean anything"
    path = save(service)
    restored = restore(target, path)
    config = settings(service, target)
    with slicemgr.store.open(config) as store:
        after = contents(store)
        same = set(before) - LEFT_OUT - CHANGED
        assert {name: after[name] for name in same} == {name: expected[name] for name in same}
        assert {name: after[name] for name in LEFT_OUT} == {name: [] for name in LEFT_OUT}
        assert restored.rows == {name: len(found) for name, found in before.items() if name not in LEFT_OUT}
        assert authentication.authenticate(store, token).admin
        assert restored.tokens == 1
    assert contents(service.store) == before


def test_numbers_of_rows_that_are_gone_are_not_given_again(service: Service, target: str) -> None:
    service.create("gone", count=3)
    gone = [row.sliver for row in service.rows() if row.sliver.slice_name == "gone"]
    service.record(*(pending.SliverGone(one.id) for one in gone))
    restore(target, save(service))
    config = settings(service, target)
    with slicemgr.store.open(config) as store:
        with store.write() as c:
            incarnation.end(c, utcnow())
        slices.create(store, config, slices.Draft(service.request("after")), ADMIN)
        with store.read() as c:
            assert pending.slivers(c, "node1")[-1].sliver.serial == max(one.serial for one in gone) + 1


def test_a_restored_testbed_is_on_hold(service: Service, target: str, tmp_path: Path) -> None:
    waiting = service.rows()[0].sliver
    service.record(pending.SliverSeen(waiting.id, Phase.RUNNING))
    restore(target, save(service))
    config = settings(service, target)
    with slicemgr.store.open(config) as store:
        before = contents(store)
        for change in (
            lambda: slices.create(store, config, slices.Draft(service.request("more")), ADMIN),
            lambda: slices.act(store, config, "exp", "delete", ADMIN),
            lambda: slices.act(store, config, "exp", "stop", ADMIN),
            lambda: images.check_upload(store, "other", "qcow2", ADMIN),
            lambda: nodes.request(store, config, "node1", "gc", ADMIN, {"apply": True}),
        ):
            with pytest.raises(Refused, match=r"on hold since the restore at .* of the backup of") as caught:
                change()
            assert caught.value.code is Code.CONFLICT
            assert "slicemgr restore --review" in caught.value.hint
        assert contents(store) == before
        assert nodes.request(store, config, "node1", "doctor", ADMIN, {})
        with store.read() as c:
            held = incarnation.held(c)
            o, m = tables.operations.c, tables.mails.c
            assert held is not None
            assert held.number == 2
            assert set(c.scalars(sa.select(o.state).where(o.kind == "create"))) == {"failed"}
            assert set(c.scalars(sa.select(m.state))) == {"failed"}


def test_a_change_during_the_backup_is_in_it_completely_or_not_at_all(
    service: Service, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = rows.dump
    dumped: list[str] = []

    def dump(c: sa.Connection, table: sa.Table) -> Iterator[bytes]:
        yield from original(c, table)
        if not dumped:
            service.create("late")
        dumped.append(table.name)

    monkeypatch.setattr(rows, "dump", dump)
    path = save(service)
    assert dumped.index("slices") > 0
    restore(target, path)
    with slicemgr.store.open(settings(service, target)) as store, store.read() as c:
        assert list(c.scalars(sa.select(tables.slices.c.name))) == ["exp"]
    assert {row.sliver.slice_name for row in service.rows() if not row.sliver.spare} == {"exp", "late"}


def test_a_full_database_is_replaced_only_if_asked(service: Service, target: str) -> None:
    path = save(service)
    restore(target, path)
    with Store(make_engine(target, SECOND)) as store:
        before = contents(store)
        with pytest.raises(Refused, match="the database is not empty: it has 'debian-12' in images") as caught:
            restore(target, path)
        assert "--replace" in caught.value.hint
        assert contents(store) == before
    again = restore(target, path, replace=True)
    assert again.incarnation == 2
    if target.startswith("sqlite"):
        [kept] = again.kept
        with Store(make_engine(f"sqlite:///{kept}", SECOND)) as store:
            assert contents(store) == before


def test_what_init_inserts_is_no_content(service: Service, target: str) -> None:
    path = save(service)
    schema.upgrade(target)
    assert restore(target, path).rows["slices"] == 1


def test_the_log_of_the_earlier_file_is_not_replayed(service: Service, tmp_path: Path) -> None:
    """A process that was killed leaves a log beside the file; SQLite would apply it to any file of that name."""
    (tmp_path / "other").mkdir()
    file = tmp_path / "other" / "slicemgr.db"
    schema.upgrade(f"sqlite:///{file}")
    (tmp_path / "other" / "slicemgr.db-wal").write_bytes(b"x" * 100)
    restored = restore(f"sqlite:///{file}", save(service), replace=True)
    assert sorted(path.name for path in file.parent.iterdir()) == sorted(
        ["slicemgr.db", *(path.name for path in restored.kept)]
    )
    assert len(restored.kept) == 2


def columns_of(revision: str, directory: Path) -> dict[str, set[str]]:
    """The names of the columns of each table of a schema. directory: for a database."""
    url = f"sqlite:///{directory / 'earlier.db'}"
    schema.upgrade(url, revision)
    engine = sa.create_engine(url)
    found = sa.inspect(engine).get_multi_columns()
    engine.dispose()
    return {name: {one["name"] for one in columns} for (_, name), columns in found.items()}


def test_a_backup_of_an_earlier_schema_is_upgraded(service: Service, target: str, tmp_path: Path) -> None:
    """Of the first schema that had backups: the tables and columns that were added later are not in it."""
    columns = columns_of(FIRST, tmp_path)
    stored = {
        Path(name).stem: content.splitlines()
        for name, content in members(save(service)).items()
        if name.startswith("database/")
    }
    earlier = {
        name: [{key: value for key, value in json.loads(one).items() if key in columns[name]} for one in lines]
        for name, lines in stored.items()
        if name in columns
    }
    earlier["nodes"] = [row for row in earlier["nodes"] if row["agent_seen_at"] is not None]
    spares = {row["serial"] for row in earlier["slivers"] if row["slice"] is None}  # no schema before 0037 has any
    earlier["slivers"] = [row for row in earlier["slivers"] if row["serial"] not in spares]
    earlier["ports"] = [row for row in earlier["ports"] if row["sliver"] not in spares]
    restore(target, rewritten(save(service, "new.tar"), FIRST, tuple(stored.keys() - columns.keys()), **earlier))
    with slicemgr.store.open(settings(service, target)) as store, store.read() as c:
        held = incarnation.held(c)
        assert held is not None and held.number == 2
        assert c.execute(sa.select(tables.nodes.c.name, tables.nodes.c.state)).all() == [("node1", "active")]
        assert c.scalar(sa.select(tables.about.c.value)) == slicemgr.__version__
        assert c.scalar(sa.select(sa.func.count()).select_from(tables.requests)) == len(earlier["requests"]) > 0


# archives that are damaged or hostile


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        found = {}
        for one in tar:
            content = tar.extractfile(one)
            assert content is not None
            found[one.name] = content.read()
        return found


def written(path: Path, parts: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in parts.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return path


def rewritten(path: Path, revision: str = "", drop: tuple[str, ...] = (), **changed: list[dict[str, Any]]) -> Path:
    """The archive with other rows in some tables, and a manifest that agrees with them."""
    parts = members(path)
    manifest = json.loads(parts["manifest.json"])
    for table in drop:
        del parts[f"database/{table}.jsonl"], manifest["tables"][table]
    for table, new in changed.items():
        content = b"".join(json.dumps(row).encode() + b"\n" for row in new)
        parts[f"database/{table}.jsonl"] = content
        manifest["tables"][table] = {**dataclasses.asdict(archive.part(content)), "rows": len(new)}
    manifest["revision"] = revision or manifest["revision"]
    parts["manifest.json"] = json.dumps(manifest).encode()
    return written(path.with_name("rewritten.tar"), parts)


def of(path: Path, table: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in members(path)[f"database/{table}.jsonl"].splitlines()]


def changed_byte(path: Path) -> Path:
    parts = members(path)
    parts["database/users.jsonl"] = parts["database/users.jsonl"].replace(b"admin", b"Admin", 1)
    return written(path, parts)


def with_member(path: Path, name: str, kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(path, "a") as tar:
        header = tarfile.TarInfo(name)
        header.type, header.linkname = kind, "/etc/passwd"
        tar.addfile(header)
    return path


def without_member(path: Path) -> Path:
    parts = members(path)
    del parts["database/users.jsonl"]
    return written(path, parts)


def other_manifest(path: Path, **changes: Any) -> Path:
    parts = members(path)
    manifest = {**json.loads(parts["manifest.json"]), **changes}
    return written(path, {**parts, "manifest.json": json.dumps(manifest).encode()})


def named_by_the_manifest(path: Path, name: str) -> Path:
    parts = members(path)
    manifest = json.loads(parts["manifest.json"])
    manifest["files"][name] = {"size": 0, "sha256": archive.part(b"").sha256, "rows": None}
    return written(path, {**parts, "manifest.json": json.dumps(manifest).encode(), f"files/{name}": b""})


def user(path: Path, **fields: Any) -> Path:
    return rewritten(path, users=[{**one, **fields} for one in of(path, "users")])


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:3000])
    return path


def no_tar(path: Path) -> Path:
    path.write_bytes(b"PK\x03\x04" + b"x" * 5000)
    return path


HOSTILE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "changed": (changed_byte, "its sha256 differs from the manifest"),
    "more": (lambda path: with_member(path, "../../etc/cron.d/x"), "its members differ from its manifest"),
    "twice": (lambda path: with_member(path, "database/users.jsonl"), "its members differ"),
    "symbolic link": (lambda path: with_member(path, "x", tarfile.SYMTYPE), "is not a regular file"),
    "device": (lambda path: with_member(path, "x", tarfile.CHRTYPE), "is not a regular file"),
    "missing": (without_member, "its members differ from its manifest: 'database/users.jsonl'"),
    "path in the manifest": (lambda path: named_by_the_manifest(path, "../../x"), "its manifest is not valid"),
    "absolute path": (lambda path: named_by_the_manifest(path, "/etc/x"), "its manifest is not valid"),
    "other format": (lambda path: other_manifest(path, format=2), "format 2, and this version reads 1"),
    "newer schema": (lambda path: other_manifest(path, revision="9999"), "newer than this version"),
    "time": (lambda path: other_manifest(path, created_at="yesterday"), "its manifest is not valid"),
    "unknown table": (lambda path: rewritten(path, alembic_version=[]), "a table 'alembic_version'"),
    "unknown column": (lambda path: user(path, shell="/bin/sh"), "users.shell: the columns"),
    "text as a number": (lambda path: user(path, known_browsers="1"), "users.known_browsers: is not a number"),
    "number of 65 bits": (lambda path: user(path, known_browsers=1 << 64), "users.known_browsers: is not a number"),
    "list as text": (lambda path: user(path, email=["x"]), "users.email: is not text"),
    "half a character": (lambda path: user(path, email="\ud800"), "users.email"),
    "number as a boolean": (lambda path: user(path, admin=1), "users.admin: is not true or false"),
    "null": (lambda path: user(path, email=None), "a row of users does not fit"),
    "cut": (cut, "damaged"),
    "no tar": (no_tar, "it is not a tar file"),
    "empty": (lambda path: written(path, {}), "it does not begin with manifest.json"),
}


def test_a_hostile_archive_changes_nothing(service: Service) -> None:
    """Each is restored over the service's own database."""
    folder, url = service.config.node.state_dir / "db", service.config.store_url
    good, before = save(service, "good.tar"), contents(service.store)
    service.store.close()
    folder.mkdir(exist_ok=True)
    files = sorted(folder.iterdir())
    for name, (change, words) in HOSTILE.items():
        path = good.with_name("bad.tar")
        path.write_bytes(good.read_bytes())
        with pytest.raises((Refused, Failed)) as caught:
            restore(url, change(path), replace=True)
        assert words in str(caught.value), name
        assert sorted(folder.iterdir()) == files, name
    with slicemgr.store.open(service.config) as store:
        assert contents(store) == before
    restore(url, good, replace=True)
    with slicemgr.store.open(service.config) as store:
        assert contents(store) != before, "the control: an intact archive replaces the rows"


def test_a_row_that_breaks_a_constraint_undoes_everything(service: Service, target: str) -> None:
    path = save(service)
    slivers = of(path, "slivers")
    bad = rewritten(path, slivers=[{**one, "address": slivers[0]["address"]} for one in slivers])
    with pytest.raises(Failed, match="a row of slivers does not fit") as caught:
        restore(target, bad)
    assert caught.value.hint == "nothing was restored"
    assert restore(target, path).rows["slivers"] == 3


def test_a_database_of_another_program_is_left_alone(service: Service, target: str) -> None:
    with Store(make_engine(target, SECOND)) as store, store.write() as c:
        c.exec_driver_sql("CREATE TABLE theirs (x INTEGER)")
    with pytest.raises(StoreError, match="belongs to another program or version: it has a table 'theirs'"):
        restore(target, save(service))


# the files


def test_only_the_owner_reads_the_archive_and_no_file_is_replaced(service: Service) -> None:
    path = save(service)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    with pytest.raises(Refused, match="exists"):
        save(service)
    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir() if "backup" in one.name] == [path.name]


def test_images_have_their_identities_and_measurements_can_be_left_out(service: Service) -> None:
    with archive.read(save(service, samples=False)) as made:
        assert made.manifest.images == ({"sha256": "ab" * 32, "name": "debian-12", "format": "qcow2"},)
        assert set(made.manifest.left_out) == LEFT_OUT | set(backup.SAMPLES)
        assert not set(backup.SAMPLES) & set(made.manifest.tables)


@pytest.fixture
def secrets(tmp_path: Path) -> tuple[Config, Path]:
    """Settings that name a file with a password, and a database with one."""
    (tmp_path / "mail-password").write_text("s3cret-mail")
    (tmp_path / "ca.pem").write_text("CERTIFICATE")
    url = "postgresql://slicemgr:s3cret-db@127.0.0.1/slicemgr"
    text = (
        f'[store]\nurl = "{url}"\n[mail]\nserver = "mail.example"\nsender = "a@example.org"\nuser = "a"\n'
        f'password_file = "{tmp_path}/mail-password"\nca_file = "{tmp_path}/ca.pem"\n'
    )
    path = tmp_path / "slicemgr.toml"
    path.write_text(text)
    return slicemgr.config.load(path), path


def test_secrets_are_in_the_archive_only_if_asked(secrets: tuple[Config, Path]) -> None:
    config, path = secrets
    files, paths = backup_commands.setting_files(config, path, with_secrets=False)
    assert set(files) == set(paths) == {"settings", "mail.ca_file"}
    assert b"s3cret" not in b"".join(files.values())
    assert b'url = "postgresql://slicemgr:***@127.0.0.1/slicemgr"' in files["settings"]
    files, _ = backup_commands.setting_files(config, path, with_secrets=True)
    assert files["mail.password_file"] == b"s3cret-mail"
    assert b"s3cret-db" in files["settings"]


def test_a_password_that_cannot_be_hidden_is_refused(secrets: tuple[Config, Path]) -> None:
    config, path = secrets
    path.write_text(path.read_text().replace("s3cret-db@", "s3cret-d\\u0062@"))
    assert slicemgr.config.load(path).store.url == config.store.url
    with pytest.raises(Refused, match="its password cannot be hidden"):
        backup_commands.setting_files(config, path, with_secrets=False)


def run(config: Path, *words: str) -> tuple[int, str]:
    """The exit status and the output of `slicemgr`, in this process."""
    from click.testing import CliRunner

    done = CliRunner().invoke(main.cli, ["--config", str(config), *words])
    if isinstance(done.exception, Refused | Failed):
        return done.exception.code.exit_status, str(done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@pytest.fixture
def command(service: Service, tmp_path: Path, target: str) -> Path:
    """The settings of another service, whose database is empty."""
    path = tmp_path / "slicemgr.toml"
    there = tmp_path / "there"
    path.write_text(
        f'[node]\nstate_dir = "{there}/state"\nrun_dir = "{there}/run"\n[store]\nurl = "{target}"\n'
        '[web]\nport = 1\nuser = "65534:65534"\n'
    )
    return path


def test_the_commands(service: Service, command: Path, tmp_path: Path) -> None:
    file = str(save(service))
    status, text = run(command, "restore", file)
    assert (status, "incarnation 2, on hold" in text) == (0, True), text
    assert "1  slices" in text
    status, text = run(command, "restore", "--review")
    assert status == 0
    assert "node node1: has not reported yet" in text
    status, text = run(command, "restore", "--finish")
    assert (status, "node1 has not reported" in text) == (4, True), text
    status, text = run(command, "restore", "--finish", "--without", "node1")
    assert status == 0, text
    status, text = run(command, "restore", "--review")
    assert (status, "the database is not on hold" in text) == (4, True)
    status, text = run(command, "backup", str(tmp_path / "second.tar"))
    assert status == 0, text
    status, text = run(command, "restore", str(tmp_path / "second.tar"), "--files", str(tmp_path / "files"))
    assert status == 0, text
    assert stat.S_IMODE((tmp_path / "files" / "slicemgr.toml").stat().st_mode) == 0o600
    assert "state_dir" in (tmp_path / "files" / "slicemgr.toml").read_text()


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ((), "gives not exactly one thing to do"),
        (("--review", "--finish"), "gives not exactly one thing to do"),
        (("--review", "--project", "p"), "belong to --adopt"),
        (("--review", "--replace"), "belong to FILE"),
        (("--review", "--without", "n"), "belongs to --finish"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, words: tuple[str, ...], wrong: str) -> None:
    (tmp_path / "s.toml").write_text("")
    status, text = run(tmp_path / "s.toml", "restore", *words)
    assert (status, wrong in text) == (2, True), text


def test_not_while_an_agent_runs(service: Service, command: Path) -> None:
    from slicemgr.agent.agent_lock import only_one

    file, config = str(save(service)), slicemgr.config.load(command)
    with only_one(config.node.run_dir / "agent.lock"):
        status, text = run(command, "restore", file)
    assert (status, "another agent runs on this node" in text) == (4, True), text


def test_slicectl_backup_is_the_same_command(service: Service, command: Path, tmp_path: Path, target: str) -> None:
    restore(target, save(service))
    file = tmp_path / "by-slicectl.tar"
    words = [str(Path(sys.executable).with_name("slicectl")), "backup", str(file), "--without-samples"]
    environment = {**os.environ, "SLICEMGR_CONFIG": str(command)}
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert "without secrets" in done.stdout
    with archive.read(file) as made:
        assert "samples" in made.manifest.left_out
        assert set(made.manifest.files) == {"settings"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment)
    assert (done.returncode, "exists" in done.stderr) == (2, True), done.stderr

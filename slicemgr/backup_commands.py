"""`slicemgr backup` and `slicemgr restore`: an archive of the testbed, and the review after its restore."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slicemgr import config as settings
from slicemgr.errors import invalid

if TYPE_CHECKING:
    from slicemgr.service.restores.adoption import Wish
    from slicemgr.service.restores.review import Found, Review
    from slicemgr.store.archive import Archive
    from slicemgr.store.backup import Restored

SETTINGS_FILE = "slicemgr.settings"  # key of the context: the path of the settings
_CERTIFICATES = ("mail.ca_file", "oidc.ca_file")
_SECRETS = ("mail.password_file", "oidc.client_secret_file")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--with-secrets",
    is_flag=True,
    help="Include the files of passwords, the password in store.url, and the key of the authority.",
)
@click.option("--without-samples", is_flag=True, help="Leave out the measurements; the sums of projects are included.")
@click.pass_context
def backup(context: click.Context, file: Path, with_secrets: bool, without_samples: bool) -> None:
    """Write the database, the settings and the identities of images to FILE, while the service runs.

    FILE is new and only its owner can read it. It contains password hashes and what users wrote: keep it as safe as the
    database. It contains no file of an image and no root of a sliver.
    """
    from slicemgr import store
    from slicemgr.store import backup as backups

    config: settings.Config = context.obj
    files, paths = setting_files(config, context.meta[SETTINGS_FILE], with_secrets=with_secrets)
    with store.open(config) as opened:
        made = backups.save(
            opened, file, config.node.name, files, paths, secrets=with_secrets, samples=not without_samples
        )
    rows = sum(part.rows or 0 for part in made.tables.values())
    secrets = "with secrets" if with_secrets else "without secrets"
    click.echo(f"{file}: {rows} rows of {len(made.tables)} tables, {len(files)} files of settings, {secrets}")


def setting_files(
    config: settings.Config, path: Path, *, with_secrets: bool
) -> tuple[dict[str, bytes], dict[str, str]]:
    """The settings and the files that they name: the contents and the paths, each by its name in the archive.

    Without secrets, the password in `store.url` is hidden. Refused if a file cannot be read, or if that password cannot
    be found in the settings.
    """
    from slicemgr.store import archive

    paths = {archive.SETTINGS: path} if path.exists() else {}
    for name in (*_CERTIFICATES, *(_SECRETS if with_secrets else ())):
        section, _, field = name.partition(".")
        if text := getattr(getattr(config, section), field):
            paths[name] = Path(text)
    if with_secrets and config.authority_dir.exists():
        paths |= {f"authority.{name}": config.authority_dir / f"{name}.pem" for name in ("key", "certificate")}
    files = {name: _content(name, file) for name, file in paths.items()}
    if not with_secrets and archive.SETTINGS in files:
        files[archive.SETTINGS] = _without_password(config, files[archive.SETTINGS])
    return files, {name: str(file) for name, file in paths.items()}


def _content(name: str, path: Path) -> bytes:
    from slicemgr.store import archive

    try:
        with path.open("rb") as file:
            content = file.read(archive.LARGEST_FILE + 1)
    except OSError as error:
        raise invalid(name, f"{path} cannot be read: {error.strerror}", "run it as root") from error
    if len(content) > archive.LARGEST_FILE:
        raise invalid(name, f"{path} is larger than {archive.LARGEST_FILE} bytes")
    return content


def _without_password(config: settings.Config, content: bytes) -> bytes:
    from sqlalchemy.engine import make_url

    if not config.store.url:
        return content
    url = make_url(config.store.url)
    if url.password is None and "password" not in url.query:
        return content
    written = config.store.url.encode()
    hidden = url.difference_update_query(["password"]).render_as_string(hide_password=True).encode()
    if content.count(written) != 1:
        raise invalid("store.url", "its password cannot be hidden in the settings", "use --with-secrets")
    return content.replace(written, hidden)


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="Replace a database that has people, projects, images or slices.")
@click.option(
    "--files", "target", type=click.Path(path_type=Path), help="Only write the files of settings to a new directory."
)
@click.option(
    "--review", "reviewing", is_flag=True, help="List what the nodes run without a row, and other differences."
)
@click.option("--adopt", metavar="SLICE", help="Give a slice without a row its row; by name or id.")
@click.option("--project", default="", help="With --adopt: its project, instead of the recorded one.")
@click.option("--owner", default="", help="With --adopt: its owner, instead of admin.")
@click.option("--name", default="", help="With --adopt: another name.")
@click.option("--release", metavar="SLICE", help="Remove a slice without a row, or a slice whose roots are gone.")
@click.option("--finish", is_flag=True, help="End the hold: agents repair, and slices can be created again.")
@click.option("--without", multiple=True, metavar="NODE", help="With --finish: a node that no longer exists.")
@click.pass_obj
def restore(
    config: settings.Config,
    file: Path | None,
    replace: bool,
    target: Path | None,
    reviewing: bool,
    adopt: str | None,
    project: str,
    owner: str,
    name: str,
    release: str | None,
    finish: bool,
    without: tuple[str, ...],
) -> None:
    """Restore the database from FILE, while web and agent are stopped; then review what the nodes run.

    After a restore the testbed is on hold: slivers continue to run, and no agent creates, repairs, stops or deletes
    one, until `--review` shows no sliver without a row and `--finish` ends the hold. FILE may be of SQLite or
    PostgreSQL, and of an earlier version. An earlier SQLite database is kept under another name.
    """
    if sum((file is not None, reviewing, adopt is not None, release is not None, finish)) != 1:
        raise invalid("restore", "gives not exactly one thing to do", "FILE, --review, --adopt, --release or --finish")
    if adopt is None and (project or owner or name):
        raise invalid("--project, --owner, --name", "belong to --adopt")
    if (replace or target) and file is None:
        raise invalid("--replace, --files", "belong to FILE")
    if without and not finish:
        raise invalid("--without", "belongs to --finish")
    if file is not None and target is not None:
        _write_files(file, target)
    elif file is not None:
        _restore(config, file, replace=replace)
    elif adopt is not None:
        from slicemgr.service.restores.adoption import Wish

        _adopt(config, Wish(adopt, project, owner, name))
    else:
        _decide(config, release, finish=finish, without=without)


def _restore(config: settings.Config, file: Path, *, replace: bool) -> None:
    from slicemgr.stopped_service import stopped
    from slicemgr.store import archive, backup
    from slicemgr.web import server

    with archive.read(file) as source, stopped(config):
        server.make_directories(config)
        restored = backup.restore(config.store_url, source, replace=replace)
        server.make_directories(config)  # again: the database's files are new
        _report(source, restored)


def _report(source: Archive, restored: Restored) -> None:
    at = f"{source.manifest.created_at:%Y-%m-%dT%H:%M:%SZ}"
    for table in ("users", "projects", "images", "slices", "slivers"):
        click.echo(f"{restored.rows.get(table, 0):>8}  {table}")
    click.echo(f"The database has the state of {at}. It is incarnation {restored.incarnation}, on hold.")
    click.echo("Sessions and links for invitation and sign-in are void.")
    click.echo("Later changes of passwords, rights and accounts are lost.")
    if restored.tokens:
        click.echo(f"{restored.tokens} API tokens are valid, also those revoked after the backup (`slicectl token`).")
    for path in restored.kept:
        click.echo(f"The earlier database is kept in {path}.")
    click.echo("Start web and agent, then run `slicemgr restore --review`.")


def _write_files(file: Path, target: Path) -> None:
    """Write the files to a new directory. Their names come from a fixed list, never from the archive."""
    from slicemgr.store import archive

    allowed = {archive.SETTINGS: "slicemgr.toml", **{name: name for name in (*_CERTIFICATES, *_SECRETS)}}
    with archive.read(file) as source:
        unknown = sorted(set(source.manifest.files) - set(allowed))
        if unknown:
            raise invalid("FILE", f"the backup has an unknown file {unknown[0]!r}")
        try:
            target.mkdir(mode=0o700)
        except OSError as error:
            raise invalid("--files", f"{target}: {error.strerror}", "give the name of a new directory") from error
        for name in source.manifest.files:
            path = target / allowed[name]
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as out:
                out.write(source.file(name))
            click.echo(f"{path}: was {source.manifest.paths.get(name, 'unknown')}")


def _adopt(config: settings.Config, wish: Wish) -> None:
    from slicemgr import store
    from slicemgr.service.restores import adoption

    with store.open(config) as opened:
        name = adoption.adopt(opened, config, wish)
    click.echo(f"slice {name} is adopted with its addresses and ports")


def _decide(config: settings.Config, release: str | None, *, finish: bool, without: tuple[str, ...]) -> None:
    from slicemgr import store
    from slicemgr.service.restores import review

    with store.open(config) as opened:
        if release is not None:
            click.echo(review.release(opened, config, release))
        elif finish:
            done = review.finish(opened, config, without)
            newer = sum(review.ALSO_ON not in columns for columns in done.changed.values())
            click.echo(f"The hold has ended; {newer} slivers keep their newer state.")
        else:
            with opened.read() as c:
                found = review.review(c)
            click.echo("\n".join(lines(found)))


def lines(found: Review) -> list[str]:
    """The review as text."""
    text = [f"The testbed is {found.held.says()}."]
    text += [f"node {one}: has not reported yet; start its agent" for one in found.silent]
    text += [f"without a row: {_without_row(one)}" for one in found.found]
    for slice in found.lost:
        which = f"{len(slice.slivers)} of {slice.count} roots are gone"
        text.append(f"roots gone: slice {slice.name} ({slice.tag}) of project {slice.project}: {which}")
    text += [f"image {one}: its files are gone; import it again" for one in found.images]
    text += [_changed(sliver, columns) for sliver, columns in sorted(found.changed.items())]
    text.append(_next(found))
    return ["".join(one if one.isprintable() else "?" for one in line) for line in text]


def _without_row(one: Found) -> str:
    end = f"; cannot be removed: {one.detail}" if one.detail else "; released" if one.released else ""
    if one.record is None:
        return f"sliver {one.sliver} on {one.node}, {one.state}; its record cannot be read, only release it{end}"
    record = one.record
    return (
        f"sliver {one.sliver} of slice {record.slice_name}, project {record.project}, on {one.node}, {one.state}, "
        f"{record.address}, ports {record.ports.first} to {record.ports.last}{end}"
    )


def _changed(sliver: str, columns: Mapping[str, object]) -> str:
    from slicemgr.service.restores.review import ALSO_ON

    if node := columns.get(ALSO_ON):
        return f"moved: sliver {sliver}: {node} has it too, and stops it when the hold ends"
    return f"newer than its row: {sliver}: {_columns(columns)}"


def _columns(columns: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(columns.items()))


def _next(found: Review) -> str:
    if found.silent:
        return "Next: wait for the reports of all nodes."
    if found.undecided:
        return "Next: `--adopt SLICE --project PROJECT` or `--release SLICE` for each slice without a row."
    return "Next: `slicemgr restore --finish`. Slivers whose roots are gone are then stopped, not made again."

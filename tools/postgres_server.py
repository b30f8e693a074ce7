"""A private PostgreSQL server from Debian's package: a directory and a unix socket, and no system cluster.

It runs without fsync, so its data may be lost in a power failure.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from private_server import PrivateServer

USER = "postgres"  # created by Debian's package; PostgreSQL refuses to run as root
_PATIENCE = 60.0  # seconds for its start and its end
_PATIENCE_OF_KEPT = 600.0  # much is written at the end of a large one
_SETTINGS = (
    *("fsync=off", "full_page_writes=off", "autovacuum=off"),
    *("listen_addresses=", "shared_buffers=32MB", "max_wal_size=256MB", "log_statement=none"),
)


def programs() -> Path:
    """The directory of the programs of the newest installed server."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[4]))
    if not found:
        raise RuntimeError("there is no PostgreSQL server: apt-get install postgresql")
    return found[-1].parent


def unprivileged(*more: str) -> list[str]:
    """The command prefix that runs a command without root privileges."""
    if os.geteuid() != 0:
        return ["setpriv", *more, "--"] if more else []
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *more, "--"]


def init_words(data: Path, password_file: Path) -> list[str]:
    """The command that creates the files of a server. password_file: has the password of the superuser."""
    return [
        *(*unprivileged(), str(programs() / "initdb"), "--pgdata", str(data), "--username", USER),
        *("--pwfile", str(password_file), "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C.UTF-8"),
        "--no-sync",
    ]


def server_words(data: Path, sockets: Path, *settings: str) -> list[str]:
    """The command that runs the server."""
    words = [str(programs() / "postgres"), "-D", str(data)]
    for setting in (*_SETTINGS, f"unix_socket_directories={sockets}", *settings):
        words += ["-c", setting]
    return words


class Server(PrivateServer):
    """kept: a folder whose databases remain for the next server; its path must be short, as that of a socket.

    place: where the folder is made that does not remain.
    """

    def __init__(self, *settings: str, kept: Path | None = None, place: Path = Path("/tmp")) -> None:
        super().__init__("PostgreSQL", "slicemgr-pg-", kept, place)
        self.password = self._password()
        self._settings = settings

    def _password(self) -> str:
        file = self.folder / "superuser"
        if self._kept and file.exists():
            return file.read_text()
        made = secrets.token_urlsafe(12) + "/@:?"  # with characters that must be quoted in a URL
        file.touch(0o600)
        file.write_text(made)
        return made

    def _prepare(self) -> None:
        self.folder.chmod(0o711)
        if (self.folder / "data" / "PG_VERSION").exists():
            return
        secret = self.folder / "password"
        secret.write_text(self.password)
        for directory in (self.folder / "data", self.folder / "s"):
            directory.mkdir(mode=0o755)
        if os.geteuid() == 0:
            for path in (secret, self.folder / "data", self.folder / "s"):
                shutil.chown(path, USER, USER)
        _done(init_words(self.folder / "data", secret))
        secret.unlink()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        follow = unprivileged("--pdeathsig=INT")  # it ends with its parent process
        words = [*follow, *server_words(self.folder / "data", self.folder / "s", *self._settings)]
        self._run(words, _PATIENCE)

    def _answers(self) -> bool:
        ready = [str(programs() / "pg_isready"), "-q", "-h", str(self.folder / "s")]
        return subprocess.run(ready, stdin=subprocess.DEVNULL).returncode == 0

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """Stop the server. SIGINT ends connections and stops cleanly; SIGQUIT simulates a crash."""
        self._end(number, _PATIENCE_OF_KEPT if self._kept else _PATIENCE)

    def url(self, database: str = USER, user: str = USER, password: str | None = None) -> str:
        """The URL of a database, for `store.url`."""
        secret = quote(self.password if password is None else password, safe="")
        return f"postgresql://{user}:{secret}@/{database}?host={self.folder}/s"

    def sql(self, statement: str, database: str = USER) -> list[tuple[Any, ...]]:
        """Run a statement as the superuser, outside of a transaction. Returns the rows, if any."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


def _done(words: Sequence[str]) -> None:
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/")
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words[:6])} …: {done.stderr}")

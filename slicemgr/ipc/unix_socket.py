"""Unix sockets that the agent creates for the web process."""

from __future__ import annotations

import logging
import os
import pwd
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from slicemgr.errors import Refused, invalid

log = logging.getLogger(__name__)


def user_ids(user: str, field: str = "web.user") -> tuple[int, int]:
    """uid and gid of the setting `field`: a name, or `uid:gid`. Refused if there is no such user, or it is root."""
    uid, colon, gid = user.partition(":")
    if colon and uid.isdecimal() and gid.isdecimal():
        ids = int(uid), int(gid)
    else:
        try:
            entry = pwd.getpwnam(user)
        except KeyError:
            hint = f"useradd --system {user}, or set {field} to uid:gid"
            raise invalid(field, f"there is no user {user!r}", hint) from None
        ids = entry.pw_uid, entry.pw_gid
    if ids[0] == 0:
        raise invalid(field, "this process must not be root", "a system user of its own")
    return ids


def bind(kind: socket.SocketKind, path: Path, user: str, backlog: int = 0) -> socket.socket:
    """A Unix socket of that kind at `path`, which root and `user` may use.

    user: as in `user_ids`; if there is no such user (no web process runs here), root alone may use the socket. Without
    root's privileges, the group of `user` may use it, if this process is a member. backlog: 0 for a datagram socket.
    """
    made = socket.socket(socket.AF_UNIX, kind)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    os.fchmod(made.fileno(), 0o600)  # bind creates the file with this mode, so others can use it at no time
    made.bind(str(fresh))
    with suppress(Refused):
        _give(fresh, *user_ids(user))
    if backlog:
        made.listen(backlog)
    fresh.rename(path)  # replaces the socket of a previous process atomically
    return made


def connections(listener: socket.socket, stopping: threading.Event, what: str) -> Iterator[socket.socket]:
    """Each connection that arrives, until `stopping` is set and a shutdown wakes the listener, which is then closed.

    what: arrives, such as `a console`, for the log.
    """
    with listener:
        while not stopping.is_set():
            try:
                stream, _ = listener.accept()
            except OSError as error:
                if not stopping.wait(0.1):  # for example, because no descriptors are left
                    log.error("cannot accept %s: %s", what, error)
                continue
            yield stream


def _give(path: Path, uid: int, gid: int) -> None:
    try:
        os.chown(path, uid, gid, follow_symlinks=False)
    except PermissionError:
        try:
            os.chown(path, -1, gid, follow_symlinks=False)
            path.chmod(0o660)
        except PermissionError:
            log.warning("only this process's user can use %s: it is not a member of the group %d", path, gid)

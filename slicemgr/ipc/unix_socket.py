"""Unix sockets that the agent creates for the web process."""

from __future__ import annotations

import os
import pwd
import socket
from contextlib import suppress
from pathlib import Path

from slicemgr.errors import Refused, invalid


def user_ids(user: str) -> tuple[int, int]:
    """uid and gid of `web.user`: a name, or `uid:gid`. Refused if there is no such user, or it is root."""
    uid, colon, gid = user.partition(":")
    if colon and uid.isdecimal() and gid.isdecimal():
        ids = int(uid), int(gid)
    else:
        try:
            entry = pwd.getpwnam(user)
        except KeyError:
            hint = f"useradd --system {user}, or set web.user to uid:gid"
            raise invalid("web.user", f"there is no user {user!r}", hint) from None
        ids = entry.pw_uid, entry.pw_gid
    if ids[0] == 0:
        raise invalid("web.user", "the web process must not be root", "a system user of its own")
    return ids


def bind(kind: socket.SocketKind, path: Path, user: str, backlog: int = 0) -> socket.socket:
    """A Unix socket of that kind at `path`, which root and `user` may use.

    user: as in `user_ids`; if there is no such user (no web process runs here), root alone may use the socket. backlog:
    0 for a datagram socket.
    """
    made = socket.socket(socket.AF_UNIX, kind)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    os.fchmod(made.fileno(), 0o600)  # bind creates the file with this mode, so others can use it at no time
    made.bind(str(fresh))
    with suppress(Refused):
        os.chown(fresh, *user_ids(user), follow_symlinks=False)
    if backlog:
        made.listen(backlog)
    fresh.rename(path)  # replaces the socket of a previous process atomically
    return made

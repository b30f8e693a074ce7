"""The user of the hub owns its files, and the hub runs as the owner of its files."""

from __future__ import annotations

import logging
import os
import pwd
from contextlib import suppress
from pathlib import Path

from slicemgr.errors import Refused
from slicemgr.ipc.unix_socket import user_ids

log = logging.getLogger(__name__)


def exists(user: str) -> bool:
    """Whether there is the user of `hub.user`. Refused if it is root."""
    try:
        user_ids(user, "hub.user")
    except Refused as error:
        if user.partition(":")[0] in ("0", "root"):
            raise error
        return False
    return True


def give(folder: Path, user: str) -> None:
    """Change the owner of a folder and of the files in it. user: as in `hub.user`. Refused if it is root or unknown."""
    uid, gid = user_ids(user, "hub.user")
    for path in (*folder.iterdir(), folder):
        os.chown(path, uid, gid, follow_symlinks=False)


def become(folder: Path, sockets: Path, web: str) -> None:
    """Give up root's privileges permanently, if this process has them, for those of the owner of `folder`.

    sockets: a directory that it then may write. web: the user of the web process, as in `web.user`; the process joins
    its group, which may use the sockets.
    """
    if os.geteuid() != 0 or not folder.exists():
        return
    held = folder.stat()
    if held.st_uid == 0:
        log.warning("the hub runs as root, because %s belongs to root and not to the user of hub.user", folder)
        return
    sockets.mkdir(mode=0o755, parents=True, exist_ok=True)
    os.chown(sockets, held.st_uid, held.st_gid, follow_symlinks=False)
    groups = set()
    with suppress(KeyError):  # a number without a name
        groups |= set(os.getgrouplist(pwd.getpwuid(held.st_uid).pw_name, held.st_gid))
    with suppress(Refused):  # there is no web process
        groups.add(user_ids(web)[1])
    os.setgroups(sorted(groups))
    os.setgid(held.st_gid)
    os.setuid(held.st_uid)

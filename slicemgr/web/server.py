"""gunicorn around the application, as an unprivileged user."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

from gunicorn.app.base import BaseApplication

from slicemgr.config import Config
from slicemgr.errors import invalid
from slicemgr.service import experiments, images
from slicemgr.store import open as open_store
from slicemgr.web import create_app
from slicemgr.web.access_log import AccessLog


def url(config: Config) -> str:
    return f"http://{config.web.host}:{config.web.port}"


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


def make_directories(config: Config) -> None:
    """The state's directories with their owners: the web process writes the database and its uploads, no more."""
    uid, gid = user_ids(config.web.user)
    config.node.run_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
    config.node.state_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
    config.images_dir.mkdir(mode=0o700, exist_ok=True)
    for directory in (config.node.state_dir / "db", config.uploads_dir, config.experiments_dir):
        directory.mkdir(mode=0o700, exist_ok=True)
        own(directory, uid, gid)


def own(directory: Path, uid: int, gid: int) -> None:
    """Give a directory and the files in it to the web process."""
    for path in (directory, *directory.iterdir()):
        os.chown(path, uid, gid, follow_symlinks=False)


def drop_root(config: Config) -> None:
    """Become `web.user` for good, if this is root."""
    if os.geteuid() == 0:
        uid, gid = user_ids(config.web.user)
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)


class _Server(BaseApplication):  # type: ignore[misc]
    """gunicorn, told everything by us: it reads no file and no command line."""

    def __init__(self, config: Config) -> None:
        self._config = config
        super().__init__()

    def load_config(self) -> None:
        settings: dict[str, Any] = {
            "bind": [f"{self._config.web.host}:{self._config.web.port}"],
            "workers": 1,
            "worker_class": "gthread",
            "threads": self._config.web.threads,
            "timeout": 120,
            "graceful_timeout": 5,
            "keepalive": 75,
            "user": os.geteuid(),  # gunicorn's own default is who imported it
            "group": os.getegid(),
            "worker_tmp_dir": "/dev/shm",
            "proc_name": "slicemgr-web",
            "logger_class": AccessLog,
            "accesslog": "-" if self._config.log.access else None,
            "forwarded_allow_ips": "",  # whom to believe is `web.proxies`'s to say
            "loglevel": "warning",
        }
        for name, value in settings.items():
            self.cfg.set(name, value)
        if "control_socket_disable" in self.cfg.settings:
            self.cfg.set("control_socket_disable", True)

    def load(self) -> Any:
        store = open_store(self._config)
        images.sweep_uploads(store, self._config)
        experiments.sweep(store, self._config)
        return create_app(self._config, store)


def serve(config: Config) -> None:
    """Serve until SIGTERM. Drops root first."""
    drop_root(config)
    _Server(config).run()

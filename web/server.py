"""gunicorn around the application, as an unprivileged user."""

from __future__ import annotations

import gc
import logging
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from gunicorn.app.base import BaseApplication

from slicemgr.config import PACKAGE, Config
from slicemgr.errors import invalid
from slicemgr.ipc.unix_socket import user_ids
from slicemgr.service.experiments import publications
from slicemgr.service.nodes import images
from slicemgr.store import open as open_store
from slicemgr.web import create_app
from slicemgr.web.access_log import AccessLog
from slicemgr.web.refusals import Refusals
from slicemgr.web.worker import Worker

log = logging.getLogger(__name__)


def url(config: Config) -> str:
    return f"http://{config.web.host}:{config.web.port}"


def make_directories(config: Config) -> None:
    """Create the directories of the state. The web process owns the database and its uploads, nothing else."""
    uid, gid = user_ids(config.web.user)
    config.node.run_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
    config.node.state_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
    config.images_dir.mkdir(mode=0o700, exist_ok=True)
    for directory in (config.node.state_dir / "db", config.uploads_dir, config.experiments_dir):
        directory.mkdir(mode=0o700, exist_ok=True)
        own(directory, uid, gid)


def own(directory: Path, uid: int, gid: int) -> None:
    """Change the owner of a directory and its direct content to the web process.

    The process, or an attacker in it, may have put anything there and may change it meanwhile. So everything is opened
    without following links and checked by its descriptor: only directories and files with one link change their owner,
    the rest is left alone. Refused if the directory is a link that is not root's own.
    """
    if directory.is_symlink() and directory.lstat().st_uid != 0:
        hint = "use a directory or a link that root owns"
        raise invalid("node.state_dir", f"{directory} is a symbolic link that belongs to another user", hint)
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fchown(folder, uid, gid)
        os.fchmod(folder, 0o700)
        with os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    _own_entry(folder, entry.name, uid, gid)
    finally:
        os.close(folder)


def _own_entry(folder: int, name: str, uid: int, gid: int) -> None:
    entry = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        held = os.fstat(entry)
        if (held.st_uid, held.st_gid) == (uid, gid):
            return
        if stat.S_ISDIR(held.st_mode) or (stat.S_ISREG(held.st_mode) and held.st_nlink == 1):
            os.chown(f"/proc/self/fd/{entry}", uid, gid)
        else:
            log.warning("%r in a directory of the web process is not a regular file; its owner is not changed", name)
    finally:
        os.close(entry)


def closed_to(uid: int, gid: int, path: Path) -> Path | None:
    """The first directory on the way down to `path` that a user of one group cannot enter; None if there is none."""
    for directory in (*reversed(path.parents), path):
        held = directory.stat()
        needed = stat.S_IXUSR if held.st_uid == uid else stat.S_IXGRP if held.st_gid == gid else stat.S_IXOTH
        if not held.st_mode & needed:
            return directory
    return None


def drop_root(config: Config) -> None:
    """Become `web.user` permanently, if this is root. Refused if that user cannot reach the program and its pages."""
    if os.geteuid() == 0:
        uid, gid = user_ids(config.web.user)
        if (closed := closed_to(uid, gid, PACKAGE)) is not None:
            hint = "install slicemgr where that user can read it, for instance in /opt"
            raise invalid("web.user", f"the user {config.web.user} cannot enter {closed}", hint)
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)


class _Server(BaseApplication):  # type: ignore[misc]
    """gunicorn, configured by this module alone: it reads no file and no command line."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.web, self.refusals = config.web, Refusals()
        super().__init__()

    def load_config(self) -> None:
        settings: dict[str, Any] = {
            "bind": [f"{self._config.web.host}:{self._config.web.port}"],
            "workers": 1,
            "worker_class": Worker,
            "worker_connections": 2 * self._config.web.connections + self._config.web.threads,  # done in Worker
            "threads": self._config.web.threads,
            "timeout": 120,
            "graceful_timeout": 5,
            "keepalive": 75,
            "user": os.geteuid(),  # gunicorn's default is the user at import
            "group": os.getegid(),
            "worker_tmp_dir": "/dev/shm",
            "proc_name": "slicemgr-web",
            "logger_class": AccessLog,
            "accesslog": "-" if self._config.log.access else None,
            "forwarded_allow_ips": "",  # `web.proxies` decides which proxies are trusted
            "loglevel": "warning",
        }
        for name, value in settings.items():
            self.cfg.set(name, value)
        if "control_socket_disable" in self.cfg.settings:
            self.cfg.set("control_socket_disable", True)

    def load(self) -> Any:
        store = open_store(self._config)
        images.sweep_uploads(store, self._config)
        publications.sweep(store, self._config)
        app = create_app(self._config, store, self.refusals)
        app.extensions["slicemgr"].authenticator.passwords.matches("", "")  # the first check takes longer
        gc.collect()
        gc.freeze()  # what is here stays: not to search it for cycles saves a long list a fifth of its time
        return app


def serve(config: Config) -> None:
    """Serve until SIGTERM. Drops root first."""
    drop_root(config)
    _Server(config).run()

"""The web process as an unprivileged user, as in production, and its well-behaved and misbehaving clients."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import web_fork
from bare_service import Service, config_in, store_table

from slicemgr import config as settings
from slicemgr.web import server

USER = 64123  # a UID that no account uses


@dataclass
class Web:
    """The running process, and the service that represents the agent."""

    process: ForkServerProcess
    port: int
    service: Service
    token: str

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            data = body if body is None or isinstance(body, bytes) else json.dumps(body)
            connection.request(method, path, data, {"Authorization": f"Bearer {self.token}", **(headers or {})})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def page(self, seconds: float) -> int:
        """The status of a page; 0 if there is no answer within `seconds`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        with contextlib.closing(connection):
            try:
                connection.request("GET", "/sign-in")
                return connection.getresponse().status
            except TimeoutError:
                return 0

    def spooled(self) -> list[str]:
        return [path.name for path in self.service.config.uploads_dir.iterdir()]


@contextlib.contextmanager
def serving(*, plain: bool = False, **web: Any) -> Iterator[Web]:
    """Run a process with settings of `web`. plain: use gunicorn's own worker, whose threads wait for clients."""
    folder = Path(tempfile.mkdtemp(prefix="slicemgr-web-"))
    folder.chmod(0o755)
    port = free_port()
    file = folder / "slicemgr.toml"
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in web.items())
    file.write_text(
        f'[node]\nstate_dir = "{folder}/state"\nrun_dir = "{folder}/run"\n'
        f'[web]\nport = {port}\nuser = "{USER}:{USER}"\n{lines}{store_table(config_in(folder))}'
    )
    try:
        with Service(folder) as service:
            token = service.token()
            server.make_directories(settings.load(file))
            with _running(file, port, plain) as process:
                yield Web(process, port, service, token)
    finally:
        shutil.rmtree(folder)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _running(file: Path, port: int, plain: bool) -> Iterator[ForkServerProcess]:
    process = web_fork.start(file, plain=plain)
    try:
        for _ in range(1200):
            assert process.is_alive(), "the web process ended"
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.05)
        yield process
    finally:
        web_fork.end(process)


def until(condition: Callable[[], object]) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.02)
    pytest.fail("it did not happen")

"""A private RabbitMQ from Debian's package, in namespaces of its own: no network but loopback, no other processes.

Its files are in a temporary directory and are removed at the end. `inside` brings a thread into its network.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import secrets
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nodebox_linux import CLONE_NEWNET, setns
from private_server import PrivateServer

from slicemgr.certificates.authority import Authority
from slicemgr.hub import broker_files
from slicemgr.policy import broker

USER = "rabbitmq"  # created by Debian's package
HOST, PORT, MANAGEMENT = "127.0.0.1", 5671, 15672
_START = 300.0  # seconds; for a machine with much load


def program() -> Path:
    found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    if not found:
        raise RuntimeError("there is no RabbitMQ: apt-get install rabbitmq-server")
    return found[-1]


def environment(files: Path, work: Path) -> dict[str, str]:
    """The environment of the broker. files: the folder of `write_broker`. work: for its own files; Erlang's home."""
    return {
        "HOME": str(work),
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "RABBITMQ_CONF_ENV_FILE": str(files / broker_files.ENVIRONMENT),
        "RABBITMQ_MNESIA_BASE": str(work / "mnesia"),
        "RABBITMQ_LOG_BASE": str(work / "log"),
        # Threads of an idle scheduler wait actively by default.
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none +S 2:2",
    }


class Broker(PrivateServer):
    """authority: of its certificate and of those of its clients.

    own_network: whether each start makes a network for it; otherwise it uses that of this process.
    """

    def __init__(self, authority: Authority, *, own_network: bool = True) -> None:
        super().__init__("RabbitMQ", "slicemgr-mq-")
        self.authority = authority
        self._network = ["--net"] if own_network else []
        self.password = secrets.token_urlsafe(24)

    def _prepare(self) -> None:
        self.folder.chmod(0o711)
        made = self.folder / "broker"
        listen = (HOST, PORT)
        broker_files.write_broker(self.authority, made, [HOST, "localhost"], listen, MANAGEMENT, self.password)
        for directory in ("log", "mnesia"):
            (made / directory).mkdir(mode=0o700)
        (made / ".erlang.cookie").write_text(secrets.token_hex(16))
        (made / ".erlang.cookie").chmod(0o400)
        for path in (made, *made.iterdir()):
            shutil.chown(path, USER, USER)

    def start(self) -> None:
        """Start the broker, and wait until clients can connect."""
        made = self.folder / "broker"
        # The shell stays the first process of the namespace: --kill-child has no effect on one that changed its user.
        inner = f"ip link set lo up && setpriv --reuid={USER} --regid={USER} --init-groups {program()}; exit $?"
        words = ["setpriv", "--pdeathsig=KILL", "--", "unshare", *self._network, "--pid", "--fork", "--kill-child"]
        words += ["--mount-proc", "sh", "-c", inner]
        self._run(words, _START, environment(made, made))

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            status, found = self.call("GET", "/overview")
            return status == 200 and "amqp/ssl" in {one["protocol"] for one in found["listeners"]}
        return False

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the broker and everything in its namespaces."""
        self._end(number)

    def control(self, *words: str) -> None:
        """Run `rabbitmqctl` for this broker alone, by its name and cookie."""
        made = self.folder / "broker"
        argv = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups"]
        argv += [str(program().with_name("rabbitmqctl")), "--node", "slicemgr@localhost", *words]
        own = environment(made, made)
        with self.inside():
            subprocess.run(argv, env=own, cwd="/", stdout=subprocess.DEVNULL, check=True, timeout=_START)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Bring this thread into the broker's network. A socket stays in the network in which it was made."""
        assert self._process is not None
        own = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            other = os.open(f"/proc/{self._process.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                setns(other, CLONE_NEWNET)
            finally:
                os.close(other)
            try:
                yield
            finally:
                setns(own, CLONE_NEWNET)
        finally:
            os.close(own)

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON of a request to the management API, as the hub."""
        with self.inside(), contextlib.closing(http.client.HTTPConnection(HOST, MANAGEMENT, timeout=30)) as connection:
            secret = base64.b64encode(f"{broker.HUB}:{self.password}".encode()).decode()
            headers = {"Authorization": f"Basic {secret}", "Content-Type": "application/json"}
            connection.request(method, f"/api{path}", None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            content = response.read()
        return response.status, json.loads(content) if content else {}

    def credentials(self, name: str) -> dict[str, str]:
        """Files of a key and a certificate for `name`, with the names of the options of `ssl`."""
        folder = self.folder / "clients" / name
        if not folder.exists():
            broker_files.write_client(self.authority, folder, name)
        files = {"ca_certs": "authority.pem", "certfile": "certificate.pem", "keyfile": "key.pem"}
        return {option: str(folder / file) for option, file in files.items()}

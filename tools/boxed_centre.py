"""The centre of a testbed of boxes: PostgreSQL, RabbitMQ, signer, hub, and the service behind nginx, in one box."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import boxed_nginx
import broker_server
import postgres_server
from demo import RUN, VENV
from nodebox_box import Box
from nodebox_linux import BoxError, wait_until
from nodebox_switch import Switch

from slicemgr.hub import broker_files

NAME = "centre"  # of the node, if it is one
AMQP, WEB = 5671, 8480
READY = 300.0  # seconds; for a machine with much load
STATE = Path("/var/lib/slicemgr")
SETTINGS = Path("/etc/slicemgr/slicemgr.toml")
_CLUSTER, _SOCKETS = STATE / "postgres", Path("/run/postgresql")
_FILES, _WORK = STATE / "broker", STATE / "rabbitmq"
_AUTHORITY = STATE / "authority/certificate.pem"
_TEXT = """\
[node]
name = "{name}"
address = "{address}"

[store]
url = "postgresql://{user}:{password}@/{user}?host={sockets}"

[web]
host = "127.0.0.1"
port = {web}
user = "65534:65534"
url = "https://{address}"
proxies = 1

[hub]
broker = "{address}:{amqp}"
"""
# What earlier versions may not know: a setting of `hub`, and a section.
_RECENT = """\
user = "64128:64128"

[spares]
keep = {spares}
"""


class Daemons:
    """Programs in the background of a box. venv: the virtual environment with slicemgr.

    clock: seconds by which the clock of programs that are started is ahead.
    """

    def __init__(self, box: Box, venv: Path = VENV) -> None:
        self.box, self.venv, self.clock = box, venv, 0

    @property
    def _environment(self) -> dict[str, str]:
        if not self.clock:
            return {}
        library = RUN / "clock_shift.so"
        if not library.exists():
            words = [
                "gcc",
                "-O2",
                "-shared",
                "-fPIC",
                "-o",
                str(library),
                str(Path(__file__).with_name("clock_shift.c")),
            ]
            subprocess.run([*words, "-ldl"], check=True)
        return {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(self.clock)}

    def slicemgr(self, command: str, ready: Callable[[], bool] = lambda: True) -> None:
        """Run `slicemgr COMMAND` until the box ends."""
        self.run(command, [str(self.venv / "bin/slicemgr"), command], ready)

    def run(self, tag: str, words: Sequence[str], ready: Callable[[], bool], **environment: str) -> None:
        """Start a program unless it runs, and wait until it is ready. Raises BoxError if it ends before."""
        if self.box.daemon(tag) is None:
            self.box.background(tag, words, {**self._environment, **environment})
        self.wait(tag, ready)

    def wait(self, tag: str, ready: Callable[[], bool]) -> None:
        if not wait_until(lambda: ready() or self.box.daemon(tag) is None, READY, 0.1) or self.box.daemon(tag) is None:
            raise BoxError(f"{tag} does not start in {self.box.name}: {self.log(tag)[-2000:]}")

    def log(self, tag: str) -> str:
        """The output of a program, also of earlier runs."""
        path = self.box.directory / "log" / f"{tag}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def listens(self, port: int) -> bool:
        """Whether a program in the box listens at a TCP port."""
        return bool(self.box.run(["ss", "-Htln", f"sport = :{port}"], check=True).stdout.strip())

    def shell(self, script: str) -> None:
        """Run a script in the box. Raises BoxError."""
        done = self.run_shell(script)
        if done.returncode != 0:
            raise BoxError(f"{self.box.name}: {script.splitlines()[0]} …: {done.stderr.strip()}")

    def run_shell(self, script: str) -> subprocess.CompletedProcess[str]:
        given = [f"export {name}={value}\n" for name, value in self._environment.items()]
        return self.box.run(["sh", "-ec", "".join(given) + script], timeout=READY)


class Centre:
    """`start` brings it up, or starts what does not run; then it has an address, at which users and nodes reach it.

    with_agent: it is also a node, whose agent uses the database of the service. daemons: its programs, with the
    version of slicemgr. spares: what nodes keep ready, from the next start of programs.
    """

    spares: Sequence[str] = ()

    def __init__(self, box: Box, switch: Switch, venv: Path = VENV, *, with_agent: bool = False) -> None:
        self.box, self.address, self.with_agent = box, "", with_agent
        self.daemons = Daemons(box, venv)
        self._switch = switch

    @property
    def url(self) -> str:
        return f"https://{self.address}"

    @property
    def authority(self) -> Path:
        """A copy of the certificate of the testbed's authority, which vouches for its web page."""
        return RUN / self.box.name / "authority.pem"

    def start(self) -> None:
        self.box.make(link="none", with_libvirt=self.with_agent)
        self.address = self.box.plug(self._switch)
        self._start_database(self._write_settings())
        self.daemons.shell(f"{self.daemons.venv}/bin/slicemgr init")
        self.daemons.slicemgr("signer", self.box.path(_AUTHORITY).exists)
        self.authority.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.authority.write_bytes(self.box.path(_AUTHORITY).read_bytes())
        self.start_programs()

    def start_programs(self) -> None:
        """Start what does not run, in a centre that was started before. Raises BoxError."""
        self._start_database(self._write_settings())
        self._start_broker()
        self.daemons.slicemgr("hub")
        self.daemons.slicemgr("web", lambda: self.daemons.listens(WEB))
        if self.box.daemon("nginx") is None:
            self._start_nginx()
        if self.with_agent and self.box.daemon("agent") is None:
            before = self.daemons.log("agent").count("is ready")
            self.daemons.slicemgr("agent", lambda: self.daemons.log("agent").count("is ready") > before)

    def _write_settings(self) -> str:
        """Returns the password of the database, which is made once."""
        secret = self.box.path(STATE / "postgres-password")
        if not secret.exists() or not secret.read_text():
            secret.touch(mode=0o600)
            secret.write_text(secrets.token_urlsafe(24))
        password = secret.read_text()
        places = {"name": NAME, "user": postgres_server.USER, "sockets": _SOCKETS, "web": WEB, "amqp": AMQP}
        settings = self.box.path(SETTINGS)
        settings.touch(mode=0o600)
        text = _TEXT.format(address=self.address, password=password, **places)
        recent = _RECENT.format(spares=json.dumps(list(self.spares))) if self.daemons.venv == VENV else ""
        settings.write_text(text + recent)
        return password

    def _start_database(self, password: str) -> None:
        user, new = postgres_server.USER, _CLUSTER.with_suffix(".new")
        if not self.box.path(_CLUSTER).exists():
            given = self.box.path("/run/password")
            given.touch(mode=0o600)
            given.write_text(password)
            words = postgres_server.init_words(new, Path("/run/password"))
            self.daemons.shell(f"""\
chown {user} /run/password
rm -rf {new}
install --directory --mode=700 --owner={user} --group={user} {new}
cd /; {" ".join(words)}
rm /run/password
mv {new} {_CLUSTER}""")
        self.daemons.shell(f"install --directory --owner={user} --group={user} {_SOCKETS}")
        if self.box.daemon("postgres") is None:
            for left in (_CLUSTER / "postmaster.pid", _SOCKETS / ".s.PGSQL.5432.lock"):  # of before a reboot or a kill
                self.box.path(left).unlink(missing_ok=True)
        words = [*postgres_server.unprivileged(), *postgres_server.server_words(_CLUSTER, _SOCKETS)]
        ready = [str(postgres_server.programs() / "pg_isready"), "-q", "-h", str(_SOCKETS)]
        self.daemons.run("postgres", words, lambda: self.box.run(ready).returncode == 0)

    def _start_broker(self) -> None:
        user = broker_server.USER
        if not self.box.path(_FILES / broker_files.COMPLETE).exists():
            self.daemons.shell(f"""\
rm -rf {_FILES} {STATE}/hub
{self.daemons.venv}/bin/slicemgr broker-files {_FILES}
chown -R {user}: {_FILES}""")
        self.daemons.shell(f"install --directory --mode=700 --owner={user} --group={user} {_WORK}")
        words = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", str(broker_server.program())]
        environment = broker_server.environment(_FILES, _WORK)
        self.daemons.run("rabbitmq", words, lambda: self.daemons.listens(AMQP), **environment)

    def _start_nginx(self) -> None:
        """The web page has the certificate of the broker, which is for the same address."""
        names = {
            "/etc/ssl/slicemgr/fullchain.pem": str(_FILES / broker_files.CERTIFICATE),
            "/etc/ssl/slicemgr/privkey.pem": str(_FILES / broker_files.KEY),
            "testbed.example": self.address,
        }
        boxed_nginx.start(self.box, SETTINGS.parent, names)
        self.daemons.wait("nginx", lambda: self.daemons.listens(443))

    def client(self) -> dict[str, str]:
        """The settings of a client for the built-in admin, from outside of the box."""
        found = json.loads(self.box.path("/run/slicemgr/client.json").read_text())
        return {**found, "url": self.url}

    def slicectl(self, *words: str | Path) -> str:
        """The output of `slicectl` on the host, which must succeed; errors are shown at once."""
        found = self.client()
        environment = {"SLICEMGR_URL": found["url"], "SLICEMGR_TOKEN": found["token"]}
        trust = {"SSL_CERT_FILE": str(self.authority)}
        argv = [str(VENV / "bin/slicectl"), *map(str, words)]
        return subprocess.run(
            argv, check=True, text=True, stdout=subprocess.PIPE, env={**os.environ, **environment, **trust}
        ).stdout

    def sign_in_link(self) -> str:
        return self.box.run([self.daemons.venv / "bin/slicemgr", "sign-in-link"], check=True).stdout.strip()

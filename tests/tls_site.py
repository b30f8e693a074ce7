"""A node behind a real nginx with TLS, both in a box: the file of tools/nginx with the address of the box."""

from __future__ import annotations

import datetime
import ipaddress
import os
import signal
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import boxed_nginx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from testbed import BIN, PORT, Node, eventually

from slicemgr.client import Client

PLACE = Path("/etc/slicemgr")  # a directory of the box, not of the host


class TlsNode(Node):
    """A node whose users connect through nginx, at `url`."""

    def settle(self) -> None:
        """Before the start: trust one proxy, use secure cookies, log JSON, and install the certificate."""
        edit = 's/^\\[web\\]/[log]\\nformat = "json"\\n\\n[web]\\nproxies = 1/; s/^cookie = .*//'
        self.box.run(["sed", "-i", edit, "/etc/slicemgr/slicemgr.toml"], check=True)
        key, certificate = _certificate(self.box.address)
        for name, data in (("privkey.pem", key), ("fullchain.pem", certificate)):
            self.box.path(PLACE / name).write_bytes(data)

    @property
    def url(self) -> str:
        return f"https://{self.box.address}"

    @property
    def plain_url(self) -> str:
        """The URL of the service itself."""
        return f"http://{self.box.address}:{PORT}"

    @property
    def authority(self) -> Path:
        """The path of the certificate, which is self-signed."""
        return self.box.path(PLACE / "fullchain.pem")

    def start_web(self) -> None:
        self.start_nginx()
        self.box.background("web", [str(BIN / "slicemgr"), "web"])
        eventually(self._answers, "the web process answers through nginx")

    def _answers(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{self.url}/healthz", context=self.trust()) as answer:
            return bool(answer.status == 200)
        return False

    def start_nginx(self, **changes: str) -> None:
        """Start nginx. changes: other replacements in the shipped file, for weakened controls."""
        self.stop_nginx()
        ours = {
            "127.0.0.1:8480": f"{self.box.address}:{PORT}",
            "testbed.example": self.box.address,
            "/etc/ssl/slicemgr": str(PLACE),
        }
        boxed_nginx.start(self.box, PLACE, {**ours, **changes})
        eventually(self._listens, "nginx listens")

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection((self.box.address, 443), timeout=5):
            return True
        return False

    def stop_nginx(self) -> None:
        if self.box.daemon("nginx") is not None:
            self.box.signal_daemon("nginx", signal.SIGTERM)

    def nginx_logs(self) -> str:
        paths = (self.box.path(PLACE / f"nginx-{name}.log") for name in ("access", "error"))
        return "".join(path.read_text() for path in paths if path.exists())

    def client(self) -> Client:
        os.environ["SSL_CERT_FILE"] = str(self.authority)
        return Client(self.url, self.token())

    def environment(self) -> Mapping[str, str]:
        trust = {"SSL_CERT_FILE": str(self.authority)}
        return {**os.environ, **trust, "SLICEMGR_URL": self.url, "SLICEMGR_TOKEN": self.token()}

    def slicectl(self, *words: str | Path, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        os.environ["SSL_CERT_FILE"] = str(self.authority)
        return super().slicectl(*words, timeout=timeout)

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority))


def _certificate(address: str) -> tuple[bytes, bytes]:
    """A key and a self-signed certificate of an address, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "testbed")])
    now = datetime.datetime.now(datetime.UTC)
    names: list[Any] = [x509.IPAddress(ipaddress.ip_address(address))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private, made.public_bytes(serialization.Encoding.PEM)

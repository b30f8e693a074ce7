"""The testbed's certificate authority: a key that only the signer reads, and what it issues (RFC 5280)."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from slicemgr.certificates import requests
from slicemgr.certificates.private_files import write_private
from slicemgr.errors import Code, Failed, Refused

NODE_VALID = timedelta(days=90)
SERVICE_VALID = timedelta(days=365)
_AUTHORITY_VALID = timedelta(days=3650)
_CLOCKS = timedelta(days=1)  # how far the clock of a node may be behind
_KEY, _CERTIFICATE = "key.pem", "certificate.pem"


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate. serial: hexadecimal digits. certificate: PEM."""

    serial: str
    certificate: str
    expires_at: datetime


class Authority:
    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate

    @classmethod
    def create(cls, folder: Path, now: datetime) -> Authority:
        """Make a key and its certificate in a new folder that only the owner can read. Refused(CONFLICT) if it exists.

        The certificate is written last: without it the folder holds no authority.
        """
        key = requests.new_key()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "slicemgr testbed")])
        usage = _usage(key_cert_sign=True, crl_sign=True)
        made = (
            _builder(name, name, key.public_key(), now, _AUTHORITY_VALID)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        try:
            folder.mkdir(mode=0o700, parents=True)
        except FileExistsError as error:
            hint = "move it away if it is not in use"
            raise Refused(Code.CONFLICT, f"{folder} exists", hint=hint) from error
        write_private(folder / _KEY, requests.key_pem(key))
        write_private(folder / _CERTIFICATE, made.public_bytes(serialization.Encoding.PEM))
        return cls(key, made)

    @classmethod
    def load(cls, folder: Path) -> Authority:
        """Refused(NOT_FOUND) if there is none; Failed if its files cannot be used."""
        try:
            certificate = x509.load_pem_x509_certificate((folder / _CERTIFICATE).read_bytes())
            key = serialization.load_pem_private_key((folder / _KEY).read_bytes(), password=None)
        except FileNotFoundError as error:
            raise Refused(Code.NOT_FOUND, f"{folder} has no certificate authority") from error
        except (OSError, ValueError, TypeError) as error:
            raise Failed(f"the certificate authority in {folder} cannot be read: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise Failed(f"the key in {folder} is not that of the certificate")
        return cls(key, certificate)

    @property
    def certificate(self) -> str:
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def fingerprint(self) -> str:
        return requests.fingerprint(self.certificate)

    def node(self, identity: str, key: ec.EllipticCurvePublicKey, now: datetime) -> Issued:
        """A client certificate for the key of a node. identity: its common name."""
        return self._issue(identity, key, now, NODE_VALID, ExtendedKeyUsageOID.CLIENT_AUTH, ())

    def client(self, name: str, key: ec.EllipticCurvePublicKey, now: datetime) -> Issued:
        """A client certificate for a process of the centre, such as `hub`."""
        return self._issue(name, key, now, SERVICE_VALID, ExtendedKeyUsageOID.CLIENT_AUTH, ())

    def server(self, hosts: Sequence[str], key: ec.EllipticCurvePublicKey, now: datetime) -> Issued:
        """A server certificate. hosts: its DNS names and IP addresses."""
        return self._issue(hosts[0], key, now, SERVICE_VALID, ExtendedKeyUsageOID.SERVER_AUTH, hosts)

    def _issue(
        self,
        name: str,
        key: ec.EllipticCurvePublicKey,
        now: datetime,
        valid: timedelta,
        purpose: x509.ObjectIdentifier,
        hosts: Sequence[str],
    ) -> Issued:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = self._certificate.subject
        builder = (
            _builder(subject, issuer, key, now, valid)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(list(map(_host, hosts))), critical=False)
        made = builder.sign(self._key, hashes.SHA256())
        pem = made.public_bytes(serialization.Encoding.PEM).decode()
        return Issued(f"{made.serial_number:x}", pem, made.not_valid_after_utc)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, valid: timedelta
) -> x509.CertificateBuilder:
    now = now.astimezone(UTC).replace(microsecond=0)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - _CLOCKS).not_valid_after(now + valid)


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)

"""Keys of nodes, and their requests for certificates (PKCS #10). A host that is not trusted yet sends one."""

from __future__ import annotations

import hashlib
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from slicemgr.errors import invalid

LONGEST = 4096  # characters of a request or certificate
_HINT = "a PEM certificate request with a P-256 key"


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The unencrypted private key: for a file that only its owner can read."""
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption())


def new_request(key: ec.EllipticCurvePrivateKey) -> str:
    """A request that names nobody: the authority chooses the name."""
    made = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode()


def public_key(request: object, field: str = "request") -> ec.EllipticCurvePublicKey:
    """The key of a request that its sender holds. Refused(INVALID). Everything else in the request is ignored."""
    if not isinstance(request, str) or not request or len(request) > LONGEST:
        raise invalid(field, "must be text", f"{_HINT}, at most {LONGEST} characters")
    try:
        parsed = x509.load_pem_x509_csr(request.encode())
        signed, key = parsed.is_signature_valid, parsed.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise invalid(field, "is not a certificate request", _HINT) from error
    if not signed:
        raise invalid(field, "is not signed with its own key", _HINT)
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise invalid(field, "has a key of another type", _HINT)
    return key


def fingerprint(certificate: str) -> str:
    """The sha256 of a PEM certificate, 64 hexadecimal digits. Refused(INVALID)."""
    return hashlib.sha256(load(certificate).public_bytes(serialization.Encoding.DER)).hexdigest()


def load(certificate: str, field: str = "certificate") -> x509.Certificate:
    """Refused(INVALID) for anything but one PEM certificate."""
    try:
        (found,) = x509.load_pem_x509_certificates(certificate.encode())
    except ValueError as error:
        raise invalid(field, "is not a certificate", "one certificate in PEM") from error
    return found


def common_name(certificate: x509.Certificate) -> str:
    """The name of the certificate's holder. Refused(INVALID) unless it has exactly one."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1:
        raise invalid("certificate", "does not have exactly one common name")
    return str(names[0].value)


def check_renewal(request: str, certificate: str, authority: str, name: str) -> None:
    """Refused(INVALID) unless the request has the key of a certificate of that name, which the authority issued."""
    key, found = public_key(request), load(certificate)
    _check_issuer(found, load(authority, "authority"))
    if found.public_key() != key:
        raise invalid("request", "is not for the key of the present certificate")
    if common_name(found) != name:
        raise invalid("certificate", "has another name")


def _check_issuer(found: x509.Certificate, issuer: x509.Certificate) -> None:
    try:
        found.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise invalid("certificate", "was not issued by the authority of the testbed") from error


def check_member(certificate: bytes, authority: str, identity: str, now: datetime) -> None:
    """Refused(INVALID) unless a certificate (DER) is valid now, and the authority issued it to that identity."""
    try:
        found = x509.load_der_x509_certificate(certificate)
    except ValueError as error:
        raise invalid("certificate", "is not a certificate") from error
    _check_issuer(found, load(authority, "authority"))
    if common_name(found) != identity:
        raise invalid("certificate", "has another name")
    if not found.not_valid_before_utc <= now < found.not_valid_after_utc:
        raise invalid("certificate", "has expired")


def check_issued(certificate: str, authority: str, key: ec.EllipticCurvePrivateKey) -> str:
    """The name in a certificate for `key` that the authority issued. Refused(INVALID) if either did not."""
    found, issuer = load(certificate), load(authority, "authority")
    _check_issuer(found, issuer)
    if found.public_key() != key.public_key():
        raise invalid("certificate", "is for another key")
    return common_name(found)

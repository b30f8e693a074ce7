"""Requests of this host to the service of its testbed, over TLS."""

from __future__ import annotations

import http.client
import json
import ssl
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

from slicemgr.certificates import requests
from slicemgr.errors import Code, Failed, Refused
from slicemgr.store.updates import utcnow

TIMEOUT = 30.0  # seconds for one request
_LARGEST = 64 << 10  # bytes of an answer
_OTHER_TIMES = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID and _CERT_HAS_EXPIRED of openssl/x509_vfy.h


def trust(authority: str) -> ssl.SSLContext:
    """The authorities of the system, and that of the testbed."""
    context = ssl.create_default_context()
    context.load_verify_locations(cadata=authority)
    return context


def clock_hint(error: Exception) -> str:
    """What to check if a certificate is not valid at the time that the clock of this host says; "": it is not that."""
    if not isinstance(error, ssl.SSLCertVerificationError) or error.verify_code not in _OTHER_TIMES:
        return ""
    return f"the clock of this host says {utcnow():%Y-%m-%d %H:%M} UTC: if that is wrong, set it, and try again"


def connection(url: str, context: ssl.SSLContext, timeout: float = TIMEOUT) -> http.client.HTTPConnection:
    """A connection to the service, which opens with its first use. url: as `slicemgr join` checked it."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    if parts.scheme == "https":
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=context)
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)


def call(url: str, method: str, path: str, body: dict[str, str] | None, context: ssl.SSLContext) -> dict[str, Any]:
    """The JSON of the answer. Failed(UNAVAILABLE): the service cannot be reached. Refused, as the service did."""
    parts, opened = urlsplit(url), connection(url, context)
    data = None if body is None else json.dumps(body).encode()
    headers = {"Accept": "application/json", "User-Agent": "slicemgr", "Content-Type": "application/json"}
    with ExitStack() as stack:
        stack.callback(opened.close)
        try:
            opened.request(method, f"{parts.path.rstrip('/')}/api/v1{path}", data, headers)
            response = opened.getresponse()
            status, content = response.status, response.read(_LARGEST)
        except ssl.SSLCertVerificationError as error:
            hint = clock_hint(error) or "neither the system's authorities nor the testbed's issued it for this name"
            raise Failed(
                f"the certificate of {parts.hostname} is not valid: {error.verify_message}", hint=hint
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise Failed(f"{url} does not answer: {error}", code=Code.UNAVAILABLE) from error
    try:
        answer = json.loads(content)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise Failed(f"{parts.hostname} answered with status {status} and no JSON", hint="is it the URL of slicemgr?")
    if status >= 400:
        code = Code.from_wire(str(answer.get("code")))
        raise Refused(code, shown(answer.get("detail")), hint=shown(answer.get("hint")))
    return answer


def text(answer: dict[str, Any], name: str, *, empty: bool = False) -> str:
    """A text of the answer. Failed if it is missing or too long."""
    value = answer.get(name)
    if not isinstance(value, str) or not (value or empty) or len(value) > requests.LONGEST:
        raise Failed(f"the answer of the testbed has no valid {name}")
    return value


def shown(value: object) -> str:
    """Text of a server that is not trusted yet, for a terminal."""
    return "".join(one if one.isprintable() else "?" for one in str(value or ""))[:300]

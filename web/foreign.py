"""Documents that somebody else wrote, served so that they can do nothing: no script, no request, no form, no origin."""

from __future__ import annotations

from pathlib import Path

from flask import Response, send_file

POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'self'"
)


def answer(path: Path, media_type: str) -> Response:
    """The file, for a frame of ours or a window of its own."""
    response = send_file(path, mimetype=media_type, conditional=True)
    response.headers["Content-Security-Policy"] = POLICY
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["X-Frame-Options"] = "SAMEORIGIN"
    # A window with a policy of its own for openers is refused what the sandbox takes away: it has none.
    response.headers["Cross-Origin-Opener-Policy"] = "unsafe-none"
    response.headers["Cache-Control"] = "private, no-cache"  # who may see it may change
    return response

"""Serve documents from users so that they can do nothing: no scripts, requests, forms, or access to this origin."""

from __future__ import annotations

from pathlib import Path

from flask import Response, send_file

POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'self'"
)


def text_answer(text: str) -> Response:
    """Text that a user may have written, which no browser takes for anything else."""
    return _confined(Response(text, mimetype="text/plain"))


def answer(path: Path, media_type: str) -> Response:
    """The file, for a frame of a page or a window of its own."""
    return _confined(send_file(path, mimetype=media_type, conditional=True))


def _confined(response: Response) -> Response:
    response.headers["Content-Security-Policy"] = POLICY
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["X-Frame-Options"] = "SAMEORIGIN"
    # Browsers refuse a sandboxed document with another opener policy.
    response.headers["Cross-Origin-Opener-Policy"] = "unsafe-none"
    response.headers["Cache-Control"] = "private, no-cache"  # visibility may change
    return response

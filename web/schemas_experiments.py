"""The shapes of published experiments for the OpenAPI description."""

from __future__ import annotations

from typing import Any

from marshmallow import Schema, fields

from slicemgr.policy import experiments as reports
from slicemgr.web.schemas import Listed

_NAME = {"type": "string", "minLength": 1, "maxLength": reports.LONGEST_NAME}
_NOTE = {"type": "string", "maxLength": reports.LONGEST_NOTE, "description": 'one paragraph; "": none'}
_PUBLIC = {"type": "boolean", "description": "visible to all users, else to admins only"}
CHANGE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {**_NAME, "example": "Scale to 200"},
        "note": {**_NOTE, "example": "The node was idle otherwise."},
        "public": _PUBLIC,
    },
}
QUERY = [
    {"in": "query", "name": "name", "schema": _NAME, "description": "default: the name of its experiment"},
    {"in": "query", "name": "note", "schema": _NOTE, "description": "one paragraph for its readers"},
    {"in": "query", "name": "public", "schema": {"type": "string", "enum": ["true", "false"], "default": "true"}},
]
ARCHIVE = {
    "required": True,
    "content": {
        "application/octet-stream": {
            "schema": {
                "type": "string",
                "format": "binary",
                "description": f"an uncompressed tar archive of the folder of a run: {reports.KNOWN}",
            }
        }
    },
}
_TEXTS = {
    kind: {"schema": {"type": "string"}, "example": f"the {ending[1:]} file"}
    for ending, kind in reports.TYPES.items()
    if kind != "application/json"
}
FILE: dict[str, Any] = {
    "200": {
        "description": "the file with its type; pages and pictures cannot load files or run scripts",
        "content": {**_TEXTS, "application/json": {"schema": {}}},
    }
}


class ReportFile(Schema):
    name = fields.String()
    size = fields.Integer(metadata={"description": "bytes"})
    type = fields.String(metadata={"description": "media type"})


class Experiment(Schema):
    """A published report."""

    id = fields.String()
    name = fields.String()
    kind = fields.String(metadata={"description": "scale, throughput, lifecycle, ..."})
    node = fields.String(allow_none=True)
    summary = fields.String(metadata={"description": "its outcome, one paragraph"})
    note = fields.String(allow_none=True)
    public = fields.Boolean(metadata={"description": "visible to all users, else to admins only"})
    started_at = fields.String(allow_none=True)
    published_at = fields.String()
    published_by = fields.String()
    size = fields.Integer(metadata={"description": "total size of its files in bytes"})
    sha256 = fields.String(metadata={"description": "of the archive"})
    files = fields.List(fields.Nested(ReportFile))


class Experiments(Listed):
    experiments = fields.List(fields.Nested(Experiment))

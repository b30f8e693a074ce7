"""The shapes of audits for the OpenAPI description."""

from __future__ import annotations

from typing import Any

from marshmallow import Schema, fields

from slicemgr.service.nodes import audits

_CELL = {"type": "string", "maxLength": audits.LONGEST}
REQUEST: dict[str, Any] = {
    "type": "object",
    "required": ["began_at", "rows"],
    "properties": {
        "began_at": {"type": "string", "format": "date-time"},
        "rows": {
            "type": "array",
            "minItems": 1,
            "maxItems": audits.MOST_ROWS,
            "items": {
                "type": "object",
                "required": [*audits.CELLS, "verdict"],
                "additionalProperties": False,
                "properties": {
                    **dict.fromkeys(audits.CELLS, _CELL),
                    "verdict": {"type": "string", "enum": list(audits.VERDICTS)},
                },
            },
        },
    },
}


class AuditRow(Schema):
    row = fields.String(metadata={"description": "attempted operation"})
    kind = fields.String(metadata={"description": "lxc, kvm, node or rest"})
    expected = fields.String()
    seen = fields.String()
    verdict = fields.String(metadata={"description": "pass, fail, or not applicable: `seen` gives the reason"})


class Audit(Schema):
    """The last audit of a node."""

    node = fields.String()
    began_at = fields.String()
    ended_at = fields.String()
    user = fields.String()
    version = fields.String(metadata={"description": "version of the service that stored it"})
    failed = fields.Integer(metadata={"description": "number of failed rows"})
    rows = fields.List(fields.Nested(AuditRow))

"""The API's shapes of leases and the clock, for its OpenAPI description."""

from __future__ import annotations

from marshmallow import Schema, fields

from slicemgr.web import schemas

_SPAN: dict[str, object] = {"type": "string", "example": "7d", "nullable": True}

LEASE_RULES: dict[str, object] = {
    "type": "object",
    "properties": {
        "default": {**_SPAN, "description": "default lease of a request"},
        "window": {**_SPAN, "description": "how long before its end a lease can be renewed; 0s: at any time"},
        "reminders": {"type": "array", "nullable": True, "items": {"type": "string"}, "description": "before the end"},
        "exempt": {"type": "boolean", "description": "leases do not expire"},
    },
}


class Renewed(schemas.Slice):
    trimmed = fields.String(allow_none=True, metadata={"description": "why the end differs from the request"})


class LeaseRules(Schema):
    """Spans in seconds."""

    project = fields.String()
    default = fields.Integer()
    longest = fields.Integer(metadata={"description": "see the project's quota"})
    grace = fields.Integer(metadata={"description": "grace period: stopped slices are kept, then deleted"})
    window = fields.Integer()
    reminders = fields.List(fields.Integer())
    exempt = fields.Boolean()
    own = fields.List(fields.String(), metadata={"description": "settings of the project that differ from the testbed"})


class Clock(Schema):
    says = fields.String()
    leases_go_by = fields.String()
    doubt = fields.String(allow_none=True)
    held = fields.Integer(metadata={"description": "number of leases on hold"})

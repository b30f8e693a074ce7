"""The API's shapes of leases and the clock, for its OpenAPI description."""

from __future__ import annotations

from marshmallow import Schema, fields

from slicemgr.web import schemas

_SPAN: dict[str, object] = {"type": "string", "example": "7d", "nullable": True}

LEASE_RULES: dict[str, object] = {
    "type": "object",
    "properties": {
        "default": {**_SPAN, "description": "of a request that is silent"},
        "window": {**_SPAN, "description": "renewed only in this last part of a lease; 0s: at any time"},
        "reminders": {"type": "array", "nullable": True, "items": {"type": "string"}, "description": "before the end"},
        "exempt": {"type": "boolean", "description": "leases never end"},
    },
}


class Renewed(schemas.Slice):
    trimmed = fields.String(allow_none=True, metadata={"description": "why the end is not what was asked for"})


class LeaseRules(Schema):
    """Spans in seconds."""

    project = fields.String()
    default = fields.Integer()
    longest = fields.Integer(metadata={"description": "see the project's quota"})
    grace = fields.Integer(metadata={"description": "kept stopped, then deleted"})
    window = fields.Integer()
    reminders = fields.List(fields.Integer())
    exempt = fields.Boolean()
    own = fields.List(fields.String(), metadata={"description": "what is the project's own and not the node's"})


class Clock(Schema):
    says = fields.String()
    leases_go_by = fields.String()
    doubt = fields.String(allow_none=True)
    held = fields.Integer(metadata={"description": "slices that are over by the clock alone"})

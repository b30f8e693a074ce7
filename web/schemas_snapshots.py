"""The shapes of snapshots for the OpenAPI description."""

from __future__ import annotations

from marshmallow import Schema, fields

from slicemgr.web import schemas

_NAME = schemas.SLICE_REQUEST["properties"]["name"]  # type: ignore[index]
SNAPSHOT_REQUEST: dict[str, object] = {"type": "object", "required": ["name"], "properties": {"name": _NAME}}
CLONE_REQUEST: dict[str, object] = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": _NAME,
        "lease": {"type": "string", "example": "7d"},
        "disk": {
            "description": "disk limit per sliver, including the data of the snapshot; bytes, or text such as 8G",
            "oneOf": [{"type": "integer"}, {"type": "string"}],
        },
        "ssh_keys": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "description": "default: the keys of your account, or else those of the original",
        },
    },
}


class SliverSnapshot(Schema):
    index = fields.Integer(metadata={"description": "of the sliver"})
    made_at = fields.String(allow_none=True)
    size = fields.Integer(allow_none=True, metadata={"description": "bytes beyond the image"})
    detail = fields.String(allow_none=True)


class Snapshot(Schema):
    name = fields.String()
    slice = fields.String()
    project = fields.String()
    state = fields.String(metadata={"description": "making or ready"})
    user = fields.String()
    created_at = fields.String()
    made_at = fields.String(allow_none=True)
    size = fields.Integer(
        allow_none=True,
        metadata={"description": "bytes beyond the image, including those shared with the slice"},
    )
    slivers = fields.List(fields.Nested(SliverSnapshot))


class Snapshots(Schema):
    snapshots = fields.List(fields.Nested(Snapshot))


class SnapshotAsked(schemas.Asked):
    snapshot = fields.Nested(Snapshot)

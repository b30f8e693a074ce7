"""The API's shapes of nodes that join a testbed."""

from __future__ import annotations

from typing import Any

from marshmallow import Schema, fields

from slicemgr.web.schemas import Node, Operation

_BROKER = {"description": "HOST:PORT; empty: there is none"}
_LABEL = {"type": "string", "minLength": 1, "maxLength": 40, "pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"}
NODE_REQUEST: dict[str, Any] = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {**_LABEL, "example": "node7"},
        "site": {**_LABEL, "description": "where it is", "example": "tuebingen"},
    },
}
RENAME_REQUEST: dict[str, Any] = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {**_LABEL, "example": "node8"}},
}
EVACUATE_REQUEST: dict[str, Any] = {
    "type": "object",
    "properties": {
        "lost": {
            "type": "boolean",
            "default": False,
            "description": "whether a silent node is lost, although it reported within 5 minutes",
        }
    },
}
PUSH_REQUEST: dict[str, Any] = {
    "type": "object",
    "required": ["node"],
    "properties": {"node": {"type": "string", "minLength": 1, "maxLength": 1024, "example": "node7"}},
}
_CSR = {
    "type": "string",
    "minLength": 1,
    "maxLength": 4096,
    "description": "a certificate request (PKCS #10, PEM) with a P-256 key",
}
RENEW_REQUEST: dict[str, Any] = {
    "type": "object",
    "required": ["identity", "request"],
    "properties": {
        "identity": {
            "type": "string",
            "minLength": 1,
            "maxLength": 64,
            "description": "the name in the present certificate",
        },
        "request": {**_CSR, "description": "a certificate request (PKCS #10, PEM) with the key of that certificate"},
    },
}
JOIN_REQUEST: dict[str, Any] = {
    "type": "object",
    "required": ["token", "request"],
    "properties": {
        "token": {"type": "string", "minLength": 1, "maxLength": 1024, "description": "the part before `#`"},
        "request": _CSR,
    },
}


class AddedNode(Schema):
    node = fields.Nested(Node)
    command = fields.String(metadata={"description": "for the host of the node, as root"})
    expires_at = fields.String()


class LeftSlice(Schema):
    project = fields.String()
    slice = fields.String()
    reason = fields.String(metadata={"description": "why no other node can have its slivers"})


class Evacuation(Schema):
    operations = fields.List(
        fields.Nested(Operation), metadata={"description": "one for each slice that is made again"}
    )
    left = fields.List(
        fields.Nested(LeftSlice), metadata={"description": "slices whose slivers remain on the lost node"}
    )


class Removed(Schema):
    removed = fields.String()


class Withdrawn(Schema):
    withdrawn = fields.String(metadata={"description": "The name of the node, whose token can be used again"})


class ImageBlocks(Schema):
    size = fields.Integer(metadata={"description": "bytes of a block; the last one may be shorter"})
    blocks = fields.List(fields.String(), metadata={"description": "the sha256 of each block, in order"})


class AuthorityCertificate(Schema):
    certificate = fields.String(metadata={"description": "PEM"})
    broker = fields.String(metadata=_BROKER)


class Membership(Schema):
    node = fields.String()
    site = fields.String()
    identity = fields.String(metadata={"description": "the name in the certificate; it never changes"})
    broker = fields.String(metadata=_BROKER)
    certificate = fields.String(metadata={"description": "PEM, valid for 90 days; empty: not issued yet"})


class ImageOnNode(Schema):
    node = fields.String()
    site = fields.String(metadata={"description": "of the node; empty: not given"})
    state = fields.String(metadata={"description": "fetching, ready or failed"})
    error = fields.String(metadata={"description": "of a failed attempt, which is repeated"})
    base_size = fields.Integer(metadata={"description": "bytes of its files in the pool of the node"})
    disk = fields.String(metadata={"description": "fetching or ready: the disk image; empty: it has none"})
    base = fields.String(metadata={"description": "fetching or ready: the base, for containers; empty: likewise"})
    updated_at = fields.String()


class NodesOfImage(Schema):
    nodes = fields.List(fields.Nested(ImageOnNode))


class RenewedCertificate(Schema):
    certificate = fields.String(metadata={"description": "PEM, the newest of the node; empty: not issued yet"})

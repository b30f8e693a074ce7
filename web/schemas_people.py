"""The API's shapes of people, projects, credentials and requests, for its OpenAPI description."""

from __future__ import annotations

from typing import Any

from marshmallow import Schema, fields

from slicemgr.web import schemas


def _object(properties: dict[str, Any], *required: str) -> dict[str, object]:
    shape: dict[str, object] = {"type": "object", "properties": properties}
    return {**shape, "required": list(required)} if required else shape


_TEXT: dict[str, object] = {"type": "string"}
_TRUTH: dict[str, object] = {"type": "boolean"}
_COUNT: dict[str, object] = {"type": "integer", "minimum": 0, "nullable": True}
_BYTES: dict[str, object] = {
    "description": "bytes, or text such as 32G; null: no limit",
    "nullable": True,
    "oneOf": [{"type": "integer", "minimum": 0}, {"type": "string"}],
}
_PASSWORD: dict[str, object] = {"type": "string", "format": "password", "minLength": 12, "maxLength": 1024}
_SPAN: dict[str, object] = {"type": "string", "example": "30d"}
_REASON: dict[str, object] = {"type": "string", "maxLength": 2000}
_QUOTA = _object(
    {
        "slices": _COUNT,
        "slivers": _COUNT,
        "vcpus": {"type": "number", "minimum": 0, "nullable": True, "description": "cores"},
        "memory": _BYTES,
        "memory_guarantee": _BYTES,
        "disk": _BYTES,
        "ports": _COUNT,
        "lease": {**_SPAN, "nullable": True, "description": "the longest"},
    }
)
_TOKEN = {"label": {**_TEXT, "maxLength": 80}, "scope": {"type": "string", "enum": ["read", "write"]}, "expires": _SPAN}
_DESCRIPTION = {"full_name": _TEXT, "email": _TEXT, "admin": _TRUTH}

LOGIN = _object({"user": _TEXT, "password": {"type": "string", "format": "password"}, **_TOKEN}, "user", "password")
_OF_NEW = "of the account that an invitation to a project creates"
ACCEPT = _object(
    {
        "token": _TEXT,
        "password": _PASSWORD,
        "name": {**_TEXT, "description": _OF_NEW},
        "full_name": {**_TEXT, "description": _OF_NEW},
    },
    "token",
    "password",
)
PASSWORD = _object({"old": {"type": "string", "format": "password"}, "new": _PASSWORD}, "old", "new")
USER_REQUEST = _object({"name": {**_TEXT, "pattern": "^[a-z][a-z0-9-]{0,31}$"}, **_DESCRIPTION}, "name")
USER_CHANGE = _object({**_DESCRIPTION, "enabled": _TRUTH, "default_project": {**_TEXT, "nullable": True}})
PROJECT_REQUEST = _object(
    {
        "name": {**_TEXT, "maxLength": 40, "pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"},
        "description": {**_TEXT, "maxLength": 1000},
        "quota": _QUOTA,
        "ceiling": _QUOTA,
        "pi": {**_TEXT, "description": "a user"},
    },
    "name",
)
PROJECT_CHANGE = _object({"description": {**_TEXT, "maxLength": 1000}, "quota": _QUOTA, "ceiling": _QUOTA})
MEMBER = _object({"role": {"type": "string", "enum": ["pi", "member"], "default": "member"}})
INVITATION = _object(
    {
        "invitee": {**_TEXT, "maxLength": 254, "description": "a user name or an email address"},
        "role": {"type": "string", "enum": ["member", "pi"], "default": "member"},
    },
    "invitee",
)
KEY_REQUEST = _object({"key": {**_TEXT, "description": "the content of a .pub file"}}, "key")
TOKEN_REQUEST = _object(_TOKEN, "label")
GRANT = _object(
    {
        "changes": {"type": "object", "description": "of count, ports, lease and the limits; of a resize: disk"},
        "reason": _REASON,
    }
)
DECLINE = _object({"reason": _REASON}, "reason")


class User(Schema):
    """A fellow member sees name, full_name and projects; the rest is null except for the user and admins."""

    name = fields.String()
    full_name = fields.String(allow_none=True)
    email = fields.String(allow_none=True)
    admin = fields.Boolean(allow_none=True)
    enabled = fields.Boolean(allow_none=True)
    created_at = fields.String(allow_none=True)
    projects = fields.Dict(metadata={"description": "role by project"})
    default_project = fields.String(
        allow_none=True, metadata={"description": "project of requests that name none; only the user can change it"}
    )
    origin = fields.String(allow_none=True, metadata={"description": "origin of the account: local or openid"})
    openid = fields.String(
        allow_none=True, metadata={"description": "identity of the user at the OpenID Connect issuer"}
    )
    has_password = fields.Boolean(allow_none=True)
    invited_until = fields.String(allow_none=True)


class Me(User):
    scope = fields.String()


class Invitation(Schema):
    token = fields.String()
    link = fields.String()
    expires_at = fields.String()


class Invited(Schema):
    user = fields.Nested(User)
    invitation = fields.Nested(Invitation)


class Accepted(Schema):
    user = fields.String()


class Amounts(Schema):
    slices = fields.Integer()
    slivers = fields.Integer()
    vcpus = fields.Float()
    memory = fields.Integer(metadata={"description": "bytes"})
    memory_guarantee = fields.Integer(metadata={"description": "bytes"})
    disk = fields.Integer(metadata={"description": "bytes"})
    ports = fields.Integer()


class Quota(Schema):
    """null: not limited."""

    slices = fields.Integer(allow_none=True)
    slivers = fields.Integer(allow_none=True)
    vcpus = fields.Float(allow_none=True)
    memory = fields.Integer(allow_none=True, metadata={"description": "bytes"})
    memory_guarantee = fields.Integer(allow_none=True, metadata={"description": "bytes"})
    disk = fields.Integer(allow_none=True, metadata={"description": "bytes"})
    ports = fields.Integer(allow_none=True)
    lease = fields.Integer(allow_none=True, metadata={"description": "seconds"})


class Member(Schema):
    user = fields.String()
    full_name = fields.String(allow_none=True)
    role = fields.String()
    enabled = fields.Boolean(allow_none=True, metadata={"description": "null except for the user and admins"})


class ProjectInvitation(Schema):
    id = fields.String()
    project = fields.String()
    invitee = fields.String(metadata={"description": "as given by the sender; the account may not exist"})
    role = fields.String()
    invited_by = fields.String()
    created_at = fields.String()
    expires_at = fields.String()


class Project(Schema):
    name = fields.String()
    description = fields.String(allow_none=True)
    created_at = fields.String()
    role = fields.String(allow_none=True, metadata={"description": "your own"})
    used = fields.Nested(Amounts)
    quota = fields.Nested(Quota, metadata={"description": "granted immediately"})
    ceiling = fields.Nested(Quota, metadata={"description": "the most that a PI can grant"})
    members = fields.List(fields.Nested(Member))
    invitations = fields.List(
        fields.Nested(ProjectInvitation),
        allow_none=True,
        metadata={"description": "open invitations; null except for the PIs of the project and admins"},
    )


class Key(Schema):
    id = fields.String()
    user = fields.String()
    type = fields.String()
    fingerprint = fields.String()
    comment = fields.String(allow_none=True)
    key = fields.String()
    created_at = fields.String()
    running_slices = fields.Integer(metadata={"description": "slices that run and accept the key"})


class Token(Schema):
    id = fields.String()
    user = fields.String()
    label = fields.String()
    scope = fields.String()
    created_at = fields.String()
    expires_at = fields.String(allow_none=True)
    used_at = fields.String(allow_none=True)
    used_from = fields.String(allow_none=True)
    current = fields.Boolean()


class NewToken(Token):
    token = fields.String(metadata={"description": "returned only once"})


class Session(Schema):
    id = fields.String()
    user = fields.String()
    created_at = fields.String()
    expires_at = fields.String()
    used_at = fields.String()
    address = fields.String(allow_none=True)
    agent = fields.String(allow_none=True)
    current = fields.Boolean()


class Granted(Schema):
    request = fields.Nested(schemas.Request)
    operation = fields.Nested(schemas.Operation)
    slice = fields.Nested(schemas.Slice)


class Done(Schema):
    deleted = fields.String()


class Users(schemas.Listed):
    users = fields.List(fields.Nested(User))


class ProjectInvitations(schemas.Listed):
    invitations = fields.List(fields.Nested(ProjectInvitation))


class Declined(Schema):
    declined = fields.String()


class Projects(schemas.Listed):
    projects = fields.List(fields.Nested(Project))


class Keys(schemas.Listed):
    keys = fields.List(fields.Nested(Key))


class Tokens(schemas.Listed):
    tokens = fields.List(fields.Nested(Token))


class Sessions(schemas.Listed):
    sessions = fields.List(fields.Nested(Session))


class Requests(schemas.Listed):
    requests = fields.List(fields.Nested(schemas.Request))

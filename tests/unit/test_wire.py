"""The shapes that the client reads (`wire`) are those that the service describes (`web/schemas*`)."""

from __future__ import annotations

import types
import typing
from typing import Any

import pytest
from marshmallow import Schema, fields

from slicemgr import wire
from slicemgr.web import (
    schemas,
    schemas_audits,
    schemas_experiments,
    schemas_leases,
    schemas_measures,
    schemas_nodes,
    schemas_people,
    schemas_samples,
    schemas_snapshots,
)

MODULES = (
    schemas,
    schemas_audits,
    schemas_experiments,
    schemas_leases,
    schemas_measures,
    schemas_nodes,
    schemas_people,
    schemas_samples,
    schemas_snapshots,
)
SCHEMAS: dict[str, type[Schema]] = {
    name: value
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, Schema) and value.__module__ == module.__name__
}
SHAPES: dict[str, Any] = {name: value for name, value in vars(wire).items() if typing.is_typeddict(value)}
BOTH = sorted(SCHEMAS.keys() & SHAPES.keys())
PLAIN: dict[type[fields.Field[Any]], Any] = {
    fields.Integer: int,
    fields.Float: float,
    fields.String: str,
    fields.Boolean: bool,
    fields.Dict: dict,
}


def members(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def differs(field: fields.Field[Any], hint: Any) -> str:
    """Why a value of the schema does not match the type; "" if it matches."""
    parts = members(hint)
    if field.allow_none != (type(None) in parts):
        return "null is in one alone"
    (kind,) = rest if len(rest := [one for one in parts if one is not type(None)]) == 1 else (Any,)
    if kind is Any:
        return "" if all(one in (int, str, float) for one in rest) else f"too many types: {rest}"
    if isinstance(field, fields.Nested):
        return nested(field.schema, kind)
    if isinstance(field, fields.List):
        return differs(field.inner, typing.get_args(kind)[0]) if typing.get_origin(kind) is list else f"no list: {kind}"
    if typing.is_typeddict(kind) and isinstance(field, fields.Dict):
        return ""  # its fields depend on the request
    plain = {str} if typing.get_origin(kind) is typing.Literal else {typing.get_origin(kind) or kind}
    wanted = next(value for name, value in PLAIN.items() if isinstance(field, name))
    return "" if plain == {wanted} else f"{kind} instead of {wanted}"


def nested(described: Schema, shape: Any) -> str:
    """By name where both have one."""
    name = type(described).__name__
    return "" if name == getattr(shape, "__name__", "") else f"{shape} instead of {name}"


@pytest.mark.parametrize("name", BOTH)
def test_a_shape_is_written_the_same_twice(name: str) -> None:
    described, shape = SCHEMAS[name]().fields, typing.get_type_hints(SHAPES[name])
    assert set(described) == set(shape)
    wrong = {one: found for one, field in described.items() if (found := differs(field, shape[one]))}
    assert wrong == {}


@pytest.mark.parametrize(
    ("name", "described"),
    [("SliceRequest", schemas.SLICE_REQUEST), ("BaselineRequest", schemas.BASELINE_REQUEST)],
    ids=["slice", "baseline"],
)
def test_a_request_has_the_fields_that_are_taken(name: str, described: dict[str, Any]) -> None:
    assert set(described["properties"]) == set(typing.get_type_hints(SHAPES[name]))
    hints = typing.get_type_hints(SHAPES[name], include_extras=True)
    needed = {one for one, hint in hints.items() if typing.get_origin(hint) is typing.Required}
    assert needed <= set(described["required"])


@pytest.mark.parametrize("name", ["Created", "Imported"])
def test_what_was_asked_for_is_answered_in_parts(name: str) -> None:
    described, shape = schemas.Asked().fields, typing.get_type_hints(SHAPES[name])
    assert set(shape) <= set(described)
    for one, hint in shape.items():
        field = described[one]
        assert isinstance(field, fields.Nested)
        assert nested(field.schema, hint) == "" or (one, hint) == ("plan", wire.PlannedSlice), "a plan is a slice to be"


def test_each_shape_is_described() -> None:
    """But for the insides of an operation, which depend on its kind: there they are objects."""
    inside = {"Baseline", "Check", "GcItem", "OperationProgress", "Result"}
    tested = {"SliceRequest", "BaselineRequest", "Created", "Imported", "PlannedSlice"}
    assert SHAPES.keys() - SCHEMAS.keys() == inside | tested
    assert isinstance(schemas.Operation().fields["result"], fields.Dict)


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        (fields.Integer(), int | None),
        (fields.Integer(allow_none=True), int),
        (fields.Integer(), str),
        (fields.List(fields.String()), list[int]),
        (fields.Nested(schemas.Ssh), wire.Ports),
        (fields.Boolean(), int),
    ],
)
def test_a_difference_is_seen(field: fields.Field[Any], hint: Any) -> None:
    """The control."""
    assert differs(field, hint)

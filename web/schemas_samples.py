"""The shapes of samples for the OpenAPI description."""

from __future__ import annotations

from marshmallow import Schema, fields

from slicemgr.web.schemas import Listed

_SERIES = {"description": "a list for each column, one value for each of `at`; null: unknown, or not running"}
_MISSING = {"description": "other nodes that have not answered, if any were asked; their slivers have no values"}
_TOTALS = {"description": "sums of counters, means of memory and disk, and the peak of memory"}


class Window(Schema):
    resolution = fields.String(metadata={"description": "raw, 5m or 1h"})
    seconds = fields.Float(metadata={"description": "duration of each interval, in seconds"})
    since = fields.String()
    until = fields.String()
    at = fields.List(fields.Integer(), metadata={"description": "ends of the intervals, in seconds since 1970"})
    missing = fields.List(fields.String(), metadata=_MISSING)


class SliverSamples(Schema):
    index = fields.Integer(allow_none=True)
    id = fields.String(allow_none=True)
    limits = fields.Dict()
    totals = fields.Dict(metadata=_TOTALS)
    series = fields.Dict(metadata=_SERIES)


class SliceSamples(Window):
    slice = fields.String()
    project = fields.String()
    slivers = fields.List(fields.Nested(SliverSamples))


class NodeSamples(Window):
    node = fields.String()
    totals = fields.Dict(metadata=_TOTALS)
    series = fields.Dict(metadata=_SERIES)


class Top(Schema):
    nodes = fields.List(fields.Dict())
    slivers = fields.List(fields.Dict())
    missing = fields.List(fields.String(), metadata=_MISSING)


class Account(Schema):
    """What a project used in a month (UTC)."""

    project = fields.String()
    month = fields.String()
    sliver_hours = fields.Float()
    cpu_hours = fields.Float()
    memory_gib_hours = fields.Float()
    disk_gib_hours = fields.Float()
    net_in = fields.Integer(metadata={"description": "bytes received by the slivers"})
    net_out = fields.Integer()
    io_read = fields.Integer()
    io_written = fields.Integer()


class Accounts(Listed):
    accounts = fields.List(fields.Nested(Account))

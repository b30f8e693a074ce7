"""Snapshots of a slice, and clones."""

from __future__ import annotations

from flask_smorest import Blueprint

from slicemgr.service.slices import slices, snapshots
from slicemgr.service.slices.snapshots import SliceReference
from slicemgr.service.views import snapshots as snapshot_views
from slicemgr.web import schemas, schemas_snapshots
from slicemgr.web.api import reading
from slicemgr.web.api.reading import SECURED, Answer
from slicemgr.web.state import principal, state

routes = Blueprint(
    "snapshots", __name__, url_prefix="/api/v1/slices/<name>/snapshots", description="Snapshots of slices"
)


def _place(name: str) -> SliceReference:
    return SliceReference(name, principal(), reading.project())


def _shown(place: SliceReference, snapshot: str) -> Answer:
    with state().store.read() as c:
        found = slices.find(c, *place)
        return snapshot_views.of_slice(c, found.id, snapshots.find(c, found, snapshot).name)[0]


@routes.route("", methods=["GET"])
@routes.doc(security=SECURED, parameters=[reading.PROJECT])
@routes.alt_response(200, schema=schemas_snapshots.Snapshots)
@routes.alt_response(404, schema=schemas.Problem)
def list_snapshots(name: str) -> Answer:
    """List the snapshots of a slice, newest first."""
    with state().store.read() as c:
        return {"snapshots": snapshot_views.of_slice(c, slices.find(c, *_place(name)).id)}


@routes.route("", methods=["POST"])
@routes.doc(
    security=SECURED, parameters=[reading.PROJECT], requestBody=schemas.body(schemas_snapshots.SNAPSHOT_REQUEST)
)
@routes.alt_response(202, schema=schemas_snapshots.SnapshotAsked)
@routes.alt_response(409, schema=schemas.Problem)
@routes.alt_response(422, schema=schemas.Problem)
def make_snapshot(name: str) -> Answer:
    """Create a snapshot of the disks of all slivers while they run. They are not taken at the same instant."""
    body, place = reading.body(), _place(name)
    reading.only(body, "name")
    wanted = reading.text(body, "name")
    operation = snapshots.create(state().store, state().config, place, wanted)
    return {**reading.asked(operation), "snapshot": _shown(place, wanted)}, 202


@routes.route("/<snapshot>", methods=["GET"])
@routes.doc(security=SECURED, parameters=[reading.PROJECT])
@routes.alt_response(200, schema=schemas_snapshots.Snapshot)
@routes.alt_response(404, schema=schemas.Problem)
def show_snapshot(name: str, snapshot: str) -> Answer:
    """Show one snapshot with the size of each sliver."""
    return _shown(_place(name), snapshot)


@routes.route("/<snapshot>", methods=["DELETE"])
@routes.doc(security=SECURED, parameters=[reading.PROJECT])
@routes.alt_response(202, schema=schemas.Asked)
@routes.alt_response(409, schema=schemas.Problem)
def delete_snapshot(name: str, snapshot: str) -> Answer:
    """Delete a snapshot. This is refused during a restore or a clone."""
    return reading.asked(snapshots.delete(state().store, state().config, _place(name), snapshot)), 202


@routes.route("/<snapshot>/restore", methods=["POST"])
@routes.doc(security=SECURED, parameters=[reading.PROJECT])
@routes.alt_response(202, schema=schemas.Asked)
@routes.alt_response(409, schema=schemas.Problem)
def restore_snapshot(name: str, snapshot: str) -> Answer:
    """Restore all slivers from a snapshot. Later changes are lost, and running slivers are restarted."""
    operation = snapshots.restore(state().store, state().config, _place(name), snapshot)
    return reading.asked(operation, with_slice=True), 202


@routes.route("/<snapshot>/clone", methods=["POST"])
@routes.doc(security=SECURED, parameters=[reading.PROJECT], requestBody=schemas.body(schemas_snapshots.CLONE_REQUEST))
@routes.alt_response(202, schema=schemas.Asked)
@routes.alt_response(403, schema=schemas.Problem)
@routes.alt_response(409, schema=schemas.Problem)
@routes.alt_response(422, schema=schemas.Problem)
def clone_snapshot(name: str, snapshot: str) -> Answer:
    """Create a new slice from a snapshot, with its own names, addresses and host keys."""
    body = reading.body()
    reading.text(body, "name")
    operation = snapshots.clone(state().store, state().config, _place(name), snapshot, body)
    return reading.asked(operation, with_slice=True), 202

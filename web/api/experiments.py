"""Published experiments: admins publish reports, all users read them."""

from __future__ import annotations

from flask import request
from flask_smorest import Blueprint

from slicemgr.errors import invalid
from slicemgr.policy import access, experiments
from slicemgr.service.experiments import publications
from slicemgr.service.views import filters
from slicemgr.web import foreign, schemas, schemas_experiments, schemas_people, spool
from slicemgr.web.api import lists, reading
from slicemgr.web.api.reading import SECURED, Answer
from slicemgr.web.state import principal, state

routes = Blueprint("experiments", __name__, url_prefix="/api/v1/experiments", description="Published experiments")


def _shown(id: str) -> Answer:
    with state().store.read() as c:
        return publications.views(c, principal(), id)[0]


@routes.route("", methods=["GET"])
@routes.doc(security=SECURED, parameters=lists.EXPERIMENTS.parameters)
@routes.alt_response(200, schema=schemas_experiments.Experiments)
def list_experiments() -> Answer:
    """List the published experiments, newest first. Admins also see hidden ones."""
    given, page = lists.EXPERIMENTS.read()
    with state().store.read() as c:
        found = publications.views(c, principal(), where=filters.experiments(given), page=page)
    return lists.EXPERIMENTS.answer(found, page)


@routes.route("", methods=["POST"])
@routes.doc(security=SECURED, parameters=schemas_experiments.QUERY, requestBody=schemas_experiments.ARCHIVE)
@routes.alt_response(201, schema=schemas_experiments.Experiment)
@routes.alt_response(200, schema=schemas_experiments.Experiment)
@routes.alt_response(422, schema=schemas.Problem)
def publish_experiment() -> Answer:
    """Publish the report of a run, sent as a tar archive. The same archive again returns the existing experiment."""
    access.publish_experiment(principal())
    given = {name: text for name, text in request.args.items() if text}
    reading.only(given, *publications.FIELDS)
    if given.get("public", "true") not in ("true", "false"):
        raise invalid("public", "must be true or false")
    asked = publications.wanted({**given, "public": given.get("public", "true") == "true"})
    with spool.receive(state().config, "max_report") as received:
        archive = publications.Archive(received.path, received.sha256)
        id_, new = publications.publish(state().store, state().config, archive, asked, principal())
    return _shown(id_), 201 if new else 200


@routes.route("/<id>", methods=["GET"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas_experiments.Experiment)
@routes.alt_response(404, schema=schemas.Problem)
def show_experiment(id: str) -> Answer:
    """Show one published experiment with the names of its files."""
    return _shown(id)


@routes.route("/<id>", methods=["PATCH"])
@routes.doc(security=SECURED, requestBody=schemas.body(schemas_experiments.CHANGE))
@routes.alt_response(200, schema=schemas_experiments.Experiment)
@routes.alt_response(422, schema=schemas.Problem)
def change_experiment(id: str) -> Answer:
    """Change the name, the note, or the visibility."""
    body = reading.body()
    reading.only(body, *publications.FIELDS)
    publications.change(state().store, id, body, principal())
    return _shown(id)


@routes.route("/<id>", methods=["DELETE"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas_people.Done)
@routes.alt_response(404, schema=schemas.Problem)
def delete_experiment(id: str) -> Answer:
    """Delete an experiment and its files. The folder of the run is not changed."""
    publications.delete(state().store, state().config, id, principal())
    return {"deleted": id}


@routes.route("/<id>/files/<file>", methods=["GET"])
@routes.doc(security=SECURED, responses=schemas_experiments.FILE)
@routes.alt_response(404, schema=schemas.Problem)
def show_experiment_file(id: str, file: str) -> Answer:
    """Download one file of an experiment. Its security policy forbids scripts and requests."""
    with state().store.read() as c:
        path = publications.file(c, state().config, id, file, principal())
    return foreign.answer(path, experiments.media_type(file))

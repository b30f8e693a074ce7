"""Projects, their members, what they have and may have."""

from __future__ import annotations

from flask_smorest import Blueprint

from slicemgr.service import members, people_views, projects
from slicemgr.web import schemas, schemas_people
from slicemgr.web.api import lists, reading
from slicemgr.web.api.reading import SECURED, Answer
from slicemgr.web.state import principal, state

routes = Blueprint("projects", __name__, url_prefix="/api/v1/projects", description="Projects, members, quotas")


def _shown(name: str) -> Answer:
    with state().store.read() as c:
        return people_views.project_list(c, principal(), name)[0]


@routes.route("", methods=["GET"])
@routes.doc(security=SECURED, parameters=lists.PROJECTS.parameters)
@routes.alt_response(200, schema=schemas_people.Projects)
def list_projects() -> Answer:
    """Your projects; an admin's are all. By name."""
    _, page = lists.PROJECTS.read()
    with state().store.read() as c:
        return lists.PROJECTS.answer(people_views.project_list(c, principal(), page=page), page)


@routes.route("", methods=["POST"])
@routes.doc(security=SECURED, requestBody=schemas.body(schemas_people.PROJECT_REQUEST))
@routes.alt_response(201, schema=schemas_people.Project)
@routes.alt_response(409, schema=schemas.Problem)
@routes.alt_response(422, schema=schemas.Problem)
def create_project() -> Answer:
    """A new project; what `quota` and `ceiling` leave out is the node's default."""
    return _shown(projects.create(state().store, state().config, reading.body(), principal())), 201


@routes.route("/<name>", methods=["GET"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas_people.Project)
@routes.alt_response(404, schema=schemas.Problem)
def show_project(name: str) -> Answer:
    """One project: what is used, the quota, the ceiling, the members."""
    return _shown(name)


@routes.route("/<name>", methods=["PATCH"])
@routes.doc(security=SECURED, requestBody=schemas.body(schemas_people.PROJECT_CHANGE))
@routes.alt_response(200, schema=schemas_people.Project)
@routes.alt_response(403, schema=schemas.Problem)
@routes.alt_response(422, schema=schemas.Problem)
def change_project(name: str) -> Answer:
    """The description, by a PI; quota and ceiling, by an admin, only what shall change (null: no limit)."""
    projects.change(state().store, name, reading.body(), principal())
    return _shown(name)


@routes.route("/<name>", methods=["DELETE"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas_people.Done)
@routes.alt_response(409, schema=schemas.Problem)
def delete_project(name: str) -> Answer:
    """Delete a project without slices and images."""
    projects.delete(state().store, name, principal())
    return {"deleted": name}


@routes.route("/<name>/members/<user>", methods=["PUT"])
@routes.doc(security=SECURED, requestBody=schemas.body(schemas_people.MEMBER))
@routes.alt_response(200, schema=schemas_people.Project)
@routes.alt_response(403, schema=schemas.Problem)
@routes.alt_response(409, schema=schemas.Problem)
@routes.alt_response(422, schema=schemas.Problem)
def set_member(name: str, user: str) -> Answer:
    """Change a member's role, or bring somebody in: an admin makes a member of them, a PI invites them.

    Who is a PI is an admin's to say. A PI gets the same answer whether there is such an account or not.
    """
    body = reading.body()
    reading.only(body, "role")
    members.set_member(state().store, state().config, name, user, body.get("role", "member"), principal())
    return _shown(name)


@routes.route("/<name>/members/<user>", methods=["DELETE"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas_people.Done)
@routes.alt_response(404, schema=schemas.Problem)
def remove_member(name: str, user: str) -> Answer:
    """Put a user out of a project, or leave it; slices stay the project's, without the user's ssh keys.

    An invitation of that name that was not accepted yet is taken back.
    """
    members.remove_member(state().store, state().config, name, user, principal())
    return {"deleted": user}

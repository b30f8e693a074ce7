"""Projects, their members, use and limits."""

from __future__ import annotations

from flask_smorest import Blueprint

from slicemgr.service.projects import members, projects
from slicemgr.service.views import people
from slicemgr.web import schemas, schemas_people
from slicemgr.web.api import lists, reading
from slicemgr.web.api.reading import SECURED, Answer
from slicemgr.web.state import principal, state

routes = Blueprint("projects", __name__, url_prefix="/api/v1/projects", description="Projects, members, quotas")


def _shown(name: str) -> Answer:
    with state().store.read() as c:
        return people.project_list(c, principal(), name)[0]


@routes.route("", methods=["GET"])
@routes.doc(security=SECURED, parameters=lists.PROJECTS.parameters)
@routes.alt_response(200, schema=schemas_people.Projects)
def list_projects() -> Answer:
    """List your projects by name. Admins see all projects."""
    _, page = lists.PROJECTS.read()
    with state().store.read() as c:
        return lists.PROJECTS.answer(people.project_list(c, principal(), page=page), page)


@routes.route("", methods=["POST"])
@routes.doc(security=SECURED, requestBody=schemas.body(schemas_people.PROJECT_REQUEST))
@routes.alt_response(201, schema=schemas_people.Project)
@routes.alt_response(409, schema=schemas.Problem)
@routes.alt_response(422, schema=schemas.Problem)
def create_project() -> Answer:
    """Create a project. Omitted limits of `quota` and `ceiling` use the defaults of the testbed."""
    return _shown(projects.create(state().store, state().config, reading.body(), principal())), 201


@routes.route("/<name>", methods=["GET"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas_people.Project)
@routes.alt_response(404, schema=schemas.Problem)
def show_project(name: str) -> Answer:
    """Show the usage, quota, ceiling and members of one project."""
    return _shown(name)


@routes.route("/<name>", methods=["PATCH"])
@routes.doc(security=SECURED, requestBody=schemas.body(schemas_people.PROJECT_CHANGE))
@routes.alt_response(200, schema=schemas_people.Project)
@routes.alt_response(403, schema=schemas.Problem)
@routes.alt_response(422, schema=schemas.Problem)
def change_project(name: str) -> Answer:
    """Change the description, the given limits of the quota within the ceiling (PIs), or any limit (admins).

    null: no limit other than the capacity of the node.
    """
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
    """Change the role of a member, or add a user: admins add members, PIs invite them.

    Only admins can change PIs. The response to a PI does not reveal whether the account exists.
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
    """Remove a user from a project, or leave it. The slices remain in the project, without the SSH keys of the user.

    An open invitation of that name is withdrawn.
    """
    members.remove_member(state().store, state().config, name, user, principal())
    return {"deleted": user}

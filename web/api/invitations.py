"""Invitations to projects: sent and withdrawn by PIs, accepted and declined by the invited users."""

from __future__ import annotations

from flask_smorest import Blueprint

from slicemgr.service.projects import invitations
from slicemgr.service.views import invitations as invitation_views
from slicemgr.service.views import people
from slicemgr.web import schemas, schemas_people
from slicemgr.web.api import lists, reading
from slicemgr.web.api.reading import SECURED, Answer
from slicemgr.web.state import principal, state

routes = Blueprint("invitations", __name__, url_prefix="/api/v1", description="Invitations to projects")


@routes.route("/projects/<name>/invitations", methods=["GET"])
@routes.doc(security=SECURED, parameters=lists.INVITATIONS.parameters)
@routes.alt_response(200, schema=schemas_people.ProjectInvitations)
@routes.alt_response(403, schema=schemas.Problem)
@routes.alt_response(404, schema=schemas.Problem)
def list_project_invitations(name: str) -> Answer:
    """List the open invitations of a project, oldest first (PIs)."""
    _, page = lists.INVITATIONS.read()
    with state().store.read() as c:
        return lists.INVITATIONS.answer(invitation_views.of_project(c, name, principal(), page), page)


@routes.route("/projects/<name>/invitations", methods=["POST"])
@routes.doc(security=SECURED, requestBody=schemas.body(schemas_people.INVITATION))
@routes.alt_response(201, schema=schemas_people.ProjectInvitation)
@routes.alt_response(403, schema=schemas.Problem)
@routes.alt_response(404, schema=schemas.Problem)
@routes.alt_response(409, schema=schemas.Problem)
@routes.alt_response(422, schema=schemas.Problem)
def invite_member(name: str) -> Answer:
    """Invite an account by its name or email address. The response does not reveal whether the account exists."""
    body = reading.body()
    reading.only(body, "invitee", "role")
    whom, role, store = body.get("invitee"), body.get("role", "member"), state().store
    made = invitations.create(store, state().config, name, whom, role, principal())
    with store.read() as c:
        return invitation_views.one(c, made), 201


@routes.route("/projects/<name>/invitations/<id>", methods=["DELETE"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas_people.Done)
@routes.alt_response(403, schema=schemas.Problem)
@routes.alt_response(404, schema=schemas.Problem)
def withdraw_invitation(name: str, id: str) -> Answer:
    """Withdraw an open invitation."""
    invitations.withdraw(state().store, name, id, principal())
    return {"deleted": id}


@routes.route("/me/invitations", methods=["GET"])
@routes.doc(security=SECURED, parameters=lists.INVITATIONS.parameters)
@routes.alt_response(200, schema=schemas_people.ProjectInvitations)
def list_own_invitations() -> Answer:
    """List the invitations that you can accept or decline, oldest first."""
    _, page = lists.INVITATIONS.read()
    with state().store.read() as c:
        return lists.INVITATIONS.answer(invitation_views.of_user(c, principal(), page), page)


@routes.route("/me/invitations/<id>/accept", methods=["POST"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas_people.Me)
@routes.alt_response(403, schema=schemas.Problem)
@routes.alt_response(404, schema=schemas.Problem)
@routes.alt_response(409, schema=schemas.Problem)
def accept_project_invitation(id: str) -> Answer:
    """Accept an invitation. The response is your account with its projects. Your default project does not change."""
    invitations.accept(state().store, state().config, id, principal())
    with state().store.read() as c:
        return people.me(c, principal())


@routes.route("/me/invitations/<id>/decline", methods=["POST"])
@routes.doc(security=SECURED)
@routes.alt_response(200, schema=schemas_people.Declined)
@routes.alt_response(403, schema=schemas.Problem)
@routes.alt_response(404, schema=schemas.Problem)
def decline_project_invitation(id: str) -> Answer:
    """Decline an invitation. Its sender is not notified."""
    invitations.decline(state().store, id, principal())
    return {"declined": id}

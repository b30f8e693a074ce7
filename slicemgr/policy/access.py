"""Access control: one function for each action. Pure; the caller passes the facts of a row.

Each returns nothing or raises Refused: NOT_FOUND if the user may not see the object, as if it did not exist, DENIED if
the user may see it but not change it. Admins see and change everything; a read-only token changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from slicemgr.errors import Code, Refused, invalid
from slicemgr.model import DEFAULT_PROJECT, Role, Scope

_HINTS = {
    "slice": "list them with `slicectl list`",
    "image": "list them with `slicectl image list`",
    "operation": "list them with `slicectl op list`",
    "project": "list your projects with `slicectl project list`",
    "invitation": "list your invitations with `slicectl project invitations`",
    "request": "list them with `slicectl request list`",
    "node": "list them with `slicectl node list`",
    "user": "list them with `slicectl user list`",
    "experiment": "list them with `slicectl bench published`",
}


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated user. roles: by project. address: of the client. credential: the id of the token or session.

    default_project: the user may have left it.
    """

    user: str
    admin: bool
    roles: Mapping[str, Role] = field(default_factory=dict, hash=False)
    scope: Scope = Scope.WRITE
    address: str = field(default="", compare=False)
    credential: str = field(default="", compare=False)
    default_project: str = field(default="", compare=False)  # as the user chose it; "": none

    def leads(self, project: str | None) -> bool:
        return self.admin or (project is not None and self.roles.get(project) is Role.PI)

    def sees(self, project: str | None) -> bool:
        return self.admin or project in self.roles


def missing(what: str, name: str, where: str = "") -> Refused:
    """The error for an object that does not exist or that the user may not see. where: such as `in project 'lab'`."""
    text = f"there is no {what} {name[:80]!r}" + (f" {where}" if where else "")
    return Refused(Code.NOT_FOUND, text, hint=_HINTS.get(what, ""))


def _denied(by: Principal, action: str, hint: str) -> Refused:
    return Refused(Code.DENIED, f"{by.user} may not {action}", hint=hint)


def changes(by: Principal, action: str) -> None:
    """Every change: refused with a read-only token."""
    if by.scope is not Scope.WRITE:
        hint = "create one with `slicectl token create --scope write`"
        raise Refused(Code.DENIED, f"this token is read-only and may not {action}", hint=hint)


def require(by: Principal, action: str) -> None:
    """Actions of admins."""
    changes(by, action)
    if not by.admin:
        raise _denied(by, action, "ask an admin of the testbed")


def _leads(by: Principal, project: str | None, action: str) -> None:
    changes(by, action)
    if not by.leads(project):
        raise _denied(by, action, "ask a PI of the project" if project else "ask an admin of the testbed")


# projects


def visible(by: Principal) -> Collection[str] | None:
    """The projects that the user may see; None: all."""
    return None if by.admin else tuple(by.roles)


def places(by: Principal, project: str | None) -> tuple[str, ...]:
    """The projects to search for a name: the given one, otherwise the user's own."""
    if project:
        return (project,) if by.sees(project) else ()
    return tuple(by.roles) or ((DEFAULT_PROJECT,) if by.admin else ())


def project_for(by: Principal, wanted: object) -> str:
    """The project of a new object: the given one, otherwise the default, otherwise the user's only one.

    Actions of other users never select another project: a lost default is not replaced.
    """
    if wanted is not None and not isinstance(wanted, str):
        raise invalid("project", "must be text")
    if wanted:
        see_project(by, wanted)
        return wanted
    own = places(by, None)
    if not own:
        raise _denied(by, "create slices or images", "you are not a member of a project, ask a PI to invite you")
    if by.default_project in own:
        return by.default_project
    hint = f"one of {', '.join(sorted(own))}; `slicectl user set {by.user} --default-project` sets the default"
    if by.default_project:
        raise invalid(
            "project", f"is missing, and you are no longer a member of your default project {by.default_project}", hint
        )
    if len(own) > 1:
        raise invalid("project", "is missing, and you are a member of several projects", hint)
    return own[0]


def see_project(by: Principal, project: str) -> None:
    if not by.sees(project):
        raise missing("project", project)


def make_project(by: Principal) -> None:
    require(by, "create projects")


def describe_project(by: Principal, project: str) -> None:
    see_project(by, project)
    _leads(by, project, f"change project {project}")


def limit_project(by: Principal, project: str) -> None:
    """Ceiling and deletion."""
    see_project(by, project)
    require(by, f"change the limits of project {project}")


def set_quota(by: Principal, project: str) -> None:
    """The quota within the ceiling: for PIs; only admins change the ceiling."""
    see_project(by, project)
    _leads(by, project, f"change the quota of project {project}")


def see_invitations(by: Principal, project: str) -> None:
    """A project's invitations are visible to its PIs, not to other members."""
    see_project(by, project)
    if not by.leads(project):
        raise _denied(by, f"see the invitations of project {project}", "ask a PI of the project")


def invite_member(by: Principal, project: str, role: Role) -> None:
    """Invite a user, and withdraw the invitation. A PI invites members; only admins invite PIs."""
    see_project(by, project)
    _leads(by, project, f"change the members of project {project}")
    if role is Role.PI:
        require(by, f"change the PIs of project {project}")


def set_member(by: Principal, project: str, role: Role, before: Role) -> None:
    """Change the role of a member. before: the current role."""
    see_project(by, project)
    _leads(by, project, f"change the members of project {project}")
    if Role.PI in (role, before):
        require(by, f"change the PIs of project {project}")


def put_member(by: Principal, project: str) -> None:
    """Add a member without an invitation: for admins, who may know of all accounts."""
    see_project(by, project)
    require(by, f"add members to project {project}")


def answer_invitation(by: Principal) -> None:
    """Accept and decline an invitation to oneself."""
    changes(by, "answer invitations")


def remove_member(by: Principal, project: str, user: str, before: Role) -> None:
    """Members may leave; a PI is removed by an admin."""
    see_project(by, project)
    if by.user == user:
        changes(by, "leave a project")
        return
    _leads(by, project, f"change the members of project {project}")
    if before is Role.PI:
        require(by, f"change the PIs of project {project}")


# slices


def make_slice(by: Principal, project: str) -> None:
    see_project(by, project)
    changes(by, "create slices")


def see_slice(by: Principal, project: str, name: str) -> None:
    if not by.sees(project):
        raise missing("slice", name)


def change_slice(by: Principal, project: str, owner: str, name: str, action: str) -> None:
    """Members change their own slices, a PI all slices of the project."""
    see_slice(by, project, name)
    changes(by, f"{action} slices")
    if by.user != owner and not by.leads(project):
        raise _denied(by, f"{action} slice {name} of {owner}", "ask its owner or a PI of the project")


# requests beyond the quota


def see_request(by: Principal, project: str, user: str, id: str) -> None:
    if by.user != user and not by.leads(project):
        raise missing("request", id)


def decide_request(by: Principal, project: str, user: str, id: str) -> None:
    """Grant or decline; the project's ceiling bounds what a PI may grant."""
    see_request(by, project, user, id)
    _leads(by, project, "decide requests")


def withdraw_request(by: Principal, project: str, user: str, id: str) -> None:
    see_request(by, project, user, id)
    changes(by, "withdraw requests")
    if by.user != user:
        raise _denied(by, f"withdraw a request of {user}", "decline it with a reason")


# images; project None: an image for all projects


def see_image(by: Principal, project: str | None, name: str) -> None:
    if project is not None and not by.sees(project):
        raise missing("image", name)


def import_image(by: Principal, project: str | None) -> None:
    if project is None:
        require(by, "import images that are available to all projects")
    else:
        see_project(by, project)
        changes(by, "import images")


def delete_image(by: Principal, project: str | None, name: str) -> None:
    see_image(by, project, name)
    _leads(by, project, "delete images")


def publish_image(by: Principal, project: str | None, name: str) -> None:
    see_image(by, project, name)
    require(by, "make images available to all projects")


# nodes, operations, events


def run_on_node(by: Principal, kind: str) -> None:
    require(by, f"run {kind} on a node")


def change_nodes(by: Principal, action: str) -> None:
    """Add, drain, rename and remove nodes."""
    require(by, action)


def see_metrics(by: Principal) -> None:
    """Metrics cover all projects, so they are for admins."""
    if not by.admin:
        raise _denied(by, "read the metrics of the testbed", "ask an admin of the testbed")


def see_operation(by: Principal, project: str, id: str) -> None:
    """An operation without a project concerns the node or a public image: for admins."""
    if not by.sees(project):
        raise missing("operation", id)


# published experiments


def see_experiment(by: Principal, public: bool, id: str) -> None:
    """Hidden experiments are visible to admins only."""
    if not (public or by.admin):
        raise missing("experiment", id)


def change_experiment(by: Principal, public: bool, id: str) -> None:
    """Show, hide, describe and delete."""
    see_experiment(by, public, id)
    require(by, "change published experiments")


def publish_experiment(by: Principal) -> None:
    require(by, "publish experiments")


# people


def invite(by: Principal) -> None:
    require(by, "invite people")


def see_user(by: Principal, user: str, projects: Collection[str]) -> None:
    """Users see the members of their projects. projects: of the user to see."""
    if not (by.admin or by.user == user or any(one in by.roles for one in projects)):
        raise missing("user", user)


def change_user(by: Principal, user: str, projects: Collection[str]) -> None:
    """Change an account: enabled, admin, a new link."""
    see_user(by, user, projects)
    require(by, f"change the account of {user}")


def delete_user(by: Principal, user: str, projects: Collection[str]) -> None:
    see_user(by, user, projects)
    require(by, f"delete the account of {user}")


def choose_project(by: Principal, user: str) -> None:
    """Only the user sets the default project."""
    changes(by, "choose a default project")
    if by.user != user:
        raise _denied(by, f"choose the default project of {user}", "users choose their own default project")


def describe_user(by: Principal, user: str, projects: Collection[str]) -> None:
    """Name and mail address."""
    see_user(by, user, projects)
    changes(by, f"change {user}")
    if by.user != user and not by.admin:
        raise _denied(by, f"change {user}", "users change their own profile")


def see_credentials(by: Principal, user: str) -> None:
    """Keys, tokens and sessions: for their owner and for admins."""
    if by.user != user and not by.admin:
        raise missing("user", user)


def remove_credential(by: Principal, user: str, what: str, id: str) -> None:
    if by.user != user and not by.admin:
        raise missing(what, id)
    changes(by, f"remove a {what}")

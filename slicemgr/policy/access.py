"""Who may do what: one function for each action. Pure; what it needs to know of a row is given to it.

Each returns nothing or raises Refused: NOT_FOUND for what one may not even see, as if it were not there, DENIED for
what one may see but not do. An admin sees and does everything; a read-only token changes nothing.
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
    "user": "list them with `slicectl user list`",
    "experiment": "list them with `slicectl bench published`",
}


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. roles: by project. address: where from. credential: the id of the token or session that was shown.

    default_project: may be one that the user is not in any more.
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


def missing(what: str, name: str) -> Refused:
    """The answer for what is not there, and for what one may not see."""
    return Refused(Code.NOT_FOUND, f"there is no {what} {name[:80]!r}", hint=_HINTS.get(what, ""))


def _denied(by: Principal, action: str, hint: str) -> Refused:
    return Refused(Code.DENIED, f"{by.user} may not {action}", hint=hint)


def changes(by: Principal, action: str) -> None:
    """Whatever changes something: not with a read-only token."""
    if by.scope is not Scope.WRITE:
        hint = "create one with `slicectl token create --scope write`"
        raise Refused(Code.DENIED, f"this token is read-only and may not {action}", hint=hint)


def require(by: Principal, action: str) -> None:
    """What only an admin may do."""
    changes(by, action)
    if not by.admin:
        raise _denied(by, action, "ask an admin of the testbed")


def _leads(by: Principal, project: str | None, action: str) -> None:
    changes(by, action)
    if not by.leads(project):
        raise _denied(by, action, "ask a PI of the project" if project else "ask an admin of the testbed")


# projects


def visible(by: Principal) -> Collection[str] | None:
    """The projects whose things one sees; None: all there are."""
    return None if by.admin else tuple(by.roles)


def places(by: Principal, project: str | None) -> tuple[str, ...]:
    """Where a name is looked for: the project that is named, else one's own."""
    if project:
        return (project,) if by.sees(project) else ()
    return tuple(by.roles) or ((DEFAULT_PROJECT,) if by.admin else ())


def project_for(by: Principal, wanted: object) -> str:
    """The project of something new: the one that is named, else the default, else the only one there is to choose.

    What somebody else does never makes another project the answer: a default that was lost is not replaced.
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
    """Quota, ceiling and deletion."""
    see_project(by, project)
    require(by, f"change the limits of project {project}")


def see_invitations(by: Principal, project: str) -> None:
    """Whom a project has invited: its PIs know, its other members do not."""
    see_project(by, project)
    if not by.leads(project):
        raise _denied(by, f"see the invitations of project {project}", "ask a PI of the project")


def invite_member(by: Principal, project: str, role: Role) -> None:
    """Invite, and take the invitation back. A PI invites members; who is a PI is an admin's to say."""
    see_project(by, project)
    _leads(by, project, f"change the members of project {project}")
    if role is Role.PI:
        require(by, f"change the PIs of project {project}")


def set_member(by: Principal, project: str, role: Role, before: Role) -> None:
    """The role of a member. before: what it was."""
    see_project(by, project)
    _leads(by, project, f"change the members of project {project}")
    if Role.PI in (role, before):
        require(by, f"change the PIs of project {project}")


def put_member(by: Principal, project: str) -> None:
    """Make somebody a member without asking: admins know everybody, so it tells them nothing."""
    see_project(by, project)
    require(by, f"add members to project {project}")


def answer_invitation(by: Principal) -> None:
    """Accept and decline what was sent to oneself."""
    changes(by, "answer invitations")


def remove_member(by: Principal, project: str, user: str, before: Role) -> None:
    """Everybody may leave; a PI is removed by an admin."""
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
    """Members change what is theirs, a PI everything of the project."""
    see_slice(by, project, name)
    changes(by, f"{action} slices")
    if by.user != owner and not by.leads(project):
        raise _denied(by, f"{action} slice {name} of {owner}", "ask its owner or a PI of the project")


# requests beyond the quota


def see_request(by: Principal, project: str, user: str, id: str) -> None:
    if by.user != user and not by.leads(project):
        raise missing("request", id)


def decide_request(by: Principal, project: str, user: str, id: str) -> None:
    """Grant or decline; what a PI may grant is bounded by the project's ceiling."""
    see_request(by, project, user, id)
    _leads(by, project, "decide requests")


def withdraw_request(by: Principal, project: str, user: str, id: str) -> None:
    see_request(by, project, user, id)
    changes(by, "withdraw requests")
    if by.user != user:
        raise _denied(by, f"withdraw a request of {user}", "decline it with a reason")


# images: project None is for all


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


def see_metrics(by: Principal) -> None:
    """They tell of all projects."""
    if not by.admin:
        raise _denied(by, "read the metrics of the testbed", "ask an admin of the testbed")


def see_operation(by: Principal, project: str, id: str) -> None:
    """An operation of no project is the node's or a public image's: the admins' business."""
    if not by.sees(project):
        raise missing("operation", id)


# published experiments


def see_experiment(by: Principal, public: bool, id: str) -> None:
    """What is hidden is the admins' to look at."""
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
    """People see whom they share a project with. projects: the user's."""
    if not (by.admin or by.user == user or any(one in by.roles for one in projects)):
        raise missing("user", user)


def change_user(by: Principal, user: str, projects: Collection[str]) -> None:
    """The account itself: enabled, admin, a new link."""
    see_user(by, user, projects)
    require(by, f"change the account of {user}")


def choose_project(by: Principal, user: str) -> None:
    """The default project: nobody decides for somebody else where what they make goes."""
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
    """Keys, tokens and sessions are their owner's, and the admins' to look at and take away."""
    if by.user != user and not by.admin:
        raise missing("user", user)


def remove_credential(by: Principal, user: str, what: str, id: str) -> None:
    if by.user != user and not by.admin:
        raise missing(what, id)
    changes(by, f"remove a {what}")

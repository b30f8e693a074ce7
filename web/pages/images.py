"""Images: the list, their use, and uploads of disk image files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from operator import itemgetter
from typing import Any

from flask import Response, request

from slicemgr.errors import Refused, invalid
from slicemgr.policy import access
from slicemgr.service.nodes import images
from slicemgr.service.views import images as image_views
from slicemgr.service.views import operations as operation_views
from slicemgr.service.views import pages
from slicemgr.web import spool
from slicemgr.web.foreign import text_answer
from slicemgr.web.pages import browser_session, shell
from slicemgr.web.pages.form import Form, once
from slicemgr.web.pages.multipart import FileForm
from slicemgr.web.pages.shell import Entry
from slicemgr.web.pages.sorting import Row, Sorting
from slicemgr.web.state import principal, state

_COLUMNS: dict[str, Callable[[Row], Any]] = {
    **{name: itemgetter(name) for name in ("name", "state")},
    "os": lambda one: one["os"] or None,
    "project": lambda one: one["project"] or "",
    "disk": itemgetter("virtual_size"),
    "used": itemgetter("used_by"),
    "created": itemgetter("created_at"),
}
_FIELDS = ("name", "format", "project", "file")
_QCOW2 = b"QFI\xfb"
_ALL = "-"  # the choice of an image for all projects

blueprint = shell.blueprint("image_page", Entry("image_page.every", "Images", "image", 15))
uploads = shell.uploads("image_upload")


@blueprint.route("/images")
def every() -> Response:
    """The images for all projects and those of the user's projects."""
    with state().store.read() as c:
        found = image_views.images(c, projects=access.visible(principal()))
        running = [
            one for one in operation_views.operations(c, access.visible(principal()), state="running") if one["image"]
        ]
    importing = {one["image"]: one for one in running if one["image"] and one["kind"] == "image-import"}
    sorting = Sorting(_COLUMNS)
    values: dict[str, Any] = {"sorting": sorting, "importing": importing, "may": _may_import()}
    return shell.show("images/list.html", images=sorting.rows(found), **values)


@blueprint.route("/new-image")
def ask() -> Response:
    """The form."""
    chosen = request.args.get("project", "")
    return _new(Form({"format": "qcow2", "project": chosen}))


@uploads.route("/new-image", methods=["POST"])
def send() -> Response:
    """Import a file while it arrives. The CSRF token precedes the file: without it nothing is read."""
    given = FileForm()
    with spool.place():
        given.open()
        browser_session.protect()
        form = Form.sent()
        try:
            response = _take(given, form)
        except Refused as error:
            return _new(form, form.take(error, known=_FIELDS))
    if "X-Upload" in request.headers:  # a script would follow a redirect invisibly and consume its message
        return Response(status=204, headers={"X-Location": response.headers["Location"]})
    return response


@blueprint.route("/images/<name>")
def show(name: str) -> Response:
    """One image, by name or sha256."""
    return _page(name)


@blueprint.route("/images/<name>/kernel-config")
def kernel_config(name: str) -> Response:
    """The configuration of its kernel."""
    with state().store.read() as c:
        found = images.find(c, name, principal())
        return text_answer(image_views.kernel_config(c, found.sha256, found.name))


@blueprint.route("/images/<name>/delete", methods=["POST"])
@once
def delete(name: str) -> Response:
    """Delete the image, if its name was typed and no slice uses it."""
    by, form = principal(), Form.sent()
    with state().store.read() as c:
        image = images.find(c, name, by)
    access.delete_image(by, image.project, name)
    if form["typed"] != image.name:
        form.errors["typed"] = [f"Type {image.name} to confirm."]
        return _page(name, form, 422)
    try:
        operation = images.delete(state().store, state().config, image.sha256, by)
    except Refused as error:
        return _page(name, form, form.take(error, known=("typed",)))
    return shell.see("operation_page.show", id=operation)


@blueprint.route("/images/<name>/publish", methods=["POST"])
@once
def publish(name: str) -> Response:
    """Make a project's image available to all projects."""
    images.publish(state().store, name, principal())
    return shell.see("image_page.show", f"{name} is now available to all projects.", name=name)


def _take(given: FileForm, form: Form) -> Response:
    by, config, store = principal(), state().config, state().store
    project = None if form["project"] == _ALL else access.project_for(by, form["project"] or None)
    images.check_upload(store, form["name"], form["format"], by, project)
    if not given.name:
        raise invalid("file", "is missing", "select a disk image")
    spool.expect(config)
    with spool.spooled(config, _checked(given.file(), form["format"])) as received:
        upload = images.Upload(form["name"], form["format"], received.sha256, received.size, project)
        sha256, operation = images.register_upload(store, config, upload, by, received.keep)
    if operation is not None:
        return shell.see("operation_page.show", id=operation)
    with store.read() as c:
        known = image_views.images(c, sha256)[0]["name"]
    return shell.see("image_page.show", f"This image already exists under the name {known}.", "notice", name=known)


def _checked(chunks: Iterator[bytes], format: str) -> Iterator[bytes]:
    """The file, if its first bytes match the format of the form; the format is never detected from the content."""
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= len(_QCOW2):
            break
    if not head:
        raise invalid("file", "is empty", "select a disk image")
    if head.startswith(_QCOW2) != (format == "qcow2"):
        hint = "select the format raw or a .qcow2 file" if format == "qcow2" else "select the format qcow2"
        raise invalid("file", "is not a qcow2 image" if format == "qcow2" else "is a qcow2 image", hint)
    yield from chain((head,), chunks)


def _may_import() -> bool:
    return bool(principal().admin or principal().roles)


def _new(form: Form, status: int = 200) -> Response:
    by = principal()
    places = [(name, f"project {name}") for name in by.roles]
    if by.admin:
        places.insert(0, (_ALL, "all projects"))
    most = state().config.web.max_image.bytes
    return shell.show("images/new.html", status, form=form, places=places, most=most, may=_may_import())


def _page(name: str, form: Form | None = None, status: int = 200) -> Response:
    by = principal()
    with state().store.read() as c:
        found = images.find(c, name, by)
        image = image_views.images(c, found.sha256)[0]
        used, others = pages.users_of_image(c, found.sha256, by)
        running = operation_views.operations(c, access.visible(by), state="running")
        nodes = image_views.on_nodes(c, found.sha256)
    working = next((one for one in running if one["image"] == image["name"]), None)
    may = {"delete": by.leads(found.project), "publish": by.admin and found.project is not None}
    values = {"image": image, "used": used, "others": others, "may": may, "working": working, "nodes": nodes}
    return shell.show("images/show.html", status, form=form or Form(), **values)

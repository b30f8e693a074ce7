"""Deprecated names from before the client was composed of resources. They work for two more releases, with a warning.

They are hidden from type checkers, which therefore report each use.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

# Methods of Client, and their present names.
METHODS = {
    "accept_invitation": "account.accept_invitation",
    "accept_project_invitation": "invitations.accept",
    "accounts": "samples.accounts",
    "add_key": "keys.add",
    "audit": "audits.get",
    "baseline": "nodes.baseline",
    "change_experiment": "experiments.change",
    "change_password": "account.change_password",
    "change_project": "projects.change",
    "change_project_leases": "leases.change",
    "change_user": "users.change",
    "clock": "leases.clock",
    "clone_snapshot": "snapshots.clone",
    "confirm_clock": "leases.confirm_clock",
    "console": "slices.console",
    "create": "slices.create",
    "create_project": "projects.create",
    "create_slice": "slices.submit",
    "create_snapshot": "snapshots.create",
    "create_token": "tokens.create",
    "decline_project_invitation": "invitations.decline",
    "decline_request": "requests.decline",
    "delete_experiment": "experiments.delete",
    "delete_image": "images.delete",
    "delete_project": "projects.delete",
    "delete_slice": "slices.delete",
    "delete_snapshot": "snapshots.delete",
    "doctor": "nodes.doctor",
    "experiment": "experiments.get",
    "experiment_file": "experiments.file",
    "gc": "nodes.gc",
    "get_project": "projects.get",
    "grant_request": "requests.grant",
    "held": "slices.handle",
    "image": "images.get",
    "import_image": "images.upload",
    "invite_again": "users.invite_again",
    "invite_member": "projects.invite",
    "invite_user": "users.invite",
    "keep_audit": "audits.put",
    "kernel_tables": "nodes.kernel_tables",
    "login": "account.login",
    "logout": "account.logout",
    "me": "account.get",
    "measure_io": "nodes.measure_io",
    "measure_sysbench": "nodes.measure_sysbench",
    "my_invitations": "invitations.list",
    "node": "nodes.get",
    "node_samples": "samples.of_node",
    "operation": "operations.get",
    "project_invitations": "projects.invitations",
    "project_leases": "leases.get",
    "publish_experiment": "experiments.publish",
    "publish_image": "images.publish",
    "remove_key": "keys.remove",
    "remove_member": "projects.remove_member",
    "renew_slice": "slices.renew",
    "request": "requests.get",
    "resize_slice": "slices.resize",
    "restore_snapshot": "snapshots.restore",
    "revoke_session": "sessions.revoke",
    "revoke_token": "tokens.revoke",
    "set_member": "projects.set_member",
    "slice": "slices.get",
    "slice_action": "slices.act",
    "slice_samples": "samples.of_slice",
    "snapshot": "snapshots.get",
    "top": "samples.latest",
    "user": "users.get",
    "wait": "operations.wait",
    "withdraw_invitation": "projects.withdraw_invitation",
    "withdraw_request": "requests.withdraw",
}

# Methods that are now resources of the same name: `client.slices()` is `client.slices.list()`.
LISTS = (
    "events", "experiments", "images", "keys", "nodes", "operations", "projects", "requests", "sessions", "slices",
    "snapshots", "tokens", "users",
)  # fmt: skip

# Modules of the package slicemgr, and their present names.
MODULES = {
    "client_audits": "client.audits",
    "client_json": "client.paths",
    "client_measures": "client.nodes",
    "client_people": "client",
    "client_published": "client.experiments",
    "client_samples": "client.samples",
    "client_settings": "client.settings",
    "client_slice": "client.handle",
    "client_snapshots": "client.snapshots",
    "client_ssh": "client.ssh",
}


def warn(old: str, new: str, level: int = 3) -> None:
    """Issue a DeprecationWarning. level: the `stacklevel` of `warnings.warn`; 3 is the caller of the caller."""
    warnings.warn(f"{old} is deprecated, use {new}", DeprecationWarning, stacklevel=level)


class OldMethods:
    """The deprecated methods of Client."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            new = METHODS.get(name)
            if new is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            warn(f"Client.{name}", f"Client.{new}")
            return attrgetter(new)(self)


class OldList:
    """A resource whose list was a method of Client before."""

    if not TYPE_CHECKING:

        def __call__(self, *words: Any, **filters: Any) -> Any:
            name = type(self).__name__.lower()
            warn(f"Client.{name}()", f"Client.{name}.list()")
            return self.list(*words, **filters)


def old_module(name: str) -> ModuleSpec | None:
    """The import specification of a module by its full old name; None if it is not an old name."""
    from importlib.machinery import ModuleSpec

    package, _, module = name.partition(".")
    loader: Any = _OldModule  # without importlib.abc, which takes longer to import than the rest of this module
    return ModuleSpec(name, loader) if package == "slicemgr" and module in MODULES else None


class _OldModule:
    """A loader that returns the new module for the old name."""

    @staticmethod
    def create_module(_spec: ModuleSpec) -> ModuleType | None:
        return None

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        old = module.__name__
        new = f"slicemgr.{MODULES[old.partition('.')[2]]}"
        warn(old, new)
        sys.modules[old] = importlib.import_module(new)

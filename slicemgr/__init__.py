"""slicemgr: slices of KVM virtual machines and LXC containers on a testbed node, in seconds."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

__version__ = "0.1.0"


class _OldModules:
    """Finds modules by the names that `slicemgr.client.deprecated` lists. Python asks it after all other finders."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> Any:
        if not name.startswith("slicemgr.client_"):
            return None
        return import_module("slicemgr.client.deprecated").old_module(name)


sys.meta_path.append(_OldModules)

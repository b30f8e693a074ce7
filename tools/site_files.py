"""The hook of MkDocs that removes files from the built documents that the service never sends."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig


def on_post_build(config: MkDocsConfig) -> None:
    """Remove source maps, the search in other languages, and the page for errors, which the service has itself."""
    site = Path(config.site_dir)
    for path in site.rglob("*.map"):
        path.unlink()
    shutil.rmtree(site / "assets" / "javascripts" / "lunr")
    (site / "404.html").unlink()

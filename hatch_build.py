"""What the distribution's metadata says of where the project is: nothing, unless whoever builds it names its page.

    EMBERMQ_PROJECT_URL=https://forge.example/embermq/embermq python -m hatchling build

The README's links lead to files beside it, so on another page than the project's own they need that address.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "EMBERMQ_PROJECT_URL"
LINK = re.compile(r"\]\((?!\w+:|#)([^)\s]+)\)")
PAGES = {
    "Documentation": "blob/main/docs/index.md",
    "Changelog": "blob/main/CHANGELOG.md",
    "Source": "",
}


class CustomMetadataHook(MetadataHookInterface):
    """Called by hatchling for each build."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the readme, and addresses where there are any."""
        text = (Path(self.root) / "README.md").read_text()
        page = os.environ.get(VARIABLE, "").rstrip("/")
        if page:
            metadata["urls"] = {name: f"{page}/{path}".rstrip("/") for name, path in PAGES.items()}
            text = LINK.sub(rf"]({page}/blob/main/\1)", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}

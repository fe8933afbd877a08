"""What builds of the distributions are told by the environment: where the project is, and to compile the hot path.

    EMBERMQ_PROJECT_URL=https://forge.example/embermq/embermq python -m hatchling build
    EMBER_COMPILED=1 python -m hatchling build -t wheel

Without an address the metadata say nothing of where the project is. The README's links lead to files beside it, so on
another page than the project's own they need that address.

A wheel with the hot path compiled is for this Python and this system, as its name says; it has the source too, which
runs where what is compiled cannot be loaded. To build it takes a C compiler, mypy, and what EmberMQ runs on, so it is
not built in isolation (`pip wheel --no-build-isolation`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

ADDRESS = "EMBERMQ_PROJECT_URL"
COMPILED = "EMBER_COMPILED"
"""That of `embermq.compiled`, where 1 means that nothing else will do."""
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
        page = os.environ.get(ADDRESS, "").rstrip("/")
        if page:
            metadata["urls"] = {name: f"{page}/{path}".rstrip("/") for name, path in PAGES.items()}
            text = LINK.sub(rf"]({page}/blob/main/\1)", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class CustomBuildHook(BuildHookInterface):
    """Called by hatchling for each wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say that the wheel is for this Python and system. Raises CalledProcessError."""
        if version == "editable" or os.environ.get(COMPILED) != "1":
            return
        subprocess.run([sys.executable, str(Path(self.root) / "scripts" / "compile")], check=True)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"].append("/src/embermq/_compiled/")

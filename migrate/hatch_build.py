"""Asks for the EmberMQ of this distribution's own version."""

from __future__ import annotations

from hatchling.metadata.plugin.interface import MetadataHookInterface


class SameVersion(MetadataHookInterface):
    """Fill in the dependencies."""

    def update(self, metadata: dict[str, object]) -> None:
        metadata["dependencies"] = [
            f"{self.config['embermq']}=={metadata['version']}",
            *self.config["others"],
        ]

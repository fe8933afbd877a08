"""What a listener allows its clients, where listeners may differ."""

from typing import Literal

from msgspec import Struct

from embermq.mqtt.wire.version import ProtocolVersion

VersionName = Literal["3.1", "3.1.1", "5.0"]
VERSION_NAMES: dict[ProtocolVersion, VersionName] = {
    ProtocolVersion.V31: "3.1",
    ProtocolVersion.V311: "3.1.1",
    ProtocolVersion.V5: "5.0",
}


class Terms(Struct, frozen=True):
    """The highest QoS, which versions of MQTT are spoken, and whether a client may leave its client id to us."""

    max_qos: int
    protocol_versions: tuple[VersionName, ...]
    allow_empty_client_id: bool

    def objection_to_version(self, version: ProtocolVersion) -> str:
        """Why a version is not spoken here, "" when it is."""
        name = VERSION_NAMES[version]
        if name in self.protocol_versions:
            return ""
        return f"MQTT {name} is not accepted here, only {', '.join(self.protocol_versions)}"

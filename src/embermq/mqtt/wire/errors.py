"""The error tree of the wire: the peer's faults (`ProtocolError`) and our own (`EncodeError`)."""

from __future__ import annotations

from embermq.mqtt.wire.reason_codes import ReasonCode


class ProtocolError(Exception):
    """The peer broke the protocol; the connection has to end.

    ``reason_code`` is what a CONNACK or DISCONNECT of MQTT 5.0 says about it, ``message`` what, which value
    and which limit, ``clause`` the sentence of the specification, such as ``"MQTT-3.3.1-4"``.
    """

    def __init__(self, reason_code: ReasonCode, message: str, clause: str | None = None) -> None:
        super().__init__(message if clause is None else f"{message} [{clause}]")
        self.reason_code = reason_code
        self.message = message
        self.clause = clause


class MalformedPacket(ProtocolError):
    """The bytes cannot be read as a packet of this version (0x81)."""

    def __init__(self, message: str, clause: str | None = None) -> None:
        super().__init__(ReasonCode.MALFORMED_PACKET, message, clause)


class ProtocolViolation(ProtocolError):
    """The packet can be read but is not allowed, here or at all (0x82 unless a code says it better)."""

    def __init__(
        self,
        message: str,
        clause: str | None = None,
        reason_code: ReasonCode = ReasonCode.PROTOCOL_ERROR,
    ) -> None:
        super().__init__(reason_code, message, clause)


class InvalidTopic(ProtocolError):
    """A response topic (0x90), or the wildcards of a topic filter (0x8F), break the rules of topics. A topic name with
    wildcards and an empty filter are malformed."""


class PacketTooLarge(ProtocolError):
    """The fixed header announces more bytes than we take (0x95); the body was not waited for."""

    def __init__(self, packet_bytes: int, packet_bytes_max: int) -> None:
        super().__init__(
            ReasonCode.PACKET_TOO_LARGE,
            f"packet of {packet_bytes} bytes, the limit is {packet_bytes_max}",
            "MQTT-3.1.2-24",
        )
        self.packet_bytes = packet_bytes
        self.packet_bytes_max = packet_bytes_max


class UnsupportedVersion(ProtocolError):
    """CONNECT names a protocol or level that is not 3.1, 3.1.1 or 5.0 (0x84)."""

    def __init__(self, protocol_name: str, level: int) -> None:
        super().__init__(
            ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
            f"protocol {protocol_name[:32]!r} level {level} is not supported, only MQIsdp 3, MQTT 4 and 5",
            "MQTT-3.1.2-2",
        )
        self.protocol_name = protocol_name
        self.level = level


class EncodeError(ValueError):
    """We were asked to write a packet that cannot stand on the wire: a fault of the caller, not of the
    peer."""

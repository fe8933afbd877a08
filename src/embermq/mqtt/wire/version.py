"""The protocol versions and the two ends of a connection."""

from __future__ import annotations

from enum import Enum, IntEnum


class ProtocolVersion(IntEnum):
    """The protocol level as it stands in CONNECT."""

    V31 = 3
    V311 = 4
    V5 = 5


class Role(Enum):
    """Which end of the connection we are: a server reads what clients send, and the other way round."""

    CLIENT = "client"
    SERVER = "server"

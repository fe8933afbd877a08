"""What can go wrong, by whose fault it is."""

from __future__ import annotations

LASTING = frozenset({0x81, 0x82, 0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x95, 0x9D})
"""Reason codes of CONNACK that have to do with what the client says and who it is: packet or protocol version, client
id, user, password, a ban, the size, a broker that has moved for good [MQTT-3.2.2.2]. Others pass by themselves."""


class ClientError(Exception):
    """Base of everything that this library raises by itself."""


class ConnectFailed(ClientError):
    """The broker cannot be reached, refuses the client, or has given its place to another one of the same id."""


class ConnectRefused(ConnectFailed):
    """The broker answers and does not let the client enter. `code` is the reason code of MQTT 5, `reason` its text, ""
    when it gave none."""

    def __init__(self, text: str, code: int, reason: str) -> None:
        super().__init__(text)
        self.code = code
        self.reason = reason

    @property
    def is_lasting(self) -> bool:
        """Whether the same client would be refused again: a wrong password, say, and not a broker that is busy."""
        return self.code in LASTING


class ConnectionLost(ClientError):
    """A connection ended before the answer came. Whether the broker has heard is not known."""


class Unconfirmed(ClientError):
    """The broker did not answer in time, over as many connections as that took."""


class Refused(ClientError):
    """The broker said no. `code` is the reason code of MQTT 5, `reason` its text, "" when it gave none."""

    def __init__(self, what: str, code: int, reason: str) -> None:
        super().__init__(f"{what}: refused with 0x{code:02x}{f' ({reason})' if reason else ''}")
        self.code = code
        self.reason = reason


class PublishRefused(Refused):
    """The message is not in the queue: too large, the queue full, or no right to publish there."""


class SubscribeRefused(Refused):
    """No messages will come: the name is no queue's, or there is no right to consume."""


class SettleRefused(Refused):
    """The message is not this client's to settle any more: it was settled, expired, or given to another consumer."""


class RequestTimeout(ClientError, TimeoutError):
    """No answer in time. A reply that comes later is dropped."""


class ReplyImpossible(ClientError):
    """The message asks for no reply, or for one to a topic that is no queue of responses."""

"""What can go wrong, by whose fault it is."""

from __future__ import annotations


class ClientError(Exception):
    """Base of everything that this library raises by itself."""


class ConnectFailed(ClientError):
    """The broker cannot be reached, refuses the client, or has given its place to another one of the same id."""


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

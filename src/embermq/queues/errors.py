"""What this room refuses. All of it is the peer's fault, and says what, which value, which limit."""

from embermq.mqtt.wire.reason_codes import ReasonCode


class QueueRefusal(ValueError):
    """`message` is for the reason string, `reason_code` for PUBACK, PUBREC or SUBACK."""

    def __init__(self, message: str, reason_code: ReasonCode) -> None:
        super().__init__(message)
        self.message = message
        self.reason_code = reason_code


class NameRefused(QueueRefusal):
    """A topic or filter that names no queue a client may use in that place."""


class TooLarge(QueueRefusal):
    """A message of more bytes than the queue takes."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ReasonCode.QUOTA_EXCEEDED)


class QueueFull(QueueRefusal):
    """A message for a queue that holds as many as it may."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ReasonCode.QUOTA_EXCEEDED)


class PropertyRefused(QueueRefusal):
    """A user property that the queue reads and cannot understand."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)


class SettingsRefused(ValueError):
    """Settings of a queue that are unknown, impossible, or cannot be changed now: says which one."""

"""Who may enter, as the server asks it."""

from typing import Protocol

from embermq.broker.connecting import Identity
from embermq.protocol.packets import Connect
from embermq.protocol.reason_codes import ReasonCode


class Gate(Protocol):
    """Answers with the client's identity, or with the reason code of a refusal."""

    def needs_check(self, packet: Connect) -> bool:
        """True when the answer takes a while (a password): `check` then, else `admit`."""
        ...

    def admit(self, packet: Connect, *, loopback: bool) -> Identity | ReasonCode:
        """The answer at once."""
        ...

    async def check(self, packet: Connect, *, loopback: bool) -> Identity | ReasonCode:
        """The answer after checking credentials."""
        ...

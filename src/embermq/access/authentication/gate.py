"""Who may enter, as the server asks it."""

import asyncio
from typing import Protocol

from msgspec import Struct

from embermq.access.authentication.identity import Identity, MethodStep, Refusal
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.packets import Connect


class Visitor(Struct, frozen=True):
    """A client that has not said who it is.

    `loopback`: it comes from this machine to an address that only this machine reaches. `allow_anonymous` and
    `client_type` are its listener's word, the former None when that says nothing. `certificate_name` is the user name
    that its verified certificate proves, `certificate` the whole subject of that one, "" without one. `address` is
    where it comes from, without the port; a Unix socket is its own. `left` is done when its connection is over.
    """

    loopback: bool
    allow_anonymous: bool | None
    client_type: ClientType
    certificate_name: str | None
    address: str = ""
    certificate: str = ""
    left: asyncio.Future[None] | None = None


class Exchange(Protocol):
    """One run of a method of enhanced authentication. It ends with its first answer that is no `Question`."""

    async def step(self, data: bytes | None) -> MethodStep:
        """The answer to what the client sent, first with CONNECT or with the AUTH that begins anew."""
        ...


class Gate(Protocol):
    """Answers with the client's identity, or with a refusal."""

    def admit(self, packet: Connect, visitor: Visitor) -> Identity | Refusal | None:
        """The answer at once; None when it takes a while (a password, a certificate): `check` then."""
        ...

    async def check(self, packet: Connect, visitor: Visitor) -> Identity | Refusal:
        """The answer after checking credentials."""
        ...

    def exchange(self, method: str, client_id: str, visitor: Visitor) -> Exchange | None:
        """A new run of an authentication method; None for one that is not offered to this client. `client_id` is empty
        when the client has none yet."""
        ...

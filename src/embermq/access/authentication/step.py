"""What a step of the chain is asked, and what it may answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import ClassVar, Literal

from msgspec import Struct

from embermq.access.authentication.gate import Visitor
from embermq.access.authentication.identity import Question
from embermq.model.client_type import ClientType
from embermq.mqtt.wire.reason_codes import ReasonCode


class Applicant(Struct, frozen=True):
    """A client that sent CONNECT without a method of enhanced authentication."""

    client_id: str
    username: str | None
    password: bytes | None
    visitor: Visitor

    def __repr__(self) -> str:
        """Without what it proves itself with."""
        return f"Applicant(client_id={self.client_id!r}, username={self.username!r})"


class Admit(Struct, frozen=True):
    """It is `username`, "" for nobody in particular. `expires_ms` (Unix time) is when what it showed ends, 0 never.

    `account_version` is that of the account whose password it knew, 0 when it came in by something else.
    """

    username: str = ""
    client_type: ClientType = ClientType.DEVICE
    expires_ms: int = 0
    account_version: int = 0


class Deny(Struct, frozen=True):
    """It may not enter. `why` is for the log, and never holds what the client showed."""

    reason_code: ReasonCode
    why: str


class Welcome(Struct, frozen=True):
    """The end of an exchange that went well; `data` is for the client."""

    admit: Admit
    data: bytes | None


class Undecided(Enum):
    """`NOT_MINE`: another step may know this client. `CHECK`: the answer takes a while, ask `check` for it."""

    NOT_MINE = "not mine"
    CHECK = "check"


NOT_MINE: Literal[Undecided.NOT_MINE] = Undecided.NOT_MINE
CHECK: Literal[Undecided.CHECK] = Undecided.CHECK
StepAnswer = Admit | Deny | Literal[Undecided.NOT_MINE]
Look = StepAnswer | Literal[Undecided.CHECK]


class Talk(ABC):
    """One run of a method of enhanced authentication, for one client. A `Question` goes to the client, anything else is
    the end of it."""

    @abstractmethod
    async def answer(self, data: bytes | None) -> Question | Welcome | Deny:
        """The answer to what the client sent, in CONNECT or AUTH. Nothing that it may send raises."""


class Step(ABC):
    """One kind of proof. Made and used on the event loop."""

    name: ClassVar[str]
    """As `authentication.chain` says it."""
    methods: ClassVar[frozenset[str]] = frozenset()
    """The methods of enhanced authentication that it speaks. Clients that name one come to it by `Chain.speaking`, the
    others never."""

    @abstractmethod
    def look(self, applicant: Applicant) -> Look:
        """The answer at once, without waiting for anything; CHECK when that cannot be."""

    async def check(self, applicant: Applicant) -> StepAnswer:
        """The answer, after `look` said CHECK. Costs the same whether it is yes or no."""
        raise NotImplementedError(f"{self.name} answers at once")

    def talk(self, method: str) -> Talk:
        """A new run of one of `methods`."""
        raise NotImplementedError(f"{self.name} speaks no method")

    async def close(self) -> None:  # noqa: B027 - most steps hold nothing
        """Let go of what is held; nothing is asked afterwards."""

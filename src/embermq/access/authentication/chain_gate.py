"""The server's gate, kept by the chain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from secrets import token_hex

from embermq.access.authentication.chain import Chain
from embermq.access.authentication.gate import Exchange, Visitor
from embermq.access.authentication.identity import Identity, Proof, Question, Refusal
from embermq.access.authentication.slowing import FailureCounts, Slowing
from embermq.access.authentication.step import Admit, Applicant, Deny, Talk
from embermq.model.client_type import ClientType
from embermq.model.counters import Counters
from embermq.mqtt.wire.packets import Connect
from embermq.mqtt.wire.reason_codes import ReasonCode

FAILURES = frozenset({ReasonCode.BAD_USER_NAME_OR_PASSWORD, ReasonCode.NOT_AUTHORIZED})
"""The client's fault; other refusals are ours."""
ASSIGNED_ID_PREFIX = "ember-"
"""Before the 16 random hexadecimal digits of a client id that the broker makes."""
NO_USERNAME = Deny(ReasonCode.NOT_AUTHORIZED, "it has no user name to take as its client id")


class ChainGate:
    """A client is of type APPLICATION when what it showed, its listener, or a rule over client ids says so.
    `username_as_client_id`: a user name is the client id too, and nobody enters without one."""

    def __init__(
        self,
        chain: Chain,
        application_ids: Sequence[str],
        *,
        username_as_client_id: bool = False,
        slowing: Slowing,
        late_max: int,
        failures: FailureCounts,
        counters: Counters,
    ) -> None:
        self.ban: Callable[[str], None] = _nobody_bans
        """Called with an address, or network, that has failed too often."""
        self._failures = failures
        self._chain = chain
        self._application_ids = application_ids
        self._username_as_client_id = username_as_client_id
        self._slowing = slowing
        self._late_max = late_max
        self._late = 0
        self._counters = counters

    def admit(self, packet: Connect, visitor: Visitor) -> Identity | Refusal | None:
        answer = self._chain.look(_applicant(packet, visitor))
        return self.identify(answer, packet.client_id, visitor) if isinstance(answer, Admit | Deny) else None

    async def check(self, packet: Connect, visitor: Visitor) -> Identity | Refusal:
        answer = await self._chain.check(_applicant(packet, visitor))
        if isinstance(answer, Deny):
            await self.failed(answer, visitor)
        return self.identify(answer, packet.client_id, visitor)

    def exchange(self, method: str, client_id: str, visitor: Visitor) -> Exchange | None:
        step = self._chain.speaking(method)
        return _Exchange(self, step.talk(method), client_id, visitor) if step is not None else None

    async def failed(self, answer: Deny, visitor: Visitor) -> None:
        """Count a refusal after a check, and wait when there were too many from there. Whoever succeeds never waits."""
        if answer.reason_code not in FAILURES:
            self._counters.logins_unchecked += 1
            return
        self._counters.logins_failed += 1
        now_s = asyncio.get_running_loop().time()
        suspect = self._failures.failed(visitor.address, now_s)
        if suspect:
            self.ban(suspect)
        delay_s = self._slowing.failed(visitor.address, now_s)
        if not delay_s or self._late >= self._late_max:
            return
        self._counters.login_answers_delayed += 1
        self._late += 1
        try:
            await asyncio.sleep(delay_s)
        finally:
            self._late -= 1

    def identify(self, answer: Admit | Deny, client_id: str, visitor: Visitor) -> Identity | Refusal:
        """The answer in the broker's words."""
        if isinstance(answer, Deny):
            return Refusal(answer.reason_code, answer.why)
        own_id = answer.username if self._username_as_client_id else ""
        if self._username_as_client_id and not own_id:
            return Refusal(NO_USERNAME.reason_code, NO_USERNAME.why)
        client_id = own_id or client_id
        client_type = answer.client_type
        if visitor.client_type is ClientType.APPLICATION or any(
            fnmatchcase(client_id, rule) for rule in self._application_ids
        ):
            client_type = ClientType.APPLICATION
        return Identity(
            answer.username,
            client_type,
            "" if client_id else f"{ASSIGNED_ID_PREFIX}{token_hex(8)}",
            certificate=visitor.certificate,
            expires_ms=answer.expires_ms,
            account_version=answer.account_version,
            client_id=own_id,
        )


class _Exchange:
    """A step's talk with one client, in the broker's words."""

    def __init__(self, gate: ChainGate, talk: Talk, client_id: str, visitor: Visitor) -> None:
        self._gate = gate
        self._talk = talk
        self._client_id = client_id
        self._visitor = visitor

    async def step(self, data: bytes | None) -> Question | Proof | Refusal:
        answer = await self._talk.answer(data)
        if isinstance(answer, Question):
            return answer
        if isinstance(answer, Deny):
            await self._gate.failed(answer, self._visitor)
            return Refusal(answer.reason_code, answer.why)
        identity = self._gate.identify(answer.admit, self._client_id, self._visitor)
        return Proof(identity, answer.data) if isinstance(identity, Identity) else identity


def _applicant(packet: Connect, visitor: Visitor) -> Applicant:
    return Applicant(packet.client_id, packet.username, packet.password, visitor)


def _nobody_bans(_address: str) -> None:
    return

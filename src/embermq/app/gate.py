"""The server's gate, kept by the authenticator."""

from secrets import token_hex

from embermq.app.authentication import Admission, Authenticator
from embermq.broker.connecting import Identity
from embermq.protocol.packets import Connect
from embermq.protocol.reason_codes import ReasonCode


class AccountGate:
    """Anonymous clients are answered at once, names are checked with their password."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    def needs_check(self, packet: Connect) -> bool:
        return packet.username is not None or packet.password is not None

    def admit(self, packet: Connect, *, loopback: bool) -> Identity | ReasonCode:
        return _answer(self._authenticator.admit_anonymous(packet.client_id, loopback=loopback))

    async def check(self, packet: Connect, *, loopback: bool) -> Identity | ReasonCode:
        return _answer(
            await self._authenticator.admit(
                client_id=packet.client_id,
                username=packet.username,
                password=packet.password,
                loopback=loopback,
            )
        )


def _answer(admission: Admission) -> Identity | ReasonCode:
    if admission.reason_code is not ReasonCode.SUCCESS:
        return admission.reason_code
    return Identity(admission.user or "", admission.client_type, f"ember-{token_hex(8)}")

"""The server's gate, kept by the authenticator."""

from secrets import token_hex

from embermq.app.authentication import Admission, Authenticator
from embermq.broker.connecting import Identity
from embermq.model.client_type import ClientType
from embermq.protocol.packets import Connect
from embermq.protocol.reason_codes import ReasonCode
from embermq.server.gate import Visitor


class AccountGate:
    """Anonymous clients are answered at once, names are checked with their password.

    A client with a certificate is the user that it names, whatever CONNECT says.
    """

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    def needs_check(self, packet: Connect, visitor: Visitor) -> bool:
        return (
            visitor.certificate_name is not None or packet.username is not None or packet.password is not None
        )

    def admit(self, packet: Connect, visitor: Visitor) -> Identity | ReasonCode:
        admission = self._authenticator.admit_anonymous(
            packet.client_id, loopback=visitor.loopback, allowed=visitor.allow_anonymous
        )
        return _answer(admission, visitor)

    async def check(self, packet: Connect, visitor: Visitor) -> Identity | ReasonCode:
        if visitor.certificate_name is not None:
            return _answer(
                await self._authenticator.admit_certificate(packet.client_id, visitor.certificate_name),
                visitor,
            )
        admission = await self._authenticator.admit(
            client_id=packet.client_id,
            username=packet.username,
            password=packet.password,
            loopback=visitor.loopback,
        )
        return _answer(admission, visitor)


def _answer(admission: Admission, visitor: Visitor) -> Identity | ReasonCode:
    if admission.reason_code is not ReasonCode.SUCCESS:
        return admission.reason_code
    of_listener = visitor.client_type is ClientType.APPLICATION
    client_type = ClientType.APPLICATION if of_listener else admission.client_type
    return Identity(admission.user or "", client_type, f"ember-{token_hex(8)}")

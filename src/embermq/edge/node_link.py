"""What nodes of a cluster say to one another: one hands over a client's connection, or messages that no log has, or has
a client be a member of groups of the other.

Who is called begins with `NONCE_BYTES`: the version that it speaks, and random ones. The caller answers with an
introduction: four bytes of length, what is to come as JSON, and an HMAC over both by the secret that the nodes have in
common. Of a client its own bytes follow, and answers come back, as they are. Of messages their records follow, each
behind four bytes of its length; one that is empty is answered, behind four bytes of length. A member speaks MQTT 5 from
then on. Who asks for member sessions gets their ids as JSON, behind four bytes of length. What an operator asks of
another node follows, too, and its answer comes behind four bytes of length.

Nodes of neighbouring versions work together: fields that a reader does not know are passed over, new ones have a
default, and what one version says, the next one takes in the same bytes. A kind of introduction or message that is not
known is no damage: it is counted, and who waits for an answer gets `NOT_UNDERSTOOD`. A node that says something new
goes by the version of the one that it calls. Who speaks an older version than `OLDEST_VERSION` is refused.
"""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Protocol, get_args

import msgspec
from msgspec import Struct

from embermq.edge.node_tls import NodeTls
from embermq.edge.settings import Address
from embermq.mqtt.wire.packets import Connect
from embermq.mqtt.wire.version import ProtocolVersion

VERSION = 1
"""Of what nodes say; a higher one for each release that says something new."""
OLDEST_VERSION = 1
"""What a node of the release before speaks."""
NONCE_BYTES = 16
PROOF_BYTES = 32
SIZE_BYTES = 4
NOT_UNDERSTOOD = b"\xff" * SIZE_BYTES
"""In place of an answer's length."""
NOT_KNOWN = "it does not understand that: it has another version"
MUTE = "it says nothing: it is too slow, or speaks TLS, and this node does not (cluster.cert)"
CALL_S = 3.0
"""How long a node has to answer a call."""
INTRODUCTION_BYTES_MAX = 64 * 1024
OPERATION_BYTES_MAX = 2 * 1024 * 1024
RECORD_BYTES_MAX = 65 * 1024 * 1024
"""Of one message: a cluster has its log in Kafka, so its packets have 64 MiB at most, to which a record adds little."""
ANSWER_BYTES_MAX = 128 * 1024 * 1024
"""A message of that size in Base64, or the ids of some million sessions."""


class IntroductionError(ValueError):
    """What came is no introduction of a node of this cluster."""


class NotUnderstoodError(IntroductionError):
    """A node of this cluster says something that this version does not know."""


class _Introduction(Struct, frozen=True, kw_only=True):
    """`speaks` is the version of the node that calls."""

    speaks: int = VERSION


class Messages(_Introduction, frozen=True, kw_only=True, tag="messages"):
    """Those of QoS 0 that clients of another node publish, for `slot`."""

    slot: int


class MemberOf(_Introduction, frozen=True, kw_only=True, tag="member"):
    """A client of slot `of` that is a member of groups, or uses queues, of `slot`, as its `node` has let it in;
    `session` is the id of its session there."""

    slot: int
    of: int
    node: str
    session: str
    user: str
    certificate: str
    host: str
    version: int = ProtocolVersion.V5
    """Of MQTT, that the client speaks."""


class MembersAsked(_Introduction, frozen=True, kw_only=True, tag="members"):
    """`node` asks which sessions `slot` has of clients of slot `of`. Or it tells which of them are `over`: these end
    before the answer, which names none."""

    slot: int
    of: int
    node: str
    over: tuple[str, ...] = ()


class OperationAsked(_Introduction, frozen=True, kw_only=True, tag="operation"):
    """What an operator wants of what `slot` has: so many bytes, which follow, and their SHA-256 in hex. The answer is
    behind four bytes of its length."""

    slot: int
    size: int
    digest: str


class Stops(_Introduction, frozen=True, kw_only=True, tag="stops"):
    """`node` ends in order: the clients of `slot` that it has handed on are told so by the slot's node, and where else
    they may go, "" when that is not known. The answer is empty."""

    slot: int
    node: str
    elsewhere: str


class Introduced(_Introduction, frozen=True, kw_only=True, tag="client"):
    """A client as `node`, that it has connected to, knows it. `slot` is the one it is taken to belong to; the rest is
    what its listener says of it."""

    slot: int
    node: str = ""
    host: str
    port: int
    loopback: bool
    allow_anonymous: bool | None
    client_type: str
    certificate_name: str | None
    certificate: str
    max_qos: int
    protocol_versions: tuple[str, ...]
    allow_empty_client_id: bool


class Homes(Protocol):
    """Where clients belong to."""

    def home_of(self, packet: Connect) -> tuple[int, Address | None] | None:
        """None when it is this node; else the slot and who has it, None when nobody does now."""
        ...

    def address_of(self, slot: int) -> Address | None:
        """Who has a slot; None when nobody does now."""
        ...

    def has_slot(self, node: str, slot: int) -> bool:
        """Whether the node with this address has this slot, as far as that is known."""
        ...

    def secret(self) -> bytes:
        """What the nodes have in common."""
        ...

    @property
    def here(self) -> str:
        """What this node calls itself to others."""
        ...

    @property
    def tls(self) -> NodeTls | None:
        """By which nodes encrypt what they say, and know one another; None when they do not."""
        ...


Introduction = Introduced | Messages | MemberOf | MembersAsked | OperationAsked | Stops
_KINDS = {kind.__struct_config__.tag for kind in get_args(Introduction)}


class _Spoken(Struct, frozen=True):
    """What introductions of every version have; who does not say what it speaks speaks the first one."""

    type: str
    speaks: int = 1


def greeting() -> bytes:
    """What a node that is called begins with."""
    return bytes([VERSION]) + os.urandom(NONCE_BYTES - 1)


def encode_introduction(introduced: Introduction, nonce: bytes, secret: bytes) -> bytes:
    """Who comes, and that a node of the cluster says so. Raises IntroductionError when it is too long to be read."""
    told = msgspec.json.encode(introduced)
    if len(told) > INTRODUCTION_BYTES_MAX:
        raise IntroductionError(too_long("an introduction", len(told), INTRODUCTION_BYTES_MAX))
    told = len(told).to_bytes(SIZE_BYTES) + told
    return told + _proof(nonce + told, secret)


def read_introduction(
    data: bytes, nonce: bytes, secret: Callable[[], bytes]
) -> tuple[Introduction, bytes] | None:
    """What comes and what follows; None when there is more to come. Raises IntroductionError, NotUnderstoodError for
    what a node of this cluster says."""
    size = int.from_bytes(data[:SIZE_BYTES])
    if size > INTRODUCTION_BYTES_MAX:
        raise IntroductionError(too_long("an introduction", size, INTRODUCTION_BYTES_MAX))
    end = SIZE_BYTES + size
    if len(data) < max(SIZE_BYTES, end + PROOF_BYTES):
        return None
    known = secret()
    if not known:
        raise IntroductionError("this node does not know the secret of its cluster yet")
    if not hmac.compare_digest(data[end : end + PROOF_BYTES], _proof(nonce + data[:end], known)):
        raise IntroductionError("it has another secret than this cluster")
    return _decoded(data[SIZE_BYTES:end]), data[end + PROOF_BYTES :]


def _decoded(told: bytes) -> Introduction:
    try:
        kind = msgspec.json.decode(told, type=_Spoken)
        if kind.speaks < OLDEST_VERSION:
            raise IntroductionError(_too_old(kind.speaks))
        if kind.type not in _KINDS:
            why = f"it speaks version {kind.speaks} of what nodes say, and this node {VERSION}: {kind.type[:40]}"
            raise NotUnderstoodError(why)
        introduced: Introduction = msgspec.json.decode(told, type=Introduction)
    except msgspec.MsgspecError as error:
        raise IntroductionError(f"an introduction that cannot be read: {error}") from None
    return introduced


async def call_node(
    address: Address, tls: NodeTls | None, protocol: Callable[[asyncio.Future[bytes]], asyncio.Protocol]
) -> tuple[asyncio.Transport, bytes]:
    """Connect to another node; returns what it begins with, of which `protocol` tells. Raises OSError, also when it
    takes too long, and EOFError."""
    loop = asyncio.get_running_loop()
    nonce: asyncio.Future[bytes] = loop.create_future()
    far = None
    try:
        async with asyncio.timeout(CALL_S):
            context = tls.calls if tls is not None else None
            far, _ = await loop.create_connection(
                lambda: protocol(nonce), address.host, address.port, ssl=context
            )
            return far, await nonce
    except BaseException as error:
        if far is not None:
            far.abort()
        if isinstance(error, TimeoutError):
            is_mute = far is not None and tls is None
            raise TimeoutError(MUTE if is_mute else "too slow") from None
        raise


class NonceReader(asyncio.Protocol):
    """Reads what a node begins with; `take` gets what follows."""

    def __init__(self, nonce: asyncio.Future[bytes]) -> None:
        self._nonce = nonce
        self._begin = b""

    def data_received(self, data: bytes) -> None:
        if self._nonce.done():
            self.take(data)
            return
        self._begin += data
        if len(self._begin) < NONCE_BYTES:
            return
        if self._begin[0] < OLDEST_VERSION:
            self._nonce.set_exception(ConnectionError(_too_old(self._begin[0])))
        else:
            self._nonce.set_result(self._begin[:NONCE_BYTES])

    def take(self, data: bytes) -> None:
        """What comes behind it."""

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._nonce.done():
            self._nonce.set_exception(exc or EOFError("it closed the connection"))
            self._nonce.exception()  # nobody may wait for it any more


async def ask_node(
    address: Address,
    tls: NodeTls | None,
    introduction: Introduction,
    secret: bytes,
    answer_s: float,
    *,
    behind: bytes = b"",
) -> bytes:
    """What a node answers to an introduction and what follows it. Raises OSError, also when it takes too long, EOFError
    and IntroductionError."""
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    far, nonce = await call_node(address, tls, partial(_Answer, answer))
    try:
        far.write(encode_introduction(introduction, nonce, secret) + behind)
        async with asyncio.timeout(answer_s):
            return await answer
    finally:
        far.abort()


class AnswerReader(NonceReader):
    """What comes behind its length, one after the other."""

    def __init__(self, nonce: asyncio.Future[bytes]) -> None:
        super().__init__(nonce)
        self._held = bytearray()

    def take(self, data: bytes) -> None:
        held = self._held
        held += data
        while len(held) >= SIZE_BYTES:
            size = int.from_bytes(held[:SIZE_BYTES])
            if size > ANSWER_BYTES_MAX:
                is_older = held.startswith(NOT_UNDERSTOOD)
                held.clear()
                self.failed(NOT_KNOWN if is_older else too_long("an answer", size, ANSWER_BYTES_MAX))
                return
            end = SIZE_BYTES + size
            if len(held) < end:
                return
            answer = bytes(held[SIZE_BYTES:end])
            del held[:end]
            self.answered(answer)

    def answered(self, answer: bytes) -> None:
        """One of them is whole."""

    def failed(self, why: str) -> None:
        """The other node speaks another version, or announces what cannot be: the connection is of no use."""


class _Answer(AnswerReader):
    """The first one."""

    def __init__(self, answer: asyncio.Future[bytes], nonce: asyncio.Future[bytes]) -> None:
        super().__init__(nonce)
        self._answer = answer

    def answered(self, answer: bytes) -> None:
        if not self._answer.done():
            self._answer.set_result(answer)

    def failed(self, why: str) -> None:
        if not self._answer.done():
            self._answer.set_exception(ConnectionError(why))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self._answer.done():
            self._answer.set_exception(exc or EOFError("it closed the connection"))
            self._answer.exception()  # nobody may wait for it any more


def _too_old(version: int) -> str:
    return f"it speaks version {version} of what nodes say, and this node {OLDEST_VERSION} to {VERSION}"


def too_long(what: str, size: int, bytes_max: int) -> str:
    """Why what a node announces is not waited for."""
    return f"{what} of {size} bytes, more than {bytes_max}"


def _proof(text: bytes, secret: bytes) -> bytes:
    return hmac.digest(secret, text, sha256)
